"""Assignors: every partition has one owner, loads are even, and nothing moves without need."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.groups.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from stratalog.broker.groups.consumer_records import Assignment

Group = tuple[dict[str, Subscriber], dict[uuid.UUID, int], dict[str, Assignment]]  # the last: the target before

TOPICS = [uuid.UUID(int=number) for number in range(1, 7)]
A, B, C = TOPICS[:3]


def subscribers(**topics: list[uuid.UUID]) -> dict[str, Subscriber]:
    return {member_id: Subscriber(frozenset(ids)) for member_id, ids in topics.items()}


def flat(assignment: Assignment) -> set[tuple[uuid.UUID, int]]:
    return {(topic_id, partition) for topic_id, partitions in assignment.items() for partition in partitions}


def sizes(target: Mapping[str, Assignment]) -> dict[str, int]:
    return {member_id: len(flat(assignment)) for member_id, assignment in target.items()}


def test_range_gives_co_partitioned_topics_the_same_owners() -> None:
    target = assign_range(subscribers(m0=[A, B], m1=[A, B]), {A: 3, B: 3}, {})
    assert target == {
        "m0": {A: frozenset((0, 1)), B: frozenset((0, 1))},
        "m1": {A: frozenset((2,)), B: frozenset((2,))},
    }


def test_range_leaves_members_without_partitions_if_a_topic_has_too_few() -> None:
    assert assign_range(subscribers(m0=[A], m1=[A], m2=[A]), {A: 2}, {}) == {
        "m0": {A: frozenset((0,))},
        "m1": {A: frozenset((1,))},
        "m2": {},
    }


def test_range_orders_static_members_by_instance_id_and_puts_them_first() -> None:
    members = {
        "m0": Subscriber(frozenset((A,))),
        "m1": Subscriber(frozenset((A,)), instance_id="z"),
        "m2": Subscriber(frozenset((A,)), instance_id="y"),
    }
    target = assign_range(members, {A: 3}, {})
    assert target == {"m2": {A: frozenset((0,))}, "m1": {A: frozenset((1,))}, "m0": {A: frozenset((2,))}}


def test_range_divides_each_topic_among_its_own_subscribers() -> None:
    target = assign_range(subscribers(m0=[A, B], m1=[B]), {A: 2, B: 2}, {})
    assert target == {"m0": {A: frozenset((0, 1)), B: frozenset((0,))}, "m1": {B: frozenset((1,))}}


def test_a_member_that_joins_takes_only_its_share() -> None:
    first = assign_uniform(subscribers(m0=[A], m1=[A]), {A: 6}, {})
    second = assign_uniform(subscribers(m0=[A], m1=[A], m2=[A]), {A: 6}, first)
    assert sizes(second) == {"m0": 2, "m1": 2, "m2": 2}
    assert flat(second["m0"]) < flat(first["m0"])
    assert flat(second["m1"]) < flat(first["m1"])


def test_other_members_keep_their_partitions_when_one_leaves() -> None:
    first = assign_uniform(subscribers(m0=[A], m1=[A], m2=[A]), {A: 9}, {})
    second = assign_uniform(subscribers(m0=[A], m2=[A]), {A: 9}, first)
    assert flat(first["m0"]) < flat(second["m0"])
    assert flat(first["m2"]) < flat(second["m2"])


def test_member_with_the_larger_share_keeps_it() -> None:
    previous = {"m0": {A: frozenset((0,))}, "m1": {A: frozenset((1, 2))}}
    assert assign_uniform(subscribers(m0=[A], m1=[A]), {A: 3}, previous) == previous


def test_loads_even_out_across_different_subscriptions() -> None:
    target = assign_uniform(subscribers(m0=[A], m1=[A, B]), {A: 4, B: 2}, {})
    assert sizes(target) == {"m0": 3, "m1": 3}
    assert B not in target["m0"]


def test_a_partition_goes_to_a_subscriber_even_if_loads_are_uneven() -> None:
    target = assign_uniform(subscribers(m0=[A], m1=[B]), {A: 8, B: 1}, {})
    assert sizes(target) == {"m0": 8, "m1": 1}


def test_the_owner_loses_a_topic_from_which_it_unsubscribes() -> None:
    previous = {"m0": {A: frozenset((0,)), B: frozenset((0,))}, "m1": {}}
    target = assign_uniform(subscribers(m0=[B], m1=[A, B]), {A: 1, B: 1}, previous)
    assert target == {"m0": {B: frozenset((0,))}, "m1": {A: frozenset((0,))}}


def test_deleted_partitions_are_not_assigned() -> None:
    previous = {"m0": {A: frozenset((0, 5)), C: frozenset((0,))}}
    assert assign_uniform(subscribers(m0=[A]), {A: 2}, previous) == {"m0": {A: frozenset((0, 1))}}


def test_groups_without_members_or_topics_are_assigned() -> None:
    for assign in ASSIGNORS.values():
        assert assign({}, {A: 3}, {}) == {}
        assert assign(subscribers(m0=[], m1=[]), {}, {}) == {"m0": {}, "m1": {}}


counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7), max_size=5)
member_ids = st.lists(st.sampled_from([f"m{number}" for number in range(7)]), min_size=1, max_size=7, unique=True)


@st.composite
def groups(draw: st.DrawFn, *, alike: bool) -> Group:
    """Draw members, topics and an earlier assignment, which may have other members and topics, and overlap."""
    partition_counts = draw(counts)
    subscriptions = st.frozensets(st.sampled_from(TOPICS)).map(lambda ids: ids.intersection(partition_counts))
    same = draw(subscriptions)
    members = {
        member_id: Subscriber(same if alike else draw(subscriptions), draw(st.none() | st.sampled_from("xyz")))
        for member_id in draw(member_ids)
    }
    partitions = st.frozensets(st.integers(0, 8), min_size=1, max_size=6)
    assignments = st.dictionaries(st.sampled_from(TOPICS), partitions, max_size=4)
    previous: dict[str, Assignment] = {member_id: draw(assignments) for member_id in draw(member_ids)}
    return members, partition_counts, previous


any_group = st.booleans().flatmap(lambda alike: groups(alike=alike))


@given(any_group, st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_of_a_subscribed_topic_has_one_owner_that_subscribes_to_it(group: Group, assignor: str) -> None:
    members, partition_counts, previous = group
    target = ASSIGNORS[assignor](members, partition_counts, previous)
    assert target.keys() == members.keys()
    owned = [partition for assignment in target.values() for partition in flat(assignment)]
    subscribed = {topic_id for member in members.values() for topic_id in member.topic_ids}
    assert len(owned) == len(set(owned))
    assert set(owned) == {(topic_id, n) for topic_id in subscribed for n in range(partition_counts[topic_id])}
    for member_id, assignment in target.items():
        assert assignment.keys() <= members[member_id].topic_ids
        assert all(assignment.values())


@given(any_group, st.sampled_from(sorted(ASSIGNORS)))
def test_the_order_of_members_does_not_matter(group: Group, assignor: str) -> None:
    members, partition_counts, previous = group
    backwards = dict(reversed(members.items())), dict(reversed(partition_counts.items()))
    assign = ASSIGNORS[assignor]
    if assignor == "range":  # two members can't share an instance id
        members = {member_id: Subscriber(member.topic_ids) for member_id, member in members.items()}
        backwards = dict(reversed(members.items())), backwards[1]
    assert assign(members, partition_counts, previous) == assign(*backwards, previous)


@given(groups(alike=True))
def test_loads_differ_by_at_most_one_if_all_subscribe_to_the_same_topics(
    group: Group,
) -> None:
    loads = sizes(assign_uniform(*group)).values()
    assert max(loads) - min(loads) <= 1


@given(groups(alike=False))
def test_no_single_move_would_bring_two_loads_closer(
    group: Group,
) -> None:
    members, _, _ = group
    target = assign_uniform(*group)
    loads = sizes(target)
    for giver, assignment in target.items():
        for topic_id in assignment:
            for taker in members:
                if topic_id in members[taker].topic_ids:
                    assert loads[giver] - loads[taker] < 2


@given(any_group)
def test_second_assignment_moves_nothing(
    group: Group,
) -> None:
    members, partition_counts, previous = group
    target = assign_uniform(members, partition_counts, previous)
    assert assign_uniform(members, partition_counts, target) == target


@given(groups(alike=True))
def test_only_as_many_partitions_move_as_even_loads_require(
    group: Group,
) -> None:
    members, partition_counts, _ = group
    first = assign_uniform(members, partition_counts, {})
    without = {member_id: members[member_id] for member_id in sorted(members)[1:]}
    if without:
        fewer = assign_uniform(without, partition_counts, first)
        for member_id in without:
            assert flat(first[member_id]) <= flat(fewer[member_id])
        again = assign_uniform(members, partition_counts, fewer)
        returned = flat(again[min(members)])
        for member_id in without:
            assert flat(again[member_id]) == flat(fewer[member_id]) - returned


def test_a_large_group_is_assigned_in_reasonable_time() -> None:
    """2,000 members and 20,000 partitions, half of the members with another subscription."""
    topics = [uuid.UUID(int=number) for number in range(200)]
    members = {
        f"m{number:04}": Subscriber(frozenset(topics if number % 2 else topics[:100])) for number in range(2_000)
    }
    target = assign_uniform(members, dict.fromkeys(topics, 100), {})
    assert set(sizes(target).values()) == {10}
