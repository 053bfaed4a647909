"""Requests whose clients have disconnected: they are completed, within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from stratalog.broker.detached_requests import DetachedRequests
from stratalog.net.response_queue import Response


class Work:
    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.ended = asyncio.Event()

    def start(self, error: Exception | None = None) -> Coroutine[None, None, Response]:
        async def work() -> Response:
            await self.may_end.wait()
            self.ended.set()
            if error is not None:
                raise error
            return [b"done"]

        return work()


def test_a_client_that_waits_gets_its_response() -> None:
    async def scenario() -> None:
        work = Work()
        response = DetachedRequests().start(work.start(), 100)
        work.may_end.set()
        assert await response == [b"done"]

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [None, ValueError("nobody hears this")])
def test_work_continues_without_its_client(error: Exception | None, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        work = Work()
        DetachedRequests().start(work.start(error), 100).cancel()
        await asyncio.sleep(0)
        work.may_end.set()
        await asyncio.wait_for(work.ended.wait(), 10)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert not caplog.records


def test_requests_of_disconnected_clients_are_limited_until_they_end() -> None:
    async def scenario() -> None:
        requests = DetachedRequests(most_abandoned_bytes=250)
        works = [Work() for _ in range(3)]
        for work in works:
            requests.start(work.start(), 100).cancel()
            await asyncio.sleep(0)
        for work in works:
            work.may_end.set()
        await asyncio.wait_for(works[1].ended.wait(), 10)
        await asyncio.sleep(0)
        assert [work.ended.is_set() for work in works] == [True, True, False]
        late = Work()
        requests.start(late.start(), 200).cancel()
        await asyncio.sleep(0)
        late.may_end.set()
        await asyncio.wait_for(late.ended.wait(), 10)

    asyncio.run(scenario())


def test_no_request_continues_after_close() -> None:
    async def scenario() -> None:
        work, requests = Work(), DetachedRequests()
        response = requests.start(work.start(), 100)
        requests.close()
        with pytest.raises(asyncio.CancelledError):
            await response
        assert not work.ended.is_set()

    asyncio.run(scenario())
