"""The thread for what takes long: one, so that what it is given is done in order, one at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class RunInBackground(Protocol):
    """Give it a callable from the event loop, and await the result. Who stops waiting does not stop the work."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...
