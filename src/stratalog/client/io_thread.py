"""The one background thread of a client: an event loop, in which all of its network, timers and retries happen.

Other threads hand coroutines and callbacks in. Each coroutine has an outcome: where the client is closed before it is
done, it is cancelled, and who waits for it gets ClientClosedError. After a fork the child's copy is of no use, and says
so when it is used; the parent's goes on. When the interpreter exits, threads that are left are ended first.
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
    """`name` says which client it belongs to: it is the thread's name, and is in messages."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """`loop` is for who needs a special one."""
        self.name = name
        self.loop = asyncio.new_event_loop() if loop is None else loop
        self.unusable: ClientError | None = None  # what check_usable raises; for who looks without a call
        self._lock = threading.RLock()  # between handing something in and closing; a signal handler may do either
        self._at_exit: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _running.add(self)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Its result, for a thread other than this one. What interrupts the wait, cancels it."""
        try:
            self.check_may_wait()
        except RuntimeError:
            coroutine.close()
            raise
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError as error:
            raise ClientClosedError(
                f"{self.name} was closed during the call; what it asked for may have been done"
            ) from error
        except TimeoutError as error:
            if future.done():  # its own
                raise
            future.cancel()
            raise RequestTimeoutError(f"{self.name}: no result within {timeout:g} s") from error
        except BaseException:
            future.cancel()
            raise

    def check_may_wait(self) -> None:
        """Raises RuntimeError in the thread itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"a blocking call in the thread of {self.name} would never end; make it in another thread"
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
        """Raises ClientClosedError or ForkedClientError."""
        if self.unusable is not None:
            raise self._why_unusable()

    def _why_unusable(self) -> ClientError:
        """A new one each time: threads that raise it at the same time would write into one traceback."""
        return ClientClosedError(self.name) if self.unusable is None else type(self.unusable)(*self.unusable.args)

    def at_exit(self, close: Callable[[], None]) -> None:
        """What to call when the interpreter exits with this thread running; it must not take long."""
        self._at_exit = close

    def close_at_exit(self) -> None:
        if self._at_exit is not None:
            self._at_exit()
        self.close(timeout=_EXIT_SECONDS)

    def disown_in_child(self) -> None:
        """Refuse every further call: this is a fork's child, and the thread is the parent's."""
        self._lock = threading.RLock()  # another thread of the parent's may hold it
        self.unusable = ForkedClientError(
            f"{self.name} was made before a fork, and its thread and connections stay with the parent; make a new "
            f"one in this process"
        )

    def close(self, last: Coroutine[Any, Any, object] | None = None, timeout: float | None = None) -> None:
        """Run `last`, for at most `timeout` seconds; cancel all the rest; end the thread. A second call does nothing,
        and so does one in a fork's child."""
        with self._lock:
            if self.unusable is not None:
                if last is not None:
                    last.close()
                return
            future = None if last is None else asyncio.run_coroutine_threadsafe(last, self.loop)
            self.unusable = ClientClosedError(f"{self.name} is closed; make a new one")
        try:
            if future is not None and threading.current_thread() is not self._thread:
                future.result(timeout)
        except (TimeoutError, concurrent.futures.CancelledError):
            pass  # what it could not do in time is cancelled
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
