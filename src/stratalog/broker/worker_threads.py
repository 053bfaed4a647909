"""Threads for work that must not run on the event loop: work that grows with what a client sent, and disk waits.

Each kind of work has its own threads, so that a client delays only clients that cause the same kind of work:

- `check`: decompresses batches, checks them and compresses them again, up to
  validation.MAX_HELD_DECOMPRESSED bytes each.
- `check_large`: the same for larger batches. One thread, so at most one such batch is held in memory.
- `wait_for_disk`: rolls and flushes.
- `look_up`: finds offsets by time, for which it reads and decompresses batches.
- `read_ahead`: reads batches that are not in the page cache, so that sending them does not wait for the disk.
- `match_patterns`: matches the topic patterns that consumers subscribe to. One thread: the result may wait.
- `decode`: turns large requests into objects. One thread; it holds the GIL, which the event loop gets in between.

The codecs, the record loops, RE2 and system calls release the GIL, so the event loop continues meanwhile.

A stop waits for the disk, however long that takes. It abandons checks and lookups, whose clients are gone: they raise
AbandonedError at the next piece of a batch. Checks touch no file, so a stop does not wait long for one that continues.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

from stratalog.records import compression

T = TypeVar("T")

CHECK_GRACE_SECONDS = 2.0
"""How long a stop waits for a check to reach the next piece: compressing one piece may take minutes."""


class WorkerThreads:
    def __init__(self) -> None:
        self._stopping = threading.Event()
        may_give_up = partial(compression.abandon_when, self._stopping.is_set)
        self._check = ThreadPoolExecutor(2, "stratalog-check", may_give_up)
        self._check_large = ThreadPoolExecutor(1, "stratalog-check-large", may_give_up)
        self._disk = ThreadPoolExecutor(4, "stratalog-disk")
        self._look_up = ThreadPoolExecutor(2, "stratalog-lookup", may_give_up)
        self._read_ahead = ThreadPoolExecutor(4, "stratalog-read-ahead")
        self._match = ThreadPoolExecutor(1, "stratalog-match")
        self._decode = ThreadPoolExecutor(1, "stratalog-decode")
        self._checks: set[Future[Any]] = set()

    def check(self, call: Callable[[], T]) -> Awaitable[T]:
        return self._run_check(self._check, call)

    def check_large(self, call: Callable[[], T]) -> Awaitable[T]:
        return self._run_check(self._check_large, call)

    def wait_for_disk(self, call: Callable[[], T]) -> Awaitable[T]:
        return _run(self._disk, call)

    def look_up(self, call: Callable[[], T]) -> Awaitable[T]:
        return _run(self._look_up, call)

    def read_ahead(self, call: Callable[[], T]) -> Awaitable[T]:
        return _run(self._read_ahead, call)

    def match_patterns(self, call: Callable[[], T]) -> Awaitable[T]:
        return _run(self._match, call)

    def decode(self, call: Callable[[], T]) -> Awaitable[T]:
        return _run(self._decode, call)

    def close(self, check_grace_seconds: float = CHECK_GRACE_SECONDS) -> int:
        """Return when no thread touches a file any more: how many checks still run. Queued work is dropped."""
        self._stopping.set()
        for pool in (self._check, self._check_large):
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in (self._disk, self._look_up, self._read_ahead, self._match, self._decode):
            pool.shutdown(cancel_futures=True)
        return len(wait(list(self._checks), check_grace_seconds).not_done)

    def _run_check(self, pool: Executor, call: Callable[[], T]) -> Awaitable[T]:
        running = pool.submit(call)
        self._checks.add(running)
        running.add_done_callback(self._checks.discard)
        return asyncio.wrap_future(running)


def _run(pool: Executor, call: Callable[[], T]) -> Awaitable[T]:
    return asyncio.get_running_loop().run_in_executor(pool, call)
