"""What a test holds of a fault that it made, and of its broker's clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeAlias

Ask: TypeAlias = Callable[..., Any]
"""A command of the broker's process with its arguments -> the answer."""


class Fault:
    """Counts until it is ended: by end(), by leaving its `with` block, by heal(), or by a restart."""

    def __init__(self, number: int, ask: Ask, is_known: Callable[[], bool]) -> None:
        self._number = number
        self._ask = ask
        self._is_known = is_known

    @property
    def met(self) -> int:
        """How many answers it has met; a restart of the broker forgets it."""
        return int(self._ask("met", number=self._number)) if self._is_known() else 0

    def end(self) -> None:
        if self._is_known():
            self._ask("end_fault", number=self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class BrokerClock:
    """The broker's wall time, which records and committed offsets grow old by. Waits and time-outs don't notice."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.state: tuple[int, int | None] = (0, None)

    @property
    def now_ms(self) -> int:
        return int(self._ask("now_ms"))

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
        """So much time passes at once. When it returns, records and committed offsets that are too old by now are
        deleted."""
        whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        whole += by or timedelta()
        if whole < timedelta():
            raise ValueError(f"a clock can't go back by {-whole}; reset() gives it the system's time")
        self._tell("advance", milliseconds=whole // timedelta(milliseconds=1))

    def stop(self) -> None:
        """Time stands still, but for advance()."""
        self._tell("stop_clock")

    def go(self) -> None:
        """Time passes again, from where it was stopped."""
        self._tell("let_clock_go")

    def reset(self) -> None:
        """The system's time again."""
        self._tell("reset_clock")

    def _tell(self, command: str, **arguments: object) -> None:
        ahead_ms, stopped_at_ms = self._ask(command, **arguments)
        self.state = (ahead_ms, stopped_at_ms)
