"""What clients make the coordinators remember, in bytes, and whether there is room for more.

Groups, members with their metadata and assignments, committed offsets, transactional ids: a client needs a few bytes on
the wire to make each of them, and they stay after it has gone. Each owner of such state counts it as it changes and
gives its count here; the sum is compared with `stratalog.max.coordinator.state.bytes`.

What is new (a group, a member, a transactional id) may fill three quarters. The last quarter is for what those that are
in already need to go on: an assignment, an offset, a partition in a transaction. So a broker that is filled with new
members still serves the old ones. What was loaded at the start counts, and is never refused.

Sizes are estimates of what Python takes, not of the wire: a topic's name of two letters is four bytes there, and here
a hundred. They depend on the values alone, so what was added is given back exactly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stratalog.errors import StateBudgetError

log = logging.getLogger(__name__)

SETTING = "stratalog.max.coordinator.state.bytes"
OBJECT_BYTES = 100  # an entry of a dict or set, with what it takes to hold a small value
_SECONDS_BETWEEN_WARNINGS = 10.0
_NEVER = -_SECONDS_BETWEEN_WARNINGS


def text_bytes(text: str | None) -> int:
    """Python takes up to four bytes for each character of a text that is not ASCII."""
    if text is None:
        return 0
    return len(text) if text.isascii() else 4 * len(text)


class StateBudget:
    def __init__(self, limit: int, monotonic: Callable[[], float]) -> None:
        self.limit = limit  # may be changed at any time
        self.refusals = 0
        self._monotonic = monotonic
        self._owners: list[Callable[[], int]] = []
        self._warned_at = _NEVER

    def include(self, counted_bytes: Callable[[], int]) -> None:
        """Add an owner of state. `counted_bytes` must be quick: it is called at each admission."""
        self._owners.append(counted_bytes)

    @property
    def used(self) -> int:
        return sum(count() for count in self._owners)

    def check(self, more: int, what: str, *, is_new: bool) -> None:
        """Raise StateBudgetError where `more` bytes do not fit. What makes the state smaller always fits."""
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
                "refused: %s. Raise %s, or find out who fills it (%d refusals so far)", problem, SETTING, self.refusals
            )
