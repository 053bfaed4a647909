"""Stopping worker threads: no write is lost, and a check for a disconnected client delays no stop."""

from __future__ import annotations

import asyncio
import gzip
import threading

import pytest

from stratalog.broker.worker_threads import WorkerThreads
from stratalog.errors import AbandonedError
from stratalog.records.compression import decompress_in_pieces
from stratalog.records.format import Codec

SECONDS = 30


def test_a_check_that_does_not_end_delays_the_stop() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def check() -> None:
        begun.set()
        may_end.wait(SECONDS)

    async def scenario() -> None:
        threads = WorkerThreads()
        work = asyncio.ensure_future(threads.check_large(check))
        try:
            await asyncio.to_thread(begun.wait, SECONDS)
            assert threads.close(check_grace_seconds=0) == 1
        finally:
            may_end.set()
        await work

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["check", "check_large", "look_up"])
def test_decompression_for_a_disconnected_client_continues_after_the_stop(kind: str) -> None:
    begun, is_too_late = threading.Event(), threading.Event()
    packed = gzip.compress(b"") * 100

    def check() -> None:
        while not is_too_late.is_set():
            list(decompress_in_pieces(Codec.GZIP, packed, 1000))
            begun.set()

    async def scenario() -> None:
        threads = WorkerThreads()
        work = asyncio.ensure_future(getattr(threads, kind)(check))
        await asyncio.to_thread(begun.wait, SECONDS)
        timer = threading.Timer(SECONDS, is_too_late.set)
        timer.start()
        try:
            assert await asyncio.to_thread(threads.close) == 0
        finally:
            timer.cancel()
        with pytest.raises(AbandonedError):
            await work

    asyncio.run(scenario())


def test_stop_does_not_wait_for_a_running_flush() -> None:
    begun, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def flush() -> None:
        begun.set()
        may_end.wait(SECONDS)
        order.append("flushed")

    def close(threads: WorkerThreads) -> None:
        may_end.set()
        threads.close(check_grace_seconds=0)
        order.append("closed")

    async def scenario() -> None:
        threads = WorkerThreads()
        work = asyncio.ensure_future(threads.wait_for_disk(flush))
        await asyncio.to_thread(begun.wait, SECONDS)
        await asyncio.to_thread(close, threads)
        await work

    asyncio.run(scenario())
    assert order == ["flushed", "closed"]
