"""A limit for the state that clients make the coordinators keep, in bytes.

This state is groups, members with their metadata and assignments, committed offsets, and transactional ids. A client
needs a few bytes on the wire to create each of them, and they stay after the client has disconnected. Each owner of
such state counts its bytes as they change. The budget adds up the owners' counts and compares the sum with
`stratalog.max.coordinator.state.bytes`.

New groups, members and transactional ids may fill three quarters of the limit. The last quarter is for what existing
ones need to continue: an assignment, an offset, a partition in a transaction. So a broker that is full of new members
still serves the old ones. State that was loaded at the start counts, and is never refused.

Sizes are estimates of Python's memory, not of bytes on the wire: a topic name of two letters is four bytes on the wire,
and a hundred here. They depend on the values alone, so removing something frees exactly what adding it took.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stratalog.errors import StateBudgetError

log = logging.getLogger(__name__)

SETTING = "stratalog.max.coordinator.state.bytes"
OBJECT_BYTES = 100  # an entry of a dict or set with a small value
_SECONDS_BETWEEN_WARNINGS = 10.0
_NEVER = -_SECONDS_BETWEEN_WARNINGS


def text_bytes(text: str | None) -> int:
    """Return the memory of a text. Python needs up to four bytes for each character of a text that is not ASCII."""
    if text is None:
        return 0
    return len(text) if text.isascii() else 4 * len(text)


class StateBudget:
    def __init__(self, limit: int, monotonic: Callable[[], float]) -> None:
        self.limit = limit  # may change at any time
        self.refusals = 0
        self._monotonic = monotonic
        self._owners: list[Callable[[], int]] = []
        self._warned_at = _NEVER

    def include(self, counted_bytes: Callable[[], int]) -> None:
        """Add an owner of state. `counted_bytes` must be quick, because each check calls it."""
        self._owners.append(counted_bytes)

    @property
    def used(self) -> int:
        return sum(count() for count in self._owners)

    def check(self, more: int, what: str, *, is_new: bool) -> None:
        """Raise StateBudgetError if `more` bytes do not fit. A change that makes the state smaller always fits."""
        if more <= 0:
            return
        used = self.used
        most = self.limit // 4 * 3 if is_new else self.limit
        if used + more <= most:
            return
        self.refusals += 1
        share = f"{most} of the {self.limit} bytes of {SETTING}" + (" are for new ones" if is_new else "")
        problem = f"{what} takes {more} bytes of coordinator state; {used} bytes are in use, and {share}"
        self._warn(problem)
        raise StateBudgetError(problem)

    def _warn(self, problem: str) -> None:
        now = self._monotonic()
        if now - self._warned_at >= _SECONDS_BETWEEN_WARNINGS:
            self._warned_at = now
            log.warning(
                "refused: %s. Raise %s, or find the clients that fill it (%d refusals so far)",
                problem,
                SETTING,
                self.refusals,
            )
