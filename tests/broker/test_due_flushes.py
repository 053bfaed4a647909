"""Flushes of the state topics that responses wait for, also after one has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stratalog.broker.due_flushes import DueFlushes
from stratalog.errors import LogClosedError, StorageError


class FakeLog:
    path = "orders-0"

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1
        if self._errors:
            raise self._errors.pop(0)


async def in_a_thread(call: Callable[[], None]) -> None:
    await asyncio.sleep(0)
    call()


async def outcome(flushes: DueFlushes) -> Any:
    pending = flushes.pending()
    return "nothing is due" if pending is None else await pending


def test_a_response_leaves_before_the_flush_that_it_needs() -> None:
    async def scenario() -> None:
        flushes, first, second = DueFlushes(in_a_thread), FakeLog(), FakeLog()
        assert await outcome(flushes) == "nothing is due"
        flushes.add(first)  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(outcome(flushes))
        await asyncio.sleep(0)
        flushes.add(second)  # type: ignore[arg-type]
        assert await outcome(flushes) is None
        assert waiting.done()
        assert (first.flushes, second.flushes) == (1, 1)
        assert await outcome(flushes) == "nothing is due"

    asyncio.run(scenario())


def test_state_whose_flush_failed_passes_for_durable() -> None:
    async def scenario() -> None:
        failure = StorageError("disk full")
        flushes, log = DueFlushes(in_a_thread), FakeLog(failure, failure)
        flushes.add(log)  # type: ignore[arg-type]
        assert await outcome(flushes) is failure
        assert await outcome(flushes) is failure, "the flush is tried again, and fails again"
        assert await outcome(flushes) is None
        assert await outcome(flushes) == "nothing is due"
        assert log.flushes == 3

    asyncio.run(scenario())


def test_a_deleted_topic_holds_up_every_response() -> None:
    async def scenario() -> None:
        flushes = DueFlushes(in_a_thread)
        flushes.add(FakeLog(LogClosedError("deleted")))  # type: ignore[arg-type]
        assert await outcome(flushes) is None
        assert await outcome(flushes) == "nothing is due"

    asyncio.run(scenario())
