"""Who shall own which partition: the server-side assignors of KIP-848 groups. Pure, and deterministic.

Each is a function of the members' subscriptions, the topics' partition counts and the last target assignment. Every
partition of a subscribed topic goes to exactly one member that is subscribed to it.

- `uniform`: balance first, then as few moves as possible. Where all subscribe to the same topics, loads differ by one
  at most. Where they do not, no partition could go to another subscriber and make the two loads more alike.
- `range`: for each topic, the subscribers in order (by instance id, then by member id) get contiguous ranges, the first
  ones a partition more where it does not come out even. Topics with as many partitions and the same subscribers are
  co-partitioned: partition 3 of all of them has one owner. The last assignment plays no part.

Known gap: racks are not looked at, as in Kafka 4.1's own assignors.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from stratalog.broker.groups.consumer_records import Assignment

_MAX_BALANCING_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Subscriber:
    topic_ids: frozenset[uuid.UUID]
    instance_id: str | None = None


Subscribers: TypeAlias = Mapping[str, Subscriber]  # by member id
PartitionCounts: TypeAlias = Mapping[uuid.UUID, int]
Target: TypeAlias = Mapping[str, Assignment]
Assignor: TypeAlias = Callable[[Subscribers, PartitionCounts, Target], dict[str, Assignment]]

_TopicPartition: TypeAlias = tuple[uuid.UUID, int]


def assign_range(subscribers: Subscribers, counts: PartitionCounts, _previous: Target) -> dict[str, Assignment]:
    target: dict[str, dict[uuid.UUID, frozenset[int]]] = {member_id: {} for member_id in subscribers}
    ordered = sorted(subscribers, key=lambda member_id: _range_order(member_id, subscribers[member_id]))
    for topic_id, member_ids in _members_by_topic(ordered, subscribers, counts).items():
        quota, extra = divmod(counts[topic_id], len(member_ids))
        begin = 0
        for position, member_id in enumerate(member_ids):
            end = begin + quota + (position < extra)
            if end > begin:
                target[member_id][topic_id] = frozenset(range(begin, end))
            begin = end
    return dict(target)


def assign_uniform(subscribers: Subscribers, counts: PartitionCounts, previous: Target) -> dict[str, Assignment]:
    if not subscribers:
        return {}
    if len({subscriber.topic_ids for subscriber in subscribers.values()}) == 1:
        owned = _spread_evenly(subscribers, counts, previous)
    else:
        owned = _spread_by_load(subscribers, counts, previous)
    return {member_id: _as_assignment(owned[member_id]) for member_id in subscribers}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _range_order(member_id: str, subscriber: Subscriber) -> tuple[bool, str]:
    """Static members first: their place stays the same when they come back under a new member id."""
    if subscriber.instance_id is None:
        return True, member_id
    return False, subscriber.instance_id


def _members_by_topic(
    ordered: list[str], subscribers: Subscribers, counts: PartitionCounts
) -> dict[uuid.UUID, list[str]]:
    members: dict[uuid.UUID, list[str]] = {topic_id: [] for topic_id in sorted(counts)}
    for member_id in ordered:
        for topic_id in subscribers[member_id].topic_ids:
            if topic_id in members:
                members[topic_id].append(member_id)
    return {topic_id: member_ids for topic_id, member_ids in members.items() if member_ids}


def _kept(subscribers: Subscribers, counts: PartitionCounts, previous: Target) -> dict[str, list[_TopicPartition]]:
    """What each member had and may keep: partitions that exist, of topics it subscribes to, each with one owner."""
    taken: set[_TopicPartition] = set()
    kept: dict[str, list[_TopicPartition]] = {}
    for member_id in sorted(subscribers):
        mine = [
            (topic_id, partition)
            for topic_id, partitions in sorted(previous.get(member_id, {}).items())
            if topic_id in subscribers[member_id].topic_ids
            for partition in sorted(partitions)
            if 0 <= partition < counts.get(topic_id, 0) and (topic_id, partition) not in taken
        ]
        taken.update(mine)
        kept[member_id] = mine
    return kept


def _spread_evenly(
    subscribers: Subscribers, counts: PartitionCounts, previous: Target
) -> dict[str, list[_TopicPartition]]:
    """All subscribe to the same topics: everybody keeps what fits into its share, and the rest is dealt out."""
    owned = _kept(subscribers, counts, previous)
    topic_ids = sorted(next(iter(subscribers.values())).topic_ids)
    every = [(topic_id, partition) for topic_id in topic_ids for partition in range(counts.get(topic_id, 0))]
    quota, extra = divmod(len(every), len(subscribers))
    # Who has more than the quota gets the larger shares, while there are any: that moves least.
    by_surplus = sorted(owned, key=lambda member_id: (len(owned[member_id]) <= quota, member_id))
    shares = {member_id: quota + (position < extra) for position, member_id in enumerate(by_surplus)}
    for member_id, mine in owned.items():
        del mine[shares[member_id] :]
    taken = {partition for mine in owned.values() for partition in mine}
    free = iter([partition for partition in every if partition not in taken])
    for member_id, mine in owned.items():
        mine.extend(next(free) for _ in range(shares[member_id] - len(mine)))
    return owned


def _spread_by_load(
    subscribers: Subscribers, counts: PartitionCounts, previous: Target
) -> dict[str, list[_TopicPartition]]:
    """Subscriptions differ: what is free goes to the subscriber with least, then partitions move while that helps."""
    owner = {
        partition: member_id for member_id, mine in _kept(subscribers, counts, previous).items() for partition in mine
    }
    load = dict.fromkeys(subscribers, 0)
    for member_id in owner.values():
        load[member_id] += 1
    by_topic = _members_by_topic(sorted(subscribers), subscribers, counts)
    # Topics with few subscribers first: their partitions have the least choice.
    for topic_id in sorted(by_topic, key=lambda topic_id: (len(by_topic[topic_id]), topic_id)):
        _deal_out(topic_id, counts[topic_id], by_topic[topic_id], owner, load)
    for _ in range(_MAX_BALANCING_ROUNDS):
        moved = [_balance(topic_id, counts[topic_id], by_topic[topic_id], owner, load) for topic_id in by_topic]
        if not any(moved):
            break
    owned: dict[str, list[_TopicPartition]] = {member_id: [] for member_id in subscribers}
    for partition, member_id in owner.items():
        owned[member_id].append(partition)
    return owned


def _deal_out(
    topic_id: uuid.UUID, count: int, members: list[str], owner: dict[_TopicPartition, str], load: dict[str, int]
) -> None:
    lightest = [(load[member_id], member_id) for member_id in members]
    heapq.heapify(lightest)
    for partition in range(count):
        if (topic_id, partition) not in owner:
            member_load, member_id = lightest[0]
            owner[topic_id, partition] = member_id
            load[member_id] = member_load + 1
            heapq.heapreplace(lightest, (member_load + 1, member_id))


def _balance(
    topic_id: uuid.UUID, count: int, members: list[str], owner: dict[_TopicPartition, str], load: dict[str, int]
) -> bool:
    """Move partitions of this topic from the heaviest owner to the lightest subscriber while they differ by two."""
    partitions: dict[str, list[int]] = {}
    for partition in range(count):
        partitions.setdefault(owner[topic_id, partition], []).append(partition)
    lightest = [(load[member_id], member_id) for member_id in members]
    heaviest = [(-load[member_id], member_id) for member_id in partitions]
    heapq.heapify(lightest)
    heapq.heapify(heaviest)
    moved = False
    while heaviest:
        giver = heaviest[0][1]
        if -heaviest[0][0] != load[giver] or not partitions.get(giver):
            heapq.heappop(heaviest)  # an entry from before a move
            continue
        while lightest[0][0] != load[lightest[0][1]]:
            heapq.heappop(lightest)
        taker = lightest[0][1]
        if load[giver] - load[taker] < 2:
            break
        partition = partitions[giver].pop()
        partitions.setdefault(taker, []).append(partition)
        owner[topic_id, partition] = taker
        load[giver] -= 1
        load[taker] += 1
        for member_id in (giver, taker):
            heapq.heappush(heaviest, (-load[member_id], member_id))
            heapq.heappush(lightest, (load[member_id], member_id))
        moved = True
    return moved


def _as_assignment(owned: list[_TopicPartition]) -> Assignment:
    by_topic: dict[uuid.UUID, set[int]] = {}
    for topic_id, partition in owned:
        by_topic.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(by_topic[topic_id]) for topic_id in sorted(by_topic)}
