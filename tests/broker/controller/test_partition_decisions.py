from __future__ import annotations

import uuid
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.controller.partition_decisions import (
    has_unhandled_loss,
    imbalanced_partitions,
    next_state,
    preferred_state,
)
from stratalog.broker.metadata.cluster_view import ClusterView, PartitionId, RegisteredBroker
from stratalog.broker.metadata.partition_state import NO_LEADER, PartitionState

BEFORE = PartitionState((0, 1, 2), 0, 5, (0, 1, 2), 10, min_insync=2)


def view(*brokers: RegisteredBroker) -> ClusterView:
    return ClusterView("cluster", {broker.node_id: broker for broker in brokers})


def broker(node_id: int, epoch: int = 0, *, lost_tail: bool = False, is_leaving: bool = False) -> RegisteredBroker:
    return RegisteredBroker(node_id, "host", 9092, epoch or 10 + node_id, lost_tail=lost_tail, is_leaving=is_leaving)


def test_a_healthy_partition_is_written() -> None:
    assert next_state(BEFORE, view(broker(0), broker(1), broker(2))) is BEFORE


def test_a_broker_that_lost_its_tail_is_elected_before_it_leaves_the_isr() -> None:
    after = next_state(BEFORE, view(broker(0, 20, lost_tail=True), broker(1), broker(2)))
    assert (after.leader, after.isr, after.leader_epoch) == (1, (1, 2), 6)


def test_the_only_replica_is_elected_again_and_again_until_it_is_admitted() -> None:
    alone = PartitionState((0,), 0, 5, (0,), 10)
    lossy = broker(0, 20, lost_tail=True)
    assert has_unhandled_loss(alone, lossy)
    after = next_state(alone, view(lossy))
    assert (after.leader, after.isr, after.leader_epoch, after.leader_broker_epoch) == (0, (0,), 6, 20)
    assert next_state(after, view(lossy)) is after
    assert not has_unhandled_loss(after, lossy)


def test_a_broker_that_shuts_down_keeps_its_leaderships() -> None:
    after = next_state(BEFORE, view(broker(0, is_leaving=True), broker(1), broker(2)))
    assert (after.leader, after.isr) == (1, (1, 2))


def test_a_partition_whose_replicas_were_all_dead_at_its_creation_never_gets_a_leader() -> None:
    unborn = PartitionState((0, 1), NO_LEADER, -1, (), partition_epoch=3)
    assert next_state(unborn, view(broker(2))) == unborn
    born = next_state(unborn, view(broker(1)))
    assert (born.leader, born.isr, born.leader_epoch, born.partition_epoch) == (1, (1,), 0, 3)


def test_a_changed_min_insync_does_not_reach_the_state() -> None:
    after = next_state(BEFORE, view(broker(0), broker(1), broker(2)), min_insync=3)
    assert after.min_insync == 3


def test_a_finished_reassignment_goes_on() -> None:
    moving = replace(BEFORE, replicas=(3, 1, 0, 2), adding=(3,), removing=(0, 2), isr=(0, 1, 2, 3))
    after = next_state(moving, view(*map(broker, range(4))))
    assert (after.replicas, after.isr, after.leader, after.is_reassigning) == ((3, 1), (1, 3), 3, False)


def test_a_preferred_leader_that_lost_its_tail_is_elected() -> None:
    led_by_1 = replace(BEFORE, leader=1, leader_broker_epoch=11)
    assert preferred_state(led_by_1, view(*map(broker, range(3)))).leader == 0
    assert preferred_state(led_by_1, view(broker(0, 20, lost_tail=True), broker(1))) is led_by_1


def test_leaderships_are_not_moved_back() -> None:
    ids = [PartitionId(uuid.UUID(int=1), number) for number in range(10)]
    led_by_1 = replace(BEFORE, leader=1, leader_broker_epoch=11)
    states = {id: led_by_1 if id.partition < 2 else BEFORE for id in ids}
    whole = replace(view(*map(broker, range(3))), states=states)
    assert imbalanced_partitions(whole, 10) == ids[:2]
    assert imbalanced_partitions(whole, 20) == []
    assert imbalanced_partitions(replace(whole, brokers={1: broker(1)}), 10) == []


brokers = st.lists(
    st.builds(broker, st.integers(0, 3), st.integers(20, 30), lost_tail=st.booleans(), is_leaving=st.booleans()),
    max_size=4,
)


@given(st.lists(brokers, max_size=12), st.booleans())
def test_a_sequence_of_views_leads_to_a_state_that_can_not_be(
    views: list[list[RegisteredBroker]], unclean: bool
) -> None:
    state = BEFORE
    whole: set[tuple[int, int]] = set()  # registrations without a loss: they can't get one later
    for each in views:
        whole |= {(broker.node_id, broker.epoch) for broker in each if not broker.lost_tail}
        seen = view(
            *(
                replace(broker, lost_tail=False) if (broker.node_id, broker.epoch) in whole else broker
                for broker in each
            )
        )
        after = next_state(state, seen, unclean=unclean)
        assert next_state(after, seen, unclean=unclean) is after, "a second look changes the state again"
        assert after.leader_epoch >= state.leader_epoch
        assert not set(after.isr) & set(after.elr)
        alive = seen.live_epochs()
        if after.has_leader:
            assert after.leader in after.isr
            assert alive[after.leader] == after.leader_broker_epoch
        assert not any(has_unhandled_loss(after, lossy) for lossy in seen.brokers.values() if lossy.lost_tail)
        assert after.isr or after.elr or after.last_known_leader != NO_LEADER
        state = after
