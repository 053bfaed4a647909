"""Every partition has exactly one owner that subscribes to it, loads are even, and sticky assignors move little."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.client.groups.assignors import ASSIGNORS, Member, assignors_of
from stratalog.client.groups.member_data import MemberSubscription
from stratalog.client.metadata import TopicPartition
from stratalog.errors import ConfigError

Shares = Mapping[str, list[TopicPartition]]
counts = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 12), min_size=1)
wants = st.dictionaries(
    st.integers(0, 9).map(lambda n: f"m{n}"), st.sets(st.sampled_from("abcde"), min_size=1), min_size=1
)


def members(topics_of: Mapping[str, set[str]], assignor: str, had: Shares, generation: int = 5) -> list[Member]:
    made = ASSIGNORS[assignor]()
    members = []
    for member_id, topics in topics_of.items():
        mine = tuple(had.get(member_id, ()))
        user_data = made.user_data(mine, generation)
        owned = mine if made.is_cooperative else ()
        members.append(Member(member_id, MemberSubscription(tuple(sorted(topics)), user_data, owned, generation)))
    return members


def assign(
    assignor: str, sizes: Mapping[str, int], topics_of: Mapping[str, set[str]], had: Shares | None = None
) -> Shares:
    return ASSIGNORS[assignor]().assign(sizes, members(topics_of, assignor, had or {}))


def settled(
    assignor: str, sizes: Mapping[str, int], topics_of: Mapping[str, set[str]], had: Shares | None = None
) -> Shares:
    """Assign, and for a cooperative group assign again, because it hands partitions over in a second rebalance."""
    shares = assign(assignor, sizes, topics_of, had)
    return assign(assignor, sizes, topics_of, shares) if assignor == "cooperative-sticky" else shares


@pytest.mark.parametrize("assignor", ASSIGNORS)
@given(sizes=counts, topics_of=wants)
@settings(deadline=None)
def test_each_partition_has_one_owner_that_subscribes_to_it(
    assignor: str, sizes: dict[str, int], topics_of: dict[str, set[str]]
) -> None:
    shares = assign(assignor, sizes, topics_of)
    assert set(shares) == set(topics_of)
    given_out = [partition for mine in shares.values() for partition in mine]
    all_wanted = set().union(*topics_of.values())
    assert sorted(given_out) == sorted(
        TopicPartition(topic, index) for topic in sizes if topic in all_wanted for index in range(sizes[topic])
    )
    for member_id, mine in shares.items():
        assert {partition.topic for partition in mine} <= topics_of[member_id]


@pytest.mark.parametrize("assignor", ["roundrobin", "sticky", "cooperative-sticky"])
@given(sizes=counts, size=st.integers(1, 9))
@settings(deadline=None)
def test_loads_differ_by_one_if_all_topics_are_equal(assignor: str, sizes: dict[str, int], size: int) -> None:
    shares = assign(assignor, sizes, {f"m{number}": set("abcd") for number in range(size)})
    loads = [len(mine) for mine in shares.values()]
    assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize("assignor", ["sticky", "cooperative-sticky"])
@given(sizes=counts, before=st.integers(1, 8), after=st.integers(1, 8))
@settings(deadline=None)
def test_sticky_members_keep_as_much_as_evenness_allows(
    assignor: str, sizes: dict[str, int], before: int, after: int
) -> None:
    def group(size: int) -> dict[str, set[str]]:
        return {f"m{number}": set("abcd") for number in range(size)}

    had = assign(assignor, sizes, group(before))
    shares = settled(
        assignor, sizes, group(after), {member: mine for member, mine in had.items() if member in group(after)}
    )
    total = sum(sizes.values())
    for member_id, mine in shares.items():
        kept = set(mine) & set(had.get(member_id, ()))
        assert len(kept) >= min(len(had.get(member_id, ())), total // after)
    assert sum(map(len, shares.values())) == total


@given(sizes=counts, topics_of=wants, had=wants)
@settings(deadline=None)
def test_cooperative_group_does_not_assign_partitions_that_are_owned(
    sizes: dict[str, int], topics_of: dict[str, set[str]], had: dict[str, set[str]]
) -> None:
    owned = {member_id: mine for member_id, mine in assign("sticky", sizes, had).items() if member_id in topics_of}
    shares = assign("cooperative-sticky", sizes, topics_of, owned)
    owner = {partition: member_id for member_id, mine in owned.items() for partition in mine}
    for member_id, mine in shares.items():
        assert all(owner.get(partition, member_id) == member_id for partition in mine)


def test_range_gives_contiguous_ranges_to_members_in_order_static_ones_first() -> None:
    topics = MemberSubscription(("t",))
    group = [Member("a", topics), Member("b", topics, "z-static"), Member("c", topics)]
    shares = assignors_of(["range"])[0].assign({"t": 7}, group)
    assert [[each.partition for each in shares[member_id]] for member_id in "bac"] == [[0, 1, 2], [3, 4], [5, 6]]


def test_claim_of_the_later_generation_wins() -> None:
    claimed = [TopicPartition("t", 0)]
    old, new = (
        members({name: {"t"}}, "sticky", {name: claimed}, generation)[0] for name, generation in (("a", 3), ("b", 4))
    )
    assert ASSIGNORS["sticky"]().assign({"t": 1}, [old, new]) == {"a": [], "b": claimed}


def test_member_with_user_data_in_another_format_loses_only_its_claims() -> None:
    strange = Member("a", MemberSubscription(("t",), b"\x00\x00\x00\x07nonsense"))
    assert len(ASSIGNORS["sticky"]().assign({"t": 3}, [strange])["a"]) == 3


def test_unknown_assignor_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'fair'.*range, roundrobin, sticky, cooperative-sticky"):
        assignors_of(["fair"])
