"""The controls of a test: the faults that it armed, and the clock of its broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeAlias

RunCommand: TypeAlias = Callable[..., Any]
"""Run a command of the broker's process with arguments, and return its result."""


class Fault:
    """An armed fault. It ends with end(), with its `with` block, with heal(), or with a restart of the broker."""

    def __init__(self, number: int, run: RunCommand, is_known: Callable[[], bool]) -> None:
        self._number = number
        self._run = run
        self._is_known = is_known

    @property
    def met(self) -> int:
        """The number of responses that the fault has affected, or 0 after a restart of the broker."""
        return int(self._run("met", number=self._number)) if self._is_known() else 0

    def end(self) -> None:
        if self._is_known():
            self._run("end_fault", number=self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class BrokerClock:
    """The broker's wall-clock time, which the age of records and committed offsets depends on. Timeouts don't depend on
    it."""

    def __init__(self, run: RunCommand) -> None:
        self._run = run
        self.state: tuple[int, int | None] = (0, None)

    @property
    def now_ms(self) -> int:
        return int(self._run("now_ms"))

    def advance(
        self,
        by: timedelta | None = None,
        /,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Move the clock forward. When this returns, the broker has deleted the records and committed offsets that have
        become too old."""
        whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        whole += by or timedelta()
        if whole < timedelta():
            raise ValueError(f"a clock can't go back by {-whole}; reset() gives it the system's time")
        self._change("advance", milliseconds=whole // timedelta(milliseconds=1))

    def stop(self) -> None:
        """Stop the clock. Only advance() moves it."""
        self._change("stop_clock")

    def go(self) -> None:
        """Start the clock again, at the time where it was stopped."""
        self._change("let_clock_go")

    def reset(self) -> None:
        """Return to the system's time."""
        self._change("reset_clock")

    def _change(self, command: str, **arguments: object) -> None:
        ahead_ms, stopped_at_ms = self._run(command, **arguments)
        self.state = (ahead_ms, stopped_at_ms)
