"""Long polls: when they end, and that they unregister from their partitions."""

from __future__ import annotations

import asyncio

import pytest

from stratalog.broker.partition import Partition
from stratalog.broker.waiting import WaitingFetch
from tests.broker.data_lab import DataLab


@pytest.fixture
def partitions(data_lab: DataLab) -> list[Partition]:
    data_lab.create("topic", 2)
    return [data_lab.partition("topic", index) for index in range(2)]


def waits(partitions: list[Partition]) -> bool:
    return any(partition.waiting for partition in partitions)


def test_wait_ends_when_enough_bytes_were_appended(data_lab: DataLab, partitions: list[Partition]) -> None:
    async def scenario() -> None:
        size = len(data_lab.append("topic", b"value"))
        waiting = WaitingFetch(partitions, 2 * size, 60)
        data_lab.append("topic", b"value")
        await asyncio.sleep(0)
        assert not waiting.done.done()
        data_lab.append("topic", b"value", partition=1)
        assert waiting.done.done()
        assert not waits(partitions)

    asyncio.run(scenario())


def test_wait_ends_after_its_time(partitions: list[Partition]) -> None:
    async def scenario() -> None:
        waiting = WaitingFetch(partitions, 10**9, 0.01)
        await asyncio.wait_for(waiting.done, 10)
        assert not waits(partitions)

    asyncio.run(scenario())


def test_wait_of_a_disconnected_client_ends(data_lab: DataLab, partitions: list[Partition]) -> None:
    async def scenario() -> None:
        waiting = WaitingFetch(partitions, 1, 60)

        async def poll() -> None:
            await waiting.done

        task = asyncio.create_task(poll())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        assert not waits(partitions)
        data_lab.append("topic", b"value")
        waiting.finish()

    asyncio.run(scenario())


def test_deleted_partition_ends_the_wait(partitions: list[Partition]) -> None:
    async def scenario() -> None:
        waiting = WaitingFetch(partitions, 10**9, 60)
        partitions[1].end_waiting()
        assert waiting.done.done()
        assert not waits(partitions)

    asyncio.run(scenario())


def test_several_fetches_wait_for_one_partition(data_lab: DataLab, partitions: list[Partition]) -> None:
    async def scenario() -> None:
        all_of_them = [WaitingFetch(partitions[:1], missing, 60) for missing in (1, 10**9, 1)]
        data_lab.append("topic", b"value")
        assert [each.done.done() for each in all_of_them] == [True, False, True]
        assert partitions[0].waiting == {all_of_them[1]}
        all_of_them[1].finish()

    asyncio.run(scenario())
