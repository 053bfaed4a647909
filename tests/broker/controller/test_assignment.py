from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.controller.assignment import assign_replicas, check_assignment
from stratalog.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError

RACKS = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}


def test_replicas_are_not_where_kafka_puts_them() -> None:
    # The expected assignments are those in the tests and in the comments of Kafka's AdminUtils.
    assert assign_replicas(10, 3, dict.fromkeys(range(5)), 0) == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1),
        (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip
    assert assign_replicas(9, 3, RACKS, 0) == [
        (0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3),
        (0, 4, 2), (3, 2, 0), (1, 0, 3),
    ]  # fmt: skip


def test_partitions_that_are_added_later_pile_up_on_the_same_brokers() -> None:
    brokers = dict.fromkeys(range(5))

    added = assign_replicas(5, 3, brokers, 0, first_partition=5)
    assert [replicas[0] for replicas in added] == [0, 1, 2, 3, 4]


def test_a_cluster_with_racks_on_some_brokers_only_is_refused() -> None:
    assert assign_replicas(4, 2, {0: "a", 1: None, 2: "b"}, 1) == assign_replicas(4, 2, {0: None, 1: None, 2: None}, 1)


brokers = st.dictionaries(st.integers(0, 50), st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=12)


@given(brokers, st.booleans(), st.integers(1, 30), st.integers(0, 100), st.integers(0, 40), st.data())
def test_brokers_or_racks_hold_more_than_their_share(
    racks: dict[int, str], has_racks: bool, count: int, start: int, first: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    known = {node_id: rack if has_racks else None for node_id, rack in racks.items()}
    placed = assign_replicas(count, factor, known, start, first)
    assert len(placed) == count
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert set(replicas) <= set(racks)
        if has_racks:
            assert len({racks[replica] for replica in replicas}) == min(factor, len(set(racks.values())))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - (min(leaders.values()) if len(leaders) == len(racks) else 0) <= 1


@pytest.mark.parametrize("factor", [0, -1, 4])
def test_a_replication_factor_is_larger_than_the_cluster(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactorError, match=f"replication factor is {factor}"):
        assign_replicas(1, factor, {0: None, 1: None, 2: None}, 0)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ([], "the assignment has no partition"),
        ([[0], []], "partition 1 has no replicas"),
        ([[0, 0]], "may hold only one of them"),
        ([[0, 7]], "broker 7 is not registered"),
        ([[0, 1], [1]], "partition 1 has 1 replicas, and partition 0 has 2"),
    ],
)
def test_an_assignment_that_is_not_valid_is_accepted(assignment: list[list[int]], message: str) -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match=message):
        check_assignment(assignment, {0: None, 1: None})
    check_assignment([[0, 1], [1, 0]], {0: None, 1: None})
