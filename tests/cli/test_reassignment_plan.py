"""Plans of replicas: nothing that could stay moves, and the result is balanced over brokers and racks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cli.reassignment_plan import Assignment, ImpossiblePlanError, balance, drain
from stratalog.client import TopicPartition


def orders(*replicas: tuple[int, ...]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition("orders", number): each for number, each in enumerate(replicas)}


def after(before: Assignment, changes: Assignment) -> dict[TopicPartition, tuple[int, ...]]:
    return {**before, **changes}


def copies(before: Assignment, changes: Assignment) -> int:
    return sum(len(set(replicas) - set(before[partition])) for partition, replicas in changes.items())


def spread(counts: Counter[int], brokers: Iterable[int]) -> int:
    values = [counts[broker] for broker in brokers]
    return max(values) - min(values)


def loads(assignment: Assignment) -> Counter[int]:
    return Counter(replica for replicas in assignment.values() for replica in replicas)


def leaders(assignment: Assignment) -> Counter[int]:
    return Counter(replicas[0] for replicas in assignment.values())


def test_drained_broker_keeps_a_replica_or_others_move() -> None:
    before = orders((1, 2), (2, 3), (3, 1), (4, 1))
    changes = drain(before, dict.fromkeys((1, 2, 3, 4)), [2])
    assert set(changes) == {TopicPartition("orders", 0), TopicPartition("orders", 1)}
    assert copies(before, changes) == 2
    assert 2 not in loads(after(before, changes))


def test_drained_broker_is_replaced_by_one_of_a_rack_that_the_partition_has_already() -> None:
    racks = {1: "a", 2: "b", 3: "a", 4: "b"}
    assert drain(orders((1, 2)), racks, [2]) == orders((1, 4))


def test_new_broker_gets_more_or_fewer_replicas_than_its_share() -> None:
    before = orders(*[(1, 2, 3), (2, 3, 1), (3, 1, 2)] * 4)
    changes = balance(before, dict.fromkeys((1, 2, 3, 4)))
    assert loads(after(before, changes)) == {1: 9, 2: 9, 3: 9, 4: 9}
    assert copies(before, changes) == 9
    assert leaders(after(before, changes)) == {1: 3, 2: 3, 3: 3, 4: 3}


def test_balanced_partitions_move() -> None:
    assert balance(orders((1, 2), (2, 3), (3, 1)), dict.fromkeys((1, 2, 3))) == {}


def test_leaders_on_one_broker_stay_there_or_data_is_copied_for_them() -> None:
    before = orders((1, 2, 3), (1, 2, 3), (1, 2, 3))
    changes = balance(before, dict.fromkeys((1, 2, 3)))
    assert copies(before, changes) == 0
    assert leaders(after(before, changes)) == {1: 1, 2: 1, 3: 1}


def test_replicas_share_a_rack_although_there_is_another() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    before = orders((1, 2), (3, 4))
    changes = balance(before, racks)
    assert copies(before, changes) == 2
    assert all(len({racks[each] for each in replicas}) == 2 for replicas in after(before, changes).values())


def test_too_few_brokers_for_the_replicas_are_accepted() -> None:
    with pytest.raises(ImpossiblePlanError, match="orders-0 has 3 replicas, and 2 brokers may hold them"):
        drain(orders((1, 2, 3)), dict.fromkeys((1, 2, 3)), [3])


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[TopicPartition, tuple[int, ...]], dict[int, str | None]]:
    count = draw(st.integers(1, 7))
    has_racks = draw(st.booleans())
    racks = {broker: draw(st.sampled_from("abc")) if has_racks else None for broker in range(1, count + 1)}
    replicas = st.lists(st.integers(1, 9), min_size=1, max_size=min(3, count), unique=True).map(tuple)
    assignment = orders(*draw(st.lists(replicas, max_size=25)))
    return assignment, racks


@given(clusters())
def test_plan_loses_replicas_or_racks_or_balance(
    cluster: tuple[dict[TopicPartition, tuple[int, ...]], dict[int, str | None]],
) -> None:
    before, targets = cluster
    result = after(before, balance(before, targets))
    for partition, replicas in result.items():
        assert len(set(replicas)) == len(replicas) == len(before[partition])
        assert set(replicas) <= set(targets)
        racks = {targets[each] for each in replicas}
        assert len(racks) >= min(len(replicas), len(set(targets.values())))
    if None in targets.values():
        assert spread(loads(result), targets) <= 1
    assert balance(result, targets) == {}


@given(clusters())
def test_drain_copies_more_than_the_drained_replicas(
    cluster: tuple[dict[TopicPartition, tuple[int, ...]], dict[int, str | None]],
) -> None:
    assignment, racks = cluster
    before = {partition: replicas for partition, replicas in assignment.items() if set(replicas) <= set(racks)}
    drained = 1
    if any(len(replicas) >= len(racks) for replicas in before.values()):
        return
    changes = drain(before, racks, [drained])
    assert copies(before, changes) == loads(before)[drained]
    assert loads(after(before, changes))[drained] == 0
