"""How a job says how far it is. Jobs know nothing of terminals: they tell a Progress, by default nobody."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Who is told. May be told from another thread than the job's."""

    def begin(self, what: str, total: int | None, unit: str) -> None:
        """Something starts that is `total` units long, if that is known."""

    def reached(self, done: int) -> None:
        """So many units of what began last are done."""

    def within(self, done: int) -> None:
        """About so many are done, with what has been done so far of a step that has not ended, and may be undone."""

    def note(self, text: str) -> None:
        """One line worth reading, while it goes on."""


class NoProgress:
    def begin(self, what: str, total: int | None, unit: str) -> None:
        pass

    def reached(self, done: int) -> None:
        pass

    def within(self, done: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass
