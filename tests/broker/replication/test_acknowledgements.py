"""acks=all: when a Produce request is answered, and with which errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.broker.replication.acknowledgements import PendingReplication, Results
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.produce import ProducedPartition
from tests.broker.replication.partition_lab import PartitionLab, state

LONG_MS = 60_000


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[PartitionLab]:
    with PartitionLab(tmp_path / "data") as running:
        running.lead()
        yield running


def wait(pending: PendingReplication, results: Results) -> asyncio.Future[list[bytes]]:
    """Wait for the replicas, and respond with the error codes of the partitions."""

    def respond() -> list[bytes]:
        return [bytes([each.error_code]) for _, partitions in pending.with_errors(results) for each in partitions]

    return pending.wait(respond)  # type: ignore[arg-type, return-value]


def codes(*errors: ErrorCode) -> list[bytes]:
    return [bytes([int(error)]) for error in errors]


def test_a_response_is_sent_before_its_last_partition_is_replicated(lab: PartitionLab) -> None:
    async def run() -> None:
        pending = PendingReplication(LONG_MS)
        produced = [ProducedPartition(index) for index in range(2)]
        for each in produced:
            pending.add(lab.partition, lab.append(b"value"), each)
        response = wait(pending, [("topic", produced)])
        for offset, is_done in ((1, False), (2, True)):
            lab.fetch(2, offset)
            lab.fetch(3, offset)
            assert response.done() is is_done
        assert await response == codes(ErrorCode.none, ErrorCode.none)

    asyncio.run(run())


def test_nothing_to_wait_for_makes_a_request_wait(lab: PartitionLab) -> None:
    pending = PendingReplication(LONG_MS)
    assert not pending.is_waiting
    end = lab.append(b"value")
    for replica in (2, 3):
        lab.fetch(replica, end)
    pending.add(lab.partition, end, ProducedPartition(0))
    assert not pending.is_waiting, "the replicas have it already"


def test_replicas_that_never_copy_hold_a_request_for_ever(lab: PartitionLab) -> None:
    async def run() -> None:
        pending = PendingReplication(1)
        replicated, late = ProducedPartition(0), ProducedPartition(1)
        end = lab.append(b"value")
        for replica in (2, 3):
            lab.fetch(replica, end)
        pending.add(lab.partition, end, replicated)
        pending.add(lab.partition, lab.append(b"value"), late)
        response = wait(pending, [("topic", [replicated, late])])
        assert await response == codes(ErrorCode.none, ErrorCode.request_timed_out)
        for replica in (2, 3):
            lab.fetch(replica, 2)  # nobody waits for it any more

    asyncio.run(run())


def test_a_change_of_leader_during_the_appends_is_answered_as_success(lab: PartitionLab) -> None:
    async def run() -> None:
        pending = PendingReplication(LONG_MS)
        produced = ProducedPartition(0)
        pending.add(lab.partition, lab.append(b"value"), produced)
        lab.partition.follow(state(leader=2, epoch=1))
        assert pending.is_waiting, "the error is still to be reported"
        response = wait(pending, [("topic", [produced])])
        assert await response == codes(ErrorCode.not_leader_or_follower)

    asyncio.run(run())


def test_a_client_that_has_gone_leaves_entries_behind(lab: PartitionLab) -> None:
    async def run() -> None:
        pending = PendingReplication(LONG_MS)
        produced = ProducedPartition(0)
        pending.add(lab.partition, lab.append(b"value"), produced)
        response = wait(pending, [("topic", [produced])])
        response.cancel()
        await asyncio.sleep(0)
        assert not pending.is_waiting
        for replica in (2, 3):
            lab.fetch(replica, 1)

    asyncio.run(run())


@pytest.mark.parametrize("timeout_ms", [-1, 0])
def test_a_timeout_of_nothing_is_taken_for_none(lab: PartitionLab, timeout_ms: int) -> None:
    async def run() -> None:
        pending = PendingReplication(timeout_ms)
        produced = ProducedPartition(0)
        pending.add(lab.partition, lab.append(b"value"), produced)
        response = wait(pending, [("topic", [produced])])
        assert await response == codes(ErrorCode.request_timed_out)

    asyncio.run(run())
