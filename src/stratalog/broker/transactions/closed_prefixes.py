"""Prefixes of transactional ids under which no transaction may begin any more.

A job that names its ids with a prefix of its own, and that has ended, closes the prefix. A task that the job has lost
sight of can then neither get a producer id nor begin a transaction that nobody would end. Prefixes are kept in memory
only: after a restart of the broker, what such a task leaves open ends by its timeout.
"""

from __future__ import annotations

MOST_PREFIXES = 1_000  # the oldest makes room; its job has long been over


class ClosedPrefixes:
    def __init__(self) -> None:
        self._prefixes: tuple[str, ...] = ()

    def close(self, prefix: str) -> None:
        if prefix not in self._prefixes:
            self._prefixes = (*self._prefixes, prefix)[-MOST_PREFIXES:]

    def covers(self, transactional_id: str) -> bool:
        return transactional_id.startswith(self._prefixes)
