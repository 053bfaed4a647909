"""Threads for what must not run on the event loop: work that grows with what a client sent, and waiting for a disk.

Each kind of work has threads of its own, so that a client that sends batches of one kind makes only its like wait:

- `check`: batches are inflated, checked and compressed again, up to validation.MAX_HELD bytes each.
- `check_large`: the same past that. One thread, so that at most one such batch is in memory to be compressed again.
- `wait_for_disk`: a roll, a flush.
- `look_up`: offsets by time, for which batches are read and inflated.
- `match_patterns`: topics are looked through for what consumers subscribe to by pattern. One thread: it may wait.

The codecs, the record loops, RE2 and system calls release the GIL, so the event loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class WorkerThreads:
    def __init__(self) -> None:
        self._check = ThreadPoolExecutor(2, thread_name_prefix="stratalog-check")
        self._check_large = ThreadPoolExecutor(1, thread_name_prefix="stratalog-check-large")
        self._disk = ThreadPoolExecutor(4, thread_name_prefix="stratalog-disk")
        self._look_up = ThreadPoolExecutor(2, thread_name_prefix="stratalog-look-up")
        self._match = ThreadPoolExecutor(1, thread_name_prefix="stratalog-match")

    def check(self, call: Callable[[], T]) -> Awaitable[T]:
        return _run(self._check, call)

    def check_large(self, call: Callable[[], T]) -> Awaitable[T]:
        return _run(self._check_large, call)

    def wait_for_disk(self, call: Callable[[], T]) -> Awaitable[T]:
        return _run(self._disk, call)

    def look_up(self, call: Callable[[], T]) -> Awaitable[T]:
        return _run(self._look_up, call)

    def match_patterns(self, call: Callable[[], T]) -> Awaitable[T]:
        return _run(self._match, call)

    def close(self) -> None:
        """Returns when the work that has begun is done; what waits is dropped."""
        for pool in (self._check, self._check_large, self._disk, self._look_up, self._match):
            pool.shutdown(cancel_futures=True)


def _run(pool: Executor, call: Callable[[], T]) -> Awaitable[T]:
    return asyncio.get_running_loop().run_in_executor(pool, call)
