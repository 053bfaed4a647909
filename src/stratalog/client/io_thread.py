"""The background thread of a client: it runs an event loop with all of the client's network I/O, timers and retries.

Other threads submit coroutines and callbacks. Every coroutine gets an outcome: if the client is closed first, it is
cancelled, and its caller gets ClientClosedError. After a fork, calls in the child raise ForkedClientError, and the
parent's thread continues. When the interpreter exits, remaining threads are stopped first.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from stratalog.client.errors import ClientClosedError, ClientError, ForkedClientError, RequestTimeoutError

T = TypeVar("T")
_EXIT_SECONDS = 2.0


class IoThread:
    """A thread with an event loop. `name` identifies the client: it is the thread's name and appears in messages."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Start the thread, with `loop` or a new event loop."""
        self.name = name
        self.loop = asyncio.new_event_loop() if loop is None else loop
        self.unusable: ClientError | None = None  # the error that check_usable raises
        self._lock = (
            threading.RLock()
        )  # separates submitting from closing; reentrant, as a signal handler may do either
        self._at_exit: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _running.add(self)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine and return its result, for a thread other than this one. An exception that interrupts the
        wait cancels the coroutine."""
        try:
            self.check_may_wait()
        except RuntimeError:
            coroutine.close()
            raise
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError as error:
            raise ClientClosedError(f"{self.name} was closed during the call, which may have had its effect") from error
        except TimeoutError as error:
            if future.done():  # the coroutine raised it
                raise
            future.cancel()
            raise RequestTimeoutError(f"{self.name}: no result within {timeout:g} s") from error
        except BaseException:
            future.cancel()
            raise

    def check_may_wait(self) -> None:
        """Raise RuntimeError in the I/O thread itself, where a blocking call would never return."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"a blocking call in the thread of {self.name} would never return; make it in another thread"
            )

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        try:
            with self._lock:
                self.check_usable()
                return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except BaseException:
            coroutine.close()
            raise

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        with self._lock:
            self.check_usable()
            self.loop.call_soon_threadsafe(callback, *arguments)

    def check_usable(self) -> None:
        """Raise ClientClosedError or ForkedClientError if the thread can't be used."""
        if self.unusable is not None:
            raise self._why_unusable()

    def _why_unusable(self) -> ClientError:
        """Return a new error each time: threads that raised the same one at once would share its traceback."""
        return ClientClosedError(self.name) if self.unusable is None else type(self.unusable)(*self.unusable.args)

    def at_exit(self, close: Callable[[], None]) -> None:
        """Set a function to call if the interpreter exits while this thread runs. It must be quick."""
        self._at_exit = close

    def close_at_exit(self) -> None:
        if self._at_exit is not None:
            self._at_exit()
        self.close(timeout=_EXIT_SECONDS)

    def disown_in_child(self) -> None:
        """Refuse every further call: this process is a fork's child, and the thread belongs to the parent."""
        self._lock = threading.RLock()  # in the parent, another thread may have held the lock during the fork
        self.unusable = ForkedClientError(
            f"{self.name} was created before a fork, and its thread and connections stay with the parent; create a new "
            f"one in this process"
        )

    def close(self, last: Coroutine[Any, Any, object] | None = None, timeout: float | None = None) -> None:
        """Run `last` for at most `timeout` seconds, cancel everything else, and stop the thread. A second call does
        nothing, and neither does a call in a fork's child."""
        with self._lock:
            if self.unusable is not None:
                if last is not None:
                    last.close()
                return
            future = None if last is None else asyncio.run_coroutine_threadsafe(last, self.loop)
            self.unusable = ClientClosedError(f"{self.name} is closed; create a new one")
        try:
            if future is not None and threading.current_thread() is not self._thread:
                future.result(timeout)
        except (TimeoutError, concurrent.futures.CancelledError):
            pass  # `last` was not done in time, and is cancelled
        finally:
            _running.discard(self)
            self.loop.call_soon_threadsafe(self.loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join(timeout)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with self._lock:
                self.unusable = self.unusable or ClientClosedError(f"the thread of {self.name} has ended")
            try:
                self._cancel_all()
            finally:
                self.loop.close()

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=_EXIT_SECONDS))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())


_running: weakref.WeakSet[IoThread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for thread in list(_running):
        thread.close_at_exit()


def _mark_child() -> None:
    for thread in list(_running):
        thread.disown_in_child()
    _running.clear()


os.register_at_fork(after_in_child=_mark_child)
