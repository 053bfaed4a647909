"""Power cuts during transactions.

If every log is flushed at each append, a power cut leaves what kill -9 leaves. Otherwise rows may be lost, but no
uncommitted row becomes visible, and no transaction holds back readers permanently.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.broker.transactions.state import ProducerIdAndEpoch
from stratalog.broker.transactions.transactions_topic import NAME
from stratalog.broker.transactions.two_phase import PreparedProducer
from stratalog.storage import Log
from tests.broker.metadata.registry_lab import killed_copy
from tests.broker.transactions.power_cuts import (
    IDS,
    PARTITIONS,
    TOPIC,
    Group,
    PowerCutsOfTransactions,
    Row,
    World,
)

IMAGES = 15


def check_goes_on(world: World) -> None:
    """Assert that no transaction stays open, and that every id can be used."""
    world.let_time_pass()
    for partition in world.orders():
        assert partition.last_stable_offset == partition.high_watermark, f"{partition} is held up"
    before = world.visible()
    rows = [(0, b"new"), (1, b"new"), (1, b"newer")]
    members = [world.begin(transactional_id) for transactional_id in IDS]
    for member in members:
        world.write(member, rows)
        world.prepare(member, 1000)
    world.finish(members, commit=True)
    assert sorted(world.visible()) == sorted([*before, *rows * len(IDS)])


@pytest.mark.parametrize("seed", [0, 1, 100, 102])  # the last two notice a marker that outlives its decision
def test_flushed_transactions_are_atomic_after_a_power_cut(scratch: Path, seed: int) -> None:
    def check(world: World, groups: list[Group]) -> None:
        visible = seen_once(world)
        for group in groups:
            rows = group.all_rows
            if group.state == "committed":
                assert rows <= visible, group
            elif group.state == "deciding":
                assert rows <= visible or not rows & visible, group
            else:
                assert not rows & visible, group
        check_goes_on(world)

    PowerCutsOfTransactions(scratch, seed, IMAGES, flushes=True).run(check)


@pytest.mark.parametrize("seed", range(10, 16))
def test_unflushed_transactions_show_no_uncommitted_rows_after_a_power_cut(scratch: Path, seed: int) -> None:
    def check(world: World, groups: list[Group]) -> None:
        visible = seen_once(world)
        for group in groups:
            if group.state in ("undecided", "aborted"):
                assert not group.all_rows & visible, group
        check_goes_on(world)

    PowerCutsOfTransactions(scratch, seed, IMAGES, flushes=False).run(check)


def seen_once(world: World) -> set[Row]:
    world.let_time_pass()
    found = world.visible()
    assert len(set(found)) == len(found)
    return set(found)


def cut(data: Path, partition: str, end: int) -> None:
    """Truncate a log, as if nothing from this offset on had reached the disk."""
    with Log.open(data / partition) as log:
        log.truncate(end)


def ended_once(world: World) -> tuple[PreparedProducer, int]:
    """Commit a transaction. Return it, and the offset of its PrepareCommit in __transaction_state."""
    world.topics.create(TOPIC, PARTITIONS, {})
    member = world.begin("task-0")
    world.write(member, [(0, b"a"), (1, b"b")])
    assert world.two_phase.prepare(member, 1000) is None
    states = world.topics.partition(NAME, 0)
    assert states is not None
    decision = states.log.log_end_offset
    world.finish([member], commit=True)
    return member, decision


def test_lost_marker_of_a_durable_commit_is_written_again(scratch: Path) -> None:
    with World(scratch / "live") as world:
        ended_once(world)
        data = killed_copy(scratch / "live", scratch / "cut")
    cut(data, "orders-1", 1)
    with World(data) as world:
        assert seen_once(world) == {(0, b"a"), (1, b"b")}
        check_goes_on(world)


def test_rows_of_the_next_transaction_are_not_committed_by_the_previous_end(scratch: Path) -> None:
    """The last record left in __transaction_state is the previous PrepareCommit, with the next transaction's epoch."""
    with World(scratch / "live") as world:
        member, decision = ended_once(world)
        following = PreparedProducer(
            "task-0", ProducerIdAndEpoch(member.producer.producer_id, member.producer.epoch + 1)
        )
        world.write(following, [(0, b"never decided")])
        data = killed_copy(scratch / "live", scratch / "cut")
    cut(data, f"{NAME}-0", decision + 1)
    with World(data) as world:
        assert seen_once(world) == {(0, b"a"), (1, b"b")}
        check_goes_on(world)


def test_producer_of_an_aborted_orphan_is_fenced(scratch: Path) -> None:
    """Otherwise it would commit the rest of a transaction whose first rows were aborted."""
    with World(scratch / "live") as world:
        member, decision = ended_once(world)
        following = PreparedProducer(
            "task-0", ProducerIdAndEpoch(member.producer.producer_id, member.producer.epoch + 1)
        )
        world.write(following, [(0, b"lost")])
        data = killed_copy(scratch / "live", scratch / "cut")
    cut(data, f"{NAME}-0", decision + 2)  # keeps the completion too
    with World(data) as world:
        with pytest.raises(AssertionError, match="47"):  # INVALID_PRODUCER_EPOCH
            world.write(following, [(0, b"the rest")])
        assert seen_once(world) == {(0, b"a"), (1, b"b")}
