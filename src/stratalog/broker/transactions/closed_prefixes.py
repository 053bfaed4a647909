"""Prefixes of transactional ids under which no new transaction may begin.

A job gives its transactional ids a prefix of its own, and closes the prefix when it ends. A task that the job has lost
contact with can then neither get a producer id nor begin a transaction that no request would end. Closed prefixes are
kept in memory only: a restart of the broker opens them again, and a transaction that such a task begins after that ends
by its timeout.
"""

from __future__ import annotations

import logging

MOST_PREFIXES = 1_000  # at the limit, the oldest prefix is dropped: its job ended long ago
LONGEST_PREFIX = 1_000  # characters; callers of `close` check it
_REFUSALS_LOGGED = 10  # for each prefix: a task may retry without end

log = logging.getLogger(__name__)


class ClosedPrefixes:
    """The closed prefixes, at most MOST_PREFIXES."""

    def __init__(self) -> None:
        self._prefixes: tuple[str, ...] = ()
        self._refusals: dict[str, int] = {}

    def close(self, prefix: str) -> None:
        if prefix not in self._refusals:
            log.info("transactional ids that begin with %r are closed to new transactions until a restart", prefix)
            self._refusals[prefix] = 0
            self._prefixes = (*self._prefixes, prefix)
            for oldest in self._prefixes[:-MOST_PREFIXES]:
                del self._refusals[oldest]
            self._prefixes = self._prefixes[-MOST_PREFIXES:]

    def covers(self, transactional_id: str) -> bool:
        """Return whether no transaction of this id may begin. Log the first refusals."""
        if not transactional_id.startswith(self._prefixes):
            return False
        prefix = next(prefix for prefix in self._prefixes if transactional_id.startswith(prefix))
        self._refusals[prefix] += 1
        if self._refusals[prefix] <= _REFUSALS_LOGGED:
            log.warning("transactional id %r is refused: the prefix %r was closed", transactional_id[:200], prefix)
        return True
