"""The server-side assignors of KIP-848 groups: they assign partitions to members. Pure, and deterministic.

Each is a function of the members' subscriptions, the topics' partition counts and the last target assignment. Every
partition of a subscribed topic goes to exactly one member that subscribes to the topic.

- `uniform`: balance first, then as few moves as possible. If all members subscribe to the same topics, their loads
  differ by at most one. Otherwise, no move of one partition to another subscriber would bring the two loads closer.
- `range`: for each topic, the subscribers in order (by instance id, then by member id) get contiguous ranges. If the
  partitions can't be divided evenly, the first members get one more. Topics with the same number of partitions and the
  same subscribers are co-partitioned: partition 3 of all of them has the same owner. The last assignment is ignored.

Known gap: racks are ignored, as by the assignors of Kafka 4.1.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
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
    subscribed = frozenset().union(*{subscriber.topic_ids for subscriber in subscribers.values()})
    partitions = _Partitions({topic_id: count for topic_id, count in counts.items() if topic_id in subscribed})
    kept = _kept(subscribers, partitions, previous)
    if len({subscriber.topic_ids for subscriber in subscribers.values()}) == 1:
        owned = _assign_evenly(kept, partitions)
    else:
        owned = _assign_by_load(kept, partitions, subscribers)
    target = {}
    for member_id, mine in owned.items():
        before = previous.get(member_id, {})
        is_unchanged = mine == kept[member_id] and len(mine) == sum(map(len, before.values()))
        target[member_id] = before if is_unchanged else partitions.assignment(mine)
    return target


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _range_order(member_id: str, subscriber: Subscriber) -> tuple[bool, str]:
    """Sort static members first, by instance id: they keep their position when they rejoin under a new member id."""
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


class _Partitions:
    """The partitions of all topics, numbered consecutively, because topic ids are slow to compare and to hash."""

    def __init__(self, counts: PartitionCounts) -> None:
        self.counts = counts
        self.first: dict[uuid.UUID, int] = {}  # the number of a topic's partition 0
        self.total = 0
        for topic_id in sorted(counts):
            self.first[topic_id] = self.total
            self.total += counts[topic_id]

    def of(self, topic_id: uuid.UUID) -> range:
        return range(self.first[topic_id], self.first[topic_id] + self.counts[topic_id])

    def assignment(self, numbers: list[int]) -> Assignment:
        assignment: dict[uuid.UUID, frozenset[int]] = {}
        topic_ids, firsts = list(self.first), list(self.first.values())
        numbers = sorted(numbers)
        at = 0
        while at < len(numbers):
            topic = bisect.bisect_right(firsts, numbers[at]) - 1
            end = bisect.bisect_left(numbers, firsts[topic] + self.counts[topic_ids[topic]], at)
            assignment[topic_ids[topic]] = frozenset(number - firsts[topic] for number in numbers[at:end])
            at = end
        return assignment


def _kept(subscribers: Subscribers, partitions: _Partitions, previous: Target) -> dict[str, list[int]]:
    """Return the partitions that each member had and may keep: existing ones, of topics to which it subscribes, each
    with one owner."""
    taken = bytearray(partitions.total)
    kept: dict[str, list[int]] = {}
    for member_id in sorted(subscribers):
        mine: list[int] = []
        for topic_id, indexes in previous.get(member_id, {}).items():
            if topic_id in subscribers[member_id].topic_ids and topic_id in partitions.first:
                first, count = partitions.first[topic_id], partitions.counts[topic_id]
                mine += [first + index for index in indexes if 0 <= index < count and not taken[first + index]]
        for number in mine:
            taken[number] = True
        kept[member_id] = sorted(mine)
    return kept


def _assign_evenly(kept: dict[str, list[int]], partitions: _Partitions) -> dict[str, list[int]]:
    """Balance members with the same subscription: each keeps partitions up to its share, and gets free ones for the
    rest of it."""
    quota, extra = divmod(partitions.total, len(kept))
    # Members with more than the quota get the larger shares first, because that moves the fewest partitions.
    by_surplus = sorted(kept, key=lambda member_id: (len(kept[member_id]) <= quota, member_id))
    shares = {member_id: quota + (position < extra) for position, member_id in enumerate(by_surplus)}
    owned = {member_id: mine[: shares[member_id]] for member_id, mine in kept.items()}
    taken = bytearray(partitions.total)
    for mine in owned.values():
        for number in mine:
            taken[number] = True
    free = iter([number for number in range(partitions.total) if not taken[number]])
    for member_id, mine in owned.items():
        mine.extend(itertools.islice(free, shares[member_id] - len(mine)))
    return owned


def _assign_by_load(
    kept: dict[str, list[int]], partitions: _Partitions, subscribers: Subscribers
) -> dict[str, list[int]]:
    """Balance members with different subscriptions: a free partition goes to its subscriber with the lowest load, and
    then partitions move as long as that evens out the loads."""
    owner: list[str | None] = [None] * partitions.total
    for member_id, mine in kept.items():
        for number in mine:
            owner[number] = member_id
    load = {member_id: len(mine) for member_id, mine in kept.items()}
    by_topic = _members_by_topic(sorted(subscribers), subscribers, partitions.counts)
    # Topics with few subscribers first, because their partitions have the fewest possible owners.
    for topic_id in sorted(by_topic, key=lambda topic_id: (len(by_topic[topic_id]), topic_id)):
        _deal_out(partitions.of(topic_id), by_topic[topic_id], owner, load)
    for _ in range(_MAX_BALANCING_ROUNDS):
        moved = [_balance(partitions.of(topic_id), by_topic[topic_id], owner, load) for topic_id in by_topic]
        if not any(moved):
            break
    owned: dict[str, list[int]] = {member_id: [] for member_id in kept}
    for number, owning in enumerate(owner):
        if owning is not None:
            owned[owning].append(number)
    return owned


def _deal_out(numbers: range, members: list[str], owner: list[str | None], load: dict[str, int]) -> None:
    lightest = [(load[member_id], member_id) for member_id in members]
    heapq.heapify(lightest)
    for number in numbers:
        if owner[number] is None:
            member_load, member_id = lightest[0]
            owner[number] = member_id
            load[member_id] = member_load + 1
            heapq.heapreplace(lightest, (member_load + 1, member_id))


def _balance(numbers: range, members: list[str], owner: list[str | None], load: dict[str, int]) -> bool:
    """Move partitions of a topic from the owner with the highest load to the subscriber with the lowest, while the two
    differ by at least two partitions. Return whether any moved."""
    held: dict[str, list[int]] = {}
    for number in numbers:
        held.setdefault(str(owner[number]), []).append(number)
    lightest = [(load[member_id], member_id) for member_id in members]
    heaviest = [(-load[member_id], member_id) for member_id in held]
    heapq.heapify(lightest)
    heapq.heapify(heaviest)
    moved = False
    while heaviest:
        giver = heaviest[0][1]
        if -heaviest[0][0] != load[giver] or not held.get(giver):
            heapq.heappop(heaviest)  # an entry from before a move
            continue
        while lightest[0][0] != load[lightest[0][1]]:
            heapq.heappop(lightest)
        taker = lightest[0][1]
        if load[giver] - load[taker] < 2:
            break
        number = held[giver].pop()
        held.setdefault(taker, []).append(number)
        owner[number] = taker
        load[giver] -= 1
        load[taker] += 1
        for member_id in (giver, taker):
            heapq.heappush(heaviest, (-load[member_id], member_id))
            heapq.heappush(lightest, (load[member_id], member_id))
        moved = True
    return moved
