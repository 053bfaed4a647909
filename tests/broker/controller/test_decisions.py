from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.controller.decisions import create, elect, prefer, without_brokers, without_tail
from stratalog.broker.metadata.partition_state import NO_LEADER, PartitionState

ALIVE = {0: 10, 1: 11, 2: 12}


def state(isr: tuple[int, ...] = (0, 1, 2), leader: int = 0, min_insync: int = 2) -> PartitionState:
    return PartitionState((0, 1, 2), leader, 5, isr, ALIVE.get(leader, -1), min_insync=min_insync)


def alive(*brokers: int) -> dict[int, int]:
    return {broker: ALIVE[broker] for broker in brokers}


def test_a_new_partition_has_a_dead_leader() -> None:
    new = create((1, 0, 2), alive(0, 2))
    assert (new.leader, new.leader_epoch, new.isr, new.leader_broker_epoch) == (0, 0, (0, 2), 10)
    assert not create((1,), alive(0)).has_leader


def test_a_dead_leader_goes_on_leading() -> None:
    after = elect(without_brokers(state(), [0]), alive(1, 2))
    assert (after.leader, after.leader_epoch, after.isr, after.elr) == (1, 6, (1, 2), ())


def test_a_dead_follower_starts_a_new_epoch() -> None:
    after = elect(without_brokers(state(), [2]), alive(0, 1))
    assert (after.leader, after.leader_epoch, after.isr) == (0, 5, (0, 1))


def test_a_leader_that_registered_again_goes_on_in_its_old_epoch() -> None:
    after = elect(state(), ALIVE | {0: 20})
    assert (after.leader, after.leader_epoch, after.leader_broker_epoch) == (0, 6, 20)


def test_a_replica_that_is_not_in_sync_is_elected() -> None:
    assert not elect(without_brokers(state((0,), min_insync=1), [0]), alive(1, 2)).has_leader
    unclean = elect(without_brokers(state((0,), min_insync=1), [0]), alive(1, 2), unclean=True)
    assert (unclean.leader, unclean.isr, unclean.elr) == (1, (1,), ())


def test_the_last_of_all_members_to_die_is_forgotten() -> None:
    dead = without_brokers(without_brokers(without_brokers(state(), [0]), [1]), [2])
    assert (dead.isr, set(dead.elr)) == ((), {1, 2})
    assert not elect(dead, alive(0)).has_leader
    back = elect(dead, alive(0, 2))
    assert (back.leader, back.isr, back.elr) == (2, (2,), (1,))


def test_min_insync_replicas_of_one_makes_replicas_eligible_that_lack_records() -> None:
    dead = without_brokers(without_brokers(state(min_insync=1), [0, 1]), [2])
    assert (dead.isr, dead.elr) == ((), (2,))


def test_a_broker_that_lost_its_tail_leads_while_others_are_eligible() -> None:
    small = without_brokers(state(), [1, 2])
    assert (small.isr, small.elr) == ((0,), (1, 2))
    lost = without_tail(without_brokers(small, [0]), 0)
    assert (lost.isr, lost.elr, lost.last_known_leader) == ((), (1, 2), NO_LEADER)
    assert not elect(lost, alive(0)).has_leader
    assert elect(lost, alive(0, 1)).leader == 1


def test_the_only_replica_waits_for_ever_after_a_power_cut() -> None:
    alone = PartitionState((0,), 0, 5, (0,), leader_broker_epoch=10)
    lost = without_tail(without_brokers(alone, [0]), 0)
    assert (lost.isr, lost.elr, lost.last_known_leader) == ((), (), 0)
    back = elect(lost, {0: 20})
    assert (back.leader, back.leader_epoch, back.isr, back.last_known_leader) == (0, 6, (0,), NO_LEADER)


def test_the_preferred_leader_is_elected_though_it_lags() -> None:
    assert prefer(state((1, 2), leader=1), ALIVE).leader == 1
    assert prefer(state((1, 0), leader=1), alive(1, 2)).leader == 1
    preferred = prefer(state((1, 0), leader=1), ALIVE)
    assert (preferred.leader, preferred.leader_epoch, preferred.isr) == (0, 6, (1, 0))
    assert prefer(preferred, ALIVE) is preferred


def test_a_decision_that_changes_nothing_is_written() -> None:
    before = state()
    assert elect(before, ALIVE) is before
    assert without_brokers(before, [7]) is before
    assert without_tail(state((0, 1)), 2) == state((0, 1))


def test_a_lower_min_insync_leaves_replicas_eligible_that_will_lack_records() -> None:
    small = without_brokers(state(min_insync=3), [2])
    assert (small.isr, small.elr) == ((0, 1), (2,))
    lowered = small.with_min_insync(2)
    assert (lowered.isr, lowered.elr, lowered.min_insync) == ((0, 1), (), 2)


events = st.one_of(
    st.tuples(st.just("dies"), st.integers(0, 2)),
    st.tuples(st.just("returns"), st.integers(0, 2)),
    st.tuples(st.just("returns without its tail"), st.integers(0, 2)),
    st.tuples(st.just("catches up"), st.integers(0, 2)),
)


@given(st.lists(events, max_size=30), st.integers(1, 3))
def test_a_sequence_of_failures_leaves_a_state_that_can_not_be(steps: list[tuple[str, int]], min_insync: int) -> None:
    current, registered, number = create((0, 1, 2), ALIVE, min_insync), dict(ALIVE), 20
    for step, broker in steps:
        before = current
        if step == "dies":
            registered.pop(broker, None)
            current = without_brokers(current, [broker])
        elif step.startswith("returns"):
            number += 1
            registered[broker] = number
            if step.endswith("tail"):
                current = without_tail(current, broker)
        elif current.has_leader and broker in registered and broker not in current.isr:
            current = current.with_isr((*current.isr, broker))
        current = elect(current, registered)
        assert current.leader_epoch >= before.leader_epoch
        assert not set(current.isr) & set(current.elr)
        if current.leader != before.leader and current.has_leader:
            assert current.leader_epoch > before.leader_epoch
        if current.has_leader:
            assert current.leader in current.isr
            assert registered[current.leader] == current.leader_broker_epoch
        else:
            assert not set(current.isr) & set(registered)
        assert current.isr or current.elr or current.last_known_leader != NO_LEADER
        assert replace(current) == current
