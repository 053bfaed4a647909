"""The interface through which a job reports its progress. By default the reports go nowhere."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A receiver of progress reports. Reports may come from other threads than the job's."""

    def begin(self, what: str, total: int | None, unit: str) -> None:
        """Start an activity of `total` units, or of unknown length."""

    def reached(self, done: int) -> None:
        """Report that `done` units of the current activity are complete."""

    def within(self, done: int) -> None:
        """Report an estimate that includes the running step, which may still fail and be undone."""

    def note(self, text: str) -> None:
        """Show one line without ending the activity."""


class NoProgress:
    def begin(self, what: str, total: int | None, unit: str) -> None:
        pass

    def reached(self, done: int) -> None:
        pass

    def within(self, done: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass
