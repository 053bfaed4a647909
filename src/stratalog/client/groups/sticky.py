"""A balanced assignment that moves as little as it can. Pure, and deterministic.

Where all members subscribe to the same topics, loads differ by one at most. Where they do not, no partition could go to
another subscriber and make the two loads more alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratalog.client.metadata import TopicPartition

_MOST_ROUNDS = 100

Owned = dict[str, list[TopicPartition]]  # by member id


def balance(
    counts: Mapping[str, int], wanted: Mapping[str, frozenset[str]], had: Mapping[str, Iterable[TopicPartition]]
) -> Owned:
    """`had`: what each member may keep; no partition is in it twice."""
    if not wanted:
        return {}
    topics = {topic for mine in wanted.values() for topic in mine} & set(counts)
    kept: Owned = {
        member: [
            one for one in had.get(member, ()) if one.topic in mine & topics and 0 <= one.partition < counts[one.topic]
        ]
        for member, mine in wanted.items()
    }
    every = [TopicPartition(topic, index) for topic in sorted(topics) for index in range(counts[topic])]
    if len({mine & topics for mine in wanted.values()}) == 1:
        return _spread_evenly(every, kept)
    return _spread_by_load(every, kept, wanted)


def _spread_evenly(every: list[TopicPartition], kept: Owned) -> Owned:
    """All want the same: everybody keeps what fits into its share, and the rest is dealt out."""
    quota, extra = divmod(len(every), len(kept))
    # Who has more than the quota gets the larger shares, while there are any: that moves least.
    by_surplus = sorted(kept, key=lambda member: (len(kept[member]) <= quota, member))
    shares = {member: quota + (position < extra) for position, member in enumerate(by_surplus)}
    owned = {member: mine[: shares[member]] for member, mine in kept.items()}
    taken = {one for mine in owned.values() for one in mine}
    free = iter([one for one in every if one not in taken])
    for member, mine in owned.items():
        while len(mine) < shares[member]:
            mine.append(next(free))
    return owned


def _spread_by_load(every: list[TopicPartition], kept: Owned, wanted: Mapping[str, frozenset[str]]) -> Owned:
    """What is free goes to the subscriber with least, then partitions move while that helps."""
    owned = {member: list(mine) for member, mine in kept.items()}
    subscribers: dict[str, list[str]] = {}
    for member in sorted(wanted):
        for topic in wanted[member]:
            subscribers.setdefault(topic, []).append(member)
    taken = {one for mine in owned.values() for one in mine}
    # Topics with few subscribers first: their partitions have the least choice.
    for one in sorted(every, key=lambda one: (len(subscribers[one.topic]), one)):
        if one not in taken:
            lightest = min(subscribers[one.topic], key=lambda member: (len(owned[member]), member))
            owned[lightest].append(one)
    for _ in range(_MOST_ROUNDS):
        moved = [_even_out(topic, members, owned) for topic, members in sorted(subscribers.items())]
        if not any(moved):
            break
    return owned


def _even_out(topic: str, members: list[str], owned: Owned) -> bool:
    """Move partitions of a topic from the heaviest owner to the lightest subscriber while they differ by two."""
    moved = False
    while True:
        lightest = min(members, key=lambda member: (len(owned[member]), member))
        givers = [member for member in members if any(one.topic == topic for one in owned[member])]
        if not givers:
            return moved
        giver = max(givers, key=lambda member: (len(owned[member]), member))
        if len(owned[giver]) - len(owned[lightest]) < 2:
            return moved
        last = max(at for at, one in enumerate(owned[giver]) if one.topic == topic)
        owned[lightest].append(owned[giver].pop(last))
        moved = True
