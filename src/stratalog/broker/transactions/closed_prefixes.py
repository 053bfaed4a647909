"""Prefixes of transactional ids under which no transaction may begin any more.

A job that names its ids with a prefix of its own, and that has ended, closes the prefix. A task that the job has lost
sight of can then neither get a producer id nor begin a transaction that nobody would end. Prefixes are kept in memory
only: a restart of the broker opens them again, and what such a task leaves open after that ends by its timeout.
"""

from __future__ import annotations

import logging

MOST_PREFIXES = 1_000  # the oldest makes room; its job has long been over
LONGEST_PREFIX = 1_000  # characters: whoever closes one checks it
_REFUSALS_LOGGED = 10  # of a prefix: a task may ask again and again

log = logging.getLogger(__name__)


class ClosedPrefixes:
    def __init__(self) -> None:
        self._prefixes: tuple[str, ...] = ()
        self._refusals: dict[str, int] = {}

    def close(self, prefix: str) -> None:
        if prefix not in self._refusals:
            log.info("transactional ids that begin with %r can't be used any more, until the broker restarts", prefix)
            self._refusals[prefix] = 0
            self._prefixes = (*self._prefixes, prefix)
            for oldest in self._prefixes[:-MOST_PREFIXES]:
                del self._refusals[oldest]
            self._prefixes = self._prefixes[-MOST_PREFIXES:]

    def covers(self, transactional_id: str) -> bool:
        """Whether no transaction of this id may begin."""
        if not transactional_id.startswith(self._prefixes):
            return False
        prefix = next(prefix for prefix in self._prefixes if transactional_id.startswith(prefix))
        self._refusals[prefix] += 1
        if self._refusals[prefix] <= _REFUSALS_LOGGED:
            log.warning("transactional id %r is refused: the prefix %r was closed", transactional_id[:200], prefix)
        return True
