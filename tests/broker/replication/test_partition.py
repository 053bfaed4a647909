"""A replica in its roles: what a leader serves, and what it does not serve any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from stratalog.broker.waiting import WaitingFetch
from stratalog.errors import NotLeaderError
from stratalog.protocol.error_codes import ErrorCode
from tests.broker.replication.partition_lab import PartitionLab, state


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[PartitionLab]:
    with PartitionLab(tmp_path / "data") as running:
        yield running


def outcomes_of(lab: PartitionLab, *offsets: int) -> list[tuple[int, ErrorCode]]:
    """Wait for the replication of these offsets, and return the list to which the outcomes are added."""
    outcomes: list[tuple[int, ErrorCode]] = []
    for offset in offsets:
        lab.partition.when_replicated(offset, partial(_note, outcomes, offset))
    return outcomes


def _note(outcomes: list[tuple[int, ErrorCode]], offset: int, error: ErrorCode) -> None:
    outcomes.append((offset, error))


def test_records_are_acknowledged_before_the_in_sync_replicas_have_them(lab: PartitionLab) -> None:
    partition = lab.lead()
    first, second = lab.append(b"1", b"2"), lab.append(b"3")
    outcomes = outcomes_of(lab, first, second)
    lab.fetch(2, second)
    assert (partition.high_watermark, outcomes) == (0, [])
    lab.fetch(3, first)
    assert (partition.high_watermark, outcomes) == (first, [(first, ErrorCode.none)])
    lab.fetch(3, second)
    assert outcomes == [(first, ErrorCode.none), (second, ErrorCode.none)]
    assert outcomes_of(lab, second) == [(second, ErrorCode.none)], "it is replicated already"


def test_a_broker_without_its_lease_serves_its_partitions(lab: PartitionLab) -> None:
    partition = lab.lead()
    lab.append(b"1")
    lab.has_lease = False
    assert partition.unavailable is ErrorCode.not_leader_or_follower
    with pytest.raises(NotLeaderError, match="broker 1 does not lead topic-0 now"):
        lab.append(b"2")
    assert partition.log.log_end_offset == 1
    lab.has_lease = True
    lab.append(b"2")


def test_a_follower_takes_records_of_clients(lab: PartitionLab) -> None:
    lab.partition.follow(state(leader=2))
    with pytest.raises(NotLeaderError):
        lab.append(b"1")
    assert lab.partition.unavailable is ErrorCode.not_leader_or_follower


def test_a_deposed_leader_keeps_producers_waiting(lab: PartitionLab) -> None:
    partition = lab.lead()
    outcomes = outcomes_of(lab, lab.append(b"1"))
    partition.resign()
    assert outcomes == [(1, ErrorCode.not_leader_or_follower)]


def test_producers_wait_for_replicas_that_have_left_the_isr(lab: PartitionLab) -> None:
    partition = lab.lead()
    outcomes = outcomes_of(lab, lab.append(b"1"))
    partition.learn(state(isr=(1,), partition_epoch=1))
    assert outcomes == [(1, ErrorCode.not_enough_replicas_after_append)]
    assert (partition.in_sync_count, partition.required_in_sync) == (1, 2)
    assert partition.high_watermark == 0, "replicas outside the ISR may still be elected"


def test_a_smaller_isr_does_not_commit_what_its_members_have(lab: PartitionLab) -> None:
    partition = lab.lead()
    end = lab.append(b"1")
    lab.fetch(2, end)
    partition.learn(state(isr=(1, 2), partition_epoch=1))
    assert partition.high_watermark == end


def test_a_topic_with_fewer_replicas_than_min_insync_takes_no_records(lab: PartitionLab) -> None:
    partition = lab.lead(state(isr=(1,), replicas=(1,), min_insync=2))
    assert partition.required_in_sync == 1
    assert lab.append(b"1") == partition.high_watermark


def test_a_fetch_from_before_a_restart_counts(lab: PartitionLab) -> None:
    partition = lab.lead()
    end = lab.append(b"1")
    lab.fetch(3, end)
    lab.registered[2] = 22
    for claimed in (2, -1, 2**62):
        assert not lab.fetch(2, end, broker_epoch=claimed)
    assert partition.high_watermark == 0
    assert lab.fetch(2, end, broker_epoch=22)
    assert partition.high_watermark == end


def test_a_broker_that_is_no_replica_moves_the_high_watermark(lab: PartitionLab) -> None:
    partition = lab.lead(state(isr=(1, 2), replicas=(1, 2)))
    end = lab.append(b"1")
    assert not lab.fetch(7, end)
    assert partition.high_watermark == 0


def test_a_follower_outside_the_isr_is_never_proposed(lab: PartitionLab) -> None:
    lab.lead(state(isr=(1, 2)))
    end = lab.append(b"1")
    lab.fetch(2, end)
    assert lab.caught_up == []
    lab.fetch(3, end)
    assert lab.caught_up == [3]


def test_a_new_leader_answers_with_a_high_watermark_that_is_too_low(lab: PartitionLab) -> None:
    lab.lead()
    lab.append(b"1")
    partition = lab.lead(state(epoch=1))
    assert partition.high_watermark == 0
    assert not partition.is_confirmed, "the old leader's clients may have seen record 0"
    for replica in (2, 3):
        lab.fetch(replica, 1)
    assert partition.is_confirmed


def test_a_new_epoch_forgets_the_high_watermark(lab: PartitionLab) -> None:
    lab.lead()
    end = lab.append(b"1")
    for replica in (2, 3):
        lab.fetch(replica, end)
    lab.partition.follow(state(leader=2, epoch=1))
    assert lab.partition.high_watermark == end
    partition = lab.lead(state(epoch=2))
    assert partition.high_watermark == end


def test_a_saved_high_watermark_points_outside_the_log(lab: PartitionLab) -> None:
    lab.lead(state(isr=(1,), replicas=(1,)))
    lab.append(b"1", b"2")
    partition = lab.partition
    for saved, restored in ((99, 2), (-5, 0), (1, 1)):
        partition.restore_high_watermark(saved)
        assert partition.high_watermark == partition.log.high_watermark == restored


def test_retention_and_compaction_do_not_learn_of_the_high_watermark(lab: PartitionLab) -> None:
    partition = lab.lead()
    end = lab.append(b"1")
    for replica in (2, 3):
        lab.fetch(replica, end)
    assert partition.log.high_watermark == partition.high_watermark == end


def test_committed_readers_read_past_the_high_watermark(lab: PartitionLab) -> None:
    partition = lab.lead()
    lab.append(b"1")
    assert partition.last_stable_offset == partition.high_watermark == 0


def test_the_low_watermark_ignores_replicas_that_have_not_fetched(lab: PartitionLab) -> None:
    partition = lab.lead()
    end = lab.append(b"1", b"2")
    for replica in (2, 3):
        lab.fetch(replica, end)
    partition.log.advance_start(2)
    assert partition.low_watermark == 0
    for replica, start in ((2, 2), (3, 1)):
        partition.follower_fetched(replica, replica, end, start)
    assert partition.low_watermark == 1


def test_consumers_are_not_woken_when_records_are_committed(lab: PartitionLab) -> None:
    async def run() -> None:
        partition = lab.lead()
        consumer = WaitingFetch([partition], 1, 60)
        follower = WaitingFetch([partition], 1, 60, is_follower=True)
        end = lab.append(b"1")
        assert (consumer.done.done(), follower.done.done()) == (False, True)
        for replica in (2, 3):
            lab.fetch(replica, end)
        assert consumer.done.done()

    asyncio.run(run())


def test_waiting_fetches_outlast_a_leadership(lab: PartitionLab) -> None:
    async def run() -> None:
        partition = lab.lead()
        waiting = [WaitingFetch([partition], 1, 60, is_follower=is_follower) for is_follower in (True, False)]
        partition.resign()
        assert [fetch.done.done() for fetch in waiting] == [True, True]

    asyncio.run(run())
