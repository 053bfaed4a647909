"""Responses that are many times longer than their requests: one at a time, in portions, and only while there is
room."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.broker.dispatch import LARGEST_WITHOUT_TURN
from stratalog.broker.requests import LongReply
from stratalog.errors import MalformedRequestError
from stratalog.net import held_memory
from stratalog.net.connection import RefusedConnectionError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.encoding import Elements
from tests.broker.apis.config_lab import ConfigLab
from tests.broker.bad_input.client import RawClient
from tests.broker.broker_thread import BrokerThread
from tests.broker.data_lab import DataLab
from tests.protocol.kio_messages import framed, request_frame

GROUP = 32
VERSION = 4
LONG_NAME = "x" * LARGEST_WITHOUT_TURN
COUNT = 1000


def ask_for_groups(count: int) -> dict[str, Any]:
    resources = [{"resource_type": GROUP, "resource_name": f"group-{number}"} for number in range(count)]
    return {"resources": resources, "include_synonyms": True, "include_documentation": True}


LARGE_REQUEST = {"resources": [{"resource_type": GROUP, "resource_name": LONG_NAME}]}
SMALL_REQUEST = {"resources": [{"resource_type": GROUP, "resource_name": "group"}]}


class CountingHandler:
    """Returns long replies, and counts how many are being encoded."""

    def __init__(self) -> None:
        self.begun = 0
        self.under_way = 0
        self.most_under_way = 0

    def __call__(self, request: Any, context: object) -> LongReply:
        self.begun += 1
        return LongReply(results=Elements(COUNT, self._results()))

    def _results(self) -> Iterator[dict[str, Any]]:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            for number in range(COUNT):
                yield {"resource_type": GROUP, "resource_name": str(number), "error_message": "", "configs": ()}
        finally:
            self.under_way -= 1


@pytest.fixture
def handler(data_lab: DataLab) -> CountingHandler:
    handler = CountingHandler()
    data_lab.routes[ApiKey.DESCRIBE_CONFIGS] = handler
    return handler


def names(response: Any) -> list[str]:
    return [result.resource_name for result in response.results]


ALL_NAMES = [str(number) for number in range(COUNT)]


def test_long_responses_are_held_at_the_same_time(data_lab: DataLab, handler: CountingHandler) -> None:
    async def scenario() -> list[Any]:
        asking = [data_lab.asking(ApiKey.DESCRIBE_CONFIGS, LARGE_REQUEST, VERSION) for _ in range(5)]
        return await asyncio.gather(*asking)

    assert [names(response) for response in asyncio.run(scenario())] == [ALL_NAMES] * 5
    assert (handler.begun, handler.most_under_way) == (5, 1)


@pytest.mark.parametrize("request_values", [SMALL_REQUEST, LARGE_REQUEST])
def test_no_other_long_response_begins_while_one_is_encoded(
    data_lab: DataLab, handler: CountingHandler, request_values: dict[str, Any]
) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += handler.under_way
            await asyncio.sleep(0)

    async def scenario() -> None:
        other = asyncio.create_task(others())
        assert names(await data_lab.asking(ApiKey.DESCRIBE_CONFIGS, request_values, VERSION)) == ALL_NAMES
        other.cancel()

    asyncio.run(scenario())
    assert turns >= COUNT // 20 - 1


def test_a_client_that_goes_away_keeps_its_turn(data_lab: DataLab, handler: CountingHandler) -> None:
    async def scenario() -> None:
        frame = request_frame(ApiKey.DESCRIBE_CONFIGS, VERSION, LARGE_REQUEST)
        first, second = (asyncio.ensure_future(data_lab.serve(frame)) for _ in range(2))
        while not handler.under_way:
            await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        assert names(await data_lab.asking(ApiKey.DESCRIBE_CONFIGS, LARGE_REQUEST, VERSION)) == ALL_NAMES

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert handler.begun == 2


def test_a_handler_that_waits_for_a_disk_keeps_its_turn(data_lab: DataLab, handler: CountingHandler) -> None:
    may_end = asyncio.Event()

    async def create(request: Any, context: object) -> LongReply:
        await may_end.wait()
        return LongReply(topics=Elements(0, ()))

    data_lab.routes[ApiKey.CREATE_TOPICS] = create
    topic = {"name": LONG_NAME, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}

    async def scenario() -> None:
        creating = asyncio.create_task(data_lab.asking(ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout": 1}))
        await data_lab.asking(ApiKey.DESCRIBE_CONFIGS, LARGE_REQUEST, VERSION)
        assert not creating.done()
        may_end.set()
        assert (await creating).topics == ()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_large_request_that_can_not_be_read_gets_an_answer(data_lab: DataLab, handler: CountingHandler) -> None:
    async def scenario() -> None:
        whole = request_frame(ApiKey.DESCRIBE_CONFIGS, VERSION, LARGE_REQUEST)
        with pytest.raises(RefusedConnectionError, match="a request that can't be read") as caught:
            await data_lab.serve(framed(whole[4:-2]))
        assert isinstance(caught.value.__cause__, MalformedRequestError)
        assert handler.begun == 0

    asyncio.run(scenario())


def test_long_response_takes_no_more_memory_than_its_bytes(data_lab: DataLab, tmp_path: Path) -> None:
    """The broker holds the bytes of the response, and not objects that take thirty times as much."""
    values = ask_for_groups(1000)
    with ConfigLab(tmp_path / "configs") as configs:
        data_lab.routes |= configs.apis.routes()
        data_lab.ask(ApiKey.DESCRIBE_CONFIGS, values)  # objects that are created only once
        frame = request_frame(ApiKey.DESCRIBE_CONFIGS, VERSION, values)

        async def scenario() -> int:
            tracemalloc.start()
            response = await data_lab.serve(frame)
            return sum(len(part) for part in response)

        try:
            size = asyncio.run(scenario())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 2 * size


def test_unread_responses_are_encoded_without_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads gets its response: clients that don't read for too long are disconnected."""
    monkeypatch.setattr(held_memory, "PATIENCE_SECONDS", 0.0)
    limit = 2 * 1024 * 1024
    most = 0
    hold = held_memory.HeldMemory.hold

    def watched(memory: held_memory.HeldMemory, *of: Any, **more: Any) -> None:
        nonlocal most
        hold(memory, *of, **more)
        most = max(most, memory.held)

    monkeypatch.setattr(held_memory.HeldMemory, "hold", watched)
    settings: dict[str, object] = {
        "queued.max.request.bytes": limit,
        "socket.request.max.bytes": limit,
        "socket.send.buffer.bytes": 4096,
    }
    request = request_frame(ApiKey.DESCRIBE_CONFIGS, VERSION, ask_for_groups(1500))
    with BrokerThread(tmp_path / "data", settings) as broker:
        silent = [RawClient(broker.port, receive_buffer=4096) for _ in range(12)]
        try:
            for client in silent:
                client.send(request)
            with RawClient(broker.port) as reading:
                reading.send(request)
                size = len(reading.receive())
        finally:
            for client in silent:
                client.close()
    assert limit < 12 * size
    assert most < limit + 2 * size
