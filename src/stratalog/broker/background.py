"""The background thread for long work. There is one thread, which runs its calls one at a time and in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Protocol, TypeVar

T = TypeVar("T")


class RunInBackground(Protocol):
    """Runs a callable in the background thread. The event loop calls this and awaits the result. Cancelling the wait
    does not stop the work."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class RunInPortions(Protocol):
    """Runs very long work in the background thread, like RunInBackground. At each `yield` of the work, other calls that
    wait for the thread run."""

    def __call__(self, work: Generator[None, None, T], /) -> Awaitable[T]: ...


def finish(work: Generator[None, None, T]) -> T:
    """Run all portions of the work without a pause, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
