"""A thousand connections, a thousand partitions and a million records at once: no record is missing or misplaced.

Half of the connections produce, the other half wait for records in long polls. Each has two partitions.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.protocol.api_keys import ApiKey
from stratalog.records import Record, build_batch, read_records
from tests.broker.process import BrokerProcess
from tests.clients.admin import create_topic
from tests.protocol.kio_messages import SIZE, read_response, request_frame

PARTITIONS = 1000
CONNECTIONS = 1000
RECORDS = 1_000_000
EACH = RECORDS // PARTITIONS
BATCH = 100
PAIRS = [(first, first + 1) for first in range(0, PARTITIONS, 2)]
TOPIC = "wide"
PRODUCE_VERSION, FETCH_VERSION = 9, 12  # flexible versions that still have topic names
SECONDS = 240


@pytest.fixture
def broker_with_a_thousand_partitions(tmp_path: Path) -> Iterator[BrokerProcess]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CONNECTIONS + 300
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    with BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker.address, TOPIC, PARTITIONS)
        yield broker
        assert broker.errors() == []


class Wire:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Wire:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, key: ApiKey, version: int, values: dict[str, Any]) -> Any:
        self._writer.write(request_frame(key, version, values))
        (size,) = SIZE.unpack(await self._reader.readexactly(SIZE.size))
        _, response = read_response(key, version, await self._reader.readexactly(size))
        return response

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def batch(partition: int, start: int) -> bytes:
    records = [Record(timestamp=1, key=b"%d" % partition, value=b"%d" % n) for n in range(start, start + BATCH)]
    return bytes(build_batch(records))


async def produce(wire: Wire, pair: tuple[int, int]) -> None:
    for start in range(0, EACH, BATCH):
        parts = [{"index": partition, "records": batch(partition, start)} for partition in pair]
        topic = {"name": TOPIC, "partition_data": parts}
        response = await wire.ask(
            ApiKey.PRODUCE, PRODUCE_VERSION, {"acks": -1, "timeout": 60_000, "topic_data": [topic]}
        )
        (answered,) = response.responses
        assert [(one.index, one.error_code, one.base_offset) for one in answered.partition_responses] == [
            (partition, 0, start) for partition in pair
        ]


async def consume(wire: Wire, pair: tuple[int, int]) -> int:
    """Return the number of records, after checking that each is the expected one."""
    offsets = dict.fromkeys(pair, 0)
    while min(offsets.values()) < EACH:
        parts = [
            {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
            for partition, offset in offsets.items()
        ]
        topics = [{"topic": TOPIC, "partitions": parts}]
        wanted = {"replica_id": -1, "max_wait": 500, "min_bytes": 4096, "max_bytes": 1 << 22, "session_epoch": -1}
        response = await wire.ask(ApiKey.FETCH, FETCH_VERSION, {**wanted, "topics": topics})
        assert response.error_code == 0
        (answered,) = response.responses
        for one in answered.partitions:
            assert one.error_code == 0
            for record in read_records(one.records or b""):
                number = offsets[one.partition_index]
                assert (record.offset, record.key, record.value) == (
                    number,
                    b"%d" % one.partition_index,
                    b"%d" % number,
                )
                offsets[one.partition_index] += 1
    return sum(offsets.values())


async def run(port: int) -> int:
    wires = [await Wire.open(port) for _ in range(CONNECTIONS)]
    consumers, producers = wires[: len(PAIRS)], wires[len(PAIRS) :]
    assert len(producers) == len(PAIRS)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        reading = [group.create_task(consume(wire, pair)) for wire, pair in zip(consumers, PAIRS, strict=True)]
        for wire, pair in zip(producers, PAIRS, strict=True):
            group.create_task(produce(wire, pair))
    for wire in wires:
        await wire.close()
    return sum(task.result() for task in reading)


@pytest.mark.slow
def test_a_thousand_connections_and_partitions_and_a_million_records(
    broker_with_a_thousand_partitions: BrokerProcess,
) -> None:
    assert asyncio.run(run(broker_with_a_thousand_partitions.port)) == RECORDS
