"""A replica in its roles: what a leader serves, and what it does not serve any more."""

from __future__ import annotations

import asyncio
import logging
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


@pytest.mark.parametrize(
    ("replica", "broker_epoch"), [(2, -1), (2, 1), (2, 3), (2, 2**62), (1, 1), (3, 12), (7, 7), (99, -1)]
)
def test_fetch_that_is_not_from_a_registered_replica_commits_records(
    lab: PartitionLab, replica: int, broker_epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """(3, 12) is a replica that is not registered, (7, 7) a broker without a replica."""
    del lab.registered[3]
    partition = lab.lead(state(isr=(1, 2)))
    outcomes = outcomes_of(lab, lab.append(b"1"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not lab.fetch(replica, 1, broker_epoch=broker_epoch)
    assert (partition.high_watermark, outcomes) == (0, [])
    assert len([record for record in caplog.records if f"claims to be replica {replica} " in record.message]) == 1
    assert lab.fetch(2, 1), "the real follower is refused"
    assert (partition.high_watermark, outcomes) == (1, [(1, ErrorCode.none)])


def test_a_fetch_that_reports_a_new_log_start_offset_is_taken_for_idle(lab: PartitionLab) -> None:
    partition = lab.lead()
    end = lab.append(b"1", b"2")
    for replica in (2, 3):
        lab.fetch(replica, end)
    assert lab.is_idle(2, end, start=0)
    partition.log.advance_start(2)
    assert not lab.is_idle(2, end, start=0), "it does not know the new log start offset"
    assert not lab.is_idle(2, end, start=2), "the leader does not know that it does"
    partition.follower_fetched(2, 2, end, 2)
    assert lab.is_idle(2, end, start=2)


def test_a_follower_counts_as_idle_though_something_is_new(lab: PartitionLab) -> None:
    partition = lab.lead()
    end = lab.append(b"1")
    lab.fetch(2, end)
    assert not lab.is_idle(2, end, high_watermark=1)
    lab.fetch(3, end)
    assert lab.is_idle(2, end)
    assert not lab.is_idle(2, end, high_watermark=0)
    assert not lab.is_idle(2, end, epoch=7)
    assert not lab.is_idle(2, end, broker_epoch=22)
    assert not lab.is_idle(7, end, broker_epoch=7), "it is no replica"
    lab.append(b"2")
    assert not lab.is_idle(2, end)
    partition.learn(state(isr=(1, 3), partition_epoch=1))
    lab.fetch(2, 2)
    lab.fetch(3, 2)
    assert not lab.is_idle(2, 2), "it may join the ISR"
    assert lab.is_idle(3, 2)


def test_an_idle_follower_is_taken_for_a_lagging_one(lab: PartitionLab) -> None:
    partition = lab.lead()
    end = lab.append(b"1")
    for replica in (2, 3):
        lab.fetch(replica, end)
    lab.clock.advance(2000)
    assert lab.is_idle(2, end)
    lab.append(b"2")
    assert partition.leadership is not None
    assert partition.leadership.lagging(2, lab.context.now_ms(), 1000) == [3]


def test_a_follower_that_dies_before_it_joins_holds_records_back_until_the_next_append(lab: PartitionLab) -> None:
    partition = lab.lead(state(isr=(1, 2)))
    lab.fetch(2, 0)
    lab.fetch(3, 0)  # it is about to join, and dies
    end = lab.append(b"1")
    outcomes = outcomes_of(lab, end)
    lab.fetch(2, end)
    assert outcomes == []
    lab.clock.advance(2000)
    assert not lab.is_idle(2, end), "its fetch must move the high watermark"
    lab.fetch(2, end)
    assert (partition.high_watermark, outcomes) == (end, [(end, ErrorCode.none)])
