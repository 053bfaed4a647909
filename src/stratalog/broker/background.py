"""The thread for what takes long: one, so that what it is given is done in order, one at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Protocol, TypeVar

T = TypeVar("T")


class RunInBackground(Protocol):
    """Give it a callable from the event loop, and await the result. Who stops waiting does not stop the work."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class RunInPortions(Protocol):
    """As RunInBackground, for what takes very long: at each `yield` of the work, others have their turn."""

    def __call__(self, work: Generator[None, None, T], /) -> Awaitable[T]: ...


def finish(work: Generator[None, None, T]) -> T:
    """All of it at once."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
