"""A balanced assignment that moves as few partitions as possible. Pure, and deterministic.

If all members subscribe to the same topics, loads differ by at most one partition. Otherwise, no partition could move
to another subscriber and bring the two loads closer together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratalog.client.metadata import TopicPartition

_MOST_ROUNDS = 100

Owned = dict[str, list[TopicPartition]]  # by member id


def balance(
    counts: Mapping[str, int], subscriptions: Mapping[str, frozenset[str]], had: Mapping[str, Iterable[TopicPartition]]
) -> Owned:
    """Assign partitions to members. `subscriptions` has the topics of each member, and `had` the partitions that it may
    keep; no partition appears in `had` twice."""
    if not subscriptions:
        return {}
    topics = {topic for subscribed in subscriptions.values() for topic in subscribed} & set(counts)
    kept: Owned = {
        member: [
            partition
            for partition in had.get(member, ())
            if partition.topic in subscribed & topics and 0 <= partition.partition < counts[partition.topic]
        ]
        for member, subscribed in subscriptions.items()
    }
    every = [TopicPartition(topic, index) for topic in sorted(topics) for index in range(counts[topic])]
    if len({subscribed & topics for subscribed in subscriptions.values()}) == 1:
        return _distribute_evenly(every, kept)
    return _distribute_by_load(every, kept, subscriptions)


def _distribute_evenly(every: list[TopicPartition], kept: Owned) -> Owned:
    """Assign partitions to members with equal topics. Each member keeps what fits into its share, and free partitions
    fill the shares."""
    quota, extra = divmod(len(every), len(kept))
    # Members with more than the quota get the larger shares first, because that moves the fewest partitions.
    by_surplus = sorted(kept, key=lambda member: (len(kept[member]) <= quota, member))
    shares = {member: quota + (position < extra) for position, member in enumerate(by_surplus)}
    owned = {member: mine[: shares[member]] for member, mine in kept.items()}
    taken = {partition for mine in owned.values() for partition in mine}
    free = iter([partition for partition in every if partition not in taken])
    for member, mine in owned.items():
        while len(mine) < shares[member]:
            mine.append(next(free))
    return owned


def _distribute_by_load(every: list[TopicPartition], kept: Owned, subscriptions: Mapping[str, frozenset[str]]) -> Owned:
    """Assign free partitions to the subscriber with the lowest load, then move partitions to even out the loads."""
    owned = {member: list(mine) for member, mine in kept.items()}
    subscribers: dict[str, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            subscribers.setdefault(topic, []).append(member)
    taken = {partition for mine in owned.values() for partition in mine}
    # Topics with few subscribers first: their partitions have the least choice.
    for partition in sorted(every, key=lambda partition: (len(subscribers[partition.topic]), partition)):
        if partition not in taken:
            lightest = min(subscribers[partition.topic], key=lambda member: (len(owned[member]), member))
            owned[lightest].append(partition)
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
        givers = [member for member in members if any(partition.topic == topic for partition in owned[member])]
        if not givers:
            return moved
        giver = max(givers, key=lambda member: (len(owned[member]), member))
        if len(owned[giver]) - len(owned[lightest]) < 2:
            return moved
        last = max(at for at, partition in enumerate(owned[giver]) if partition.topic == topic)
        owned[lightest].append(owned[giver].pop(last))
        moved = True
