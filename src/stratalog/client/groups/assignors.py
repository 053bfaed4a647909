"""Assignors: how the member that leads a classic group distributes the partitions. Pure, and deterministic.

- `range`: for each topic, members in order get contiguous ranges.
- `roundrobin`: all partitions in order, to one member after the other.
- `sticky`: loads differ as little as possible, and within that rule members keep the partitions they have.
- `cooperative-sticky`: like `sticky`, but a partition moves to another member only in the rebalance after the one in
  which its owner gave it up. Members keep reading the partitions that stay.

Names and user data are those of the Java client, so that members of all clients can share a group. Known gap: racks
are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from stratalog.client.groups.member_data import (
    NO_GENERATION,
    MemberSubscription,
    member_fields,
    read_partitions,
    write_partitions,
)
from stratalog.client.groups.sticky import balance
from stratalog.client.metadata import TopicPartition
from stratalog.errors import ConfigError, MalformedResponseError
from stratalog.protocol.fields import INT32, FieldWriter

Partitions = dict[str, list[TopicPartition]]  # by member id


@dataclass(frozen=True)
class Member:
    id: str
    subscription: MemberSubscription
    instance_id: str | None = None

    @property
    def order(self) -> tuple[bool, str]:
        """Sort static members first: their position stays the same when they return under another member id."""
        return (False, self.instance_id) if self.instance_id is not None else (True, self.id)


class Assignor(Protocol):
    name: ClassVar[str]
    is_cooperative: ClassVar[bool]

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        """Return the bytes that this member sends to the next leader along with its topics."""

    def assign(self, counts: Mapping[str, int], members: Iterable[Member]) -> Partitions:
        """Assign partitions to members. `counts` has the number of partitions of each existing topic. Every member has
        an entry in the result."""


class RangeAssignor:
    name: ClassVar[str] = "range"
    is_cooperative: ClassVar[bool] = False

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:  # noqa: ARG002
        return None

    def assign(self, counts: Mapping[str, int], members: Iterable[Member]) -> Partitions:
        ordered = sorted(members, key=lambda member: member.order)
        assigned: Partitions = {member.id: [] for member in ordered}
        for topic in sorted(counts):
            subscribers = [member for member in ordered if topic in member.subscription.topics]
            if not subscribers:
                continue
            quota, extra = divmod(counts[topic], len(subscribers))
            begin = 0
            for position, member in enumerate(subscribers):
                end = begin + quota + (position < extra)
                assigned[member.id] += [TopicPartition(topic, partition) for partition in range(begin, end)]
                begin = end
        return assigned


class RoundRobinAssignor:
    name: ClassVar[str] = "roundrobin"
    is_cooperative: ClassVar[bool] = False

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:  # noqa: ARG002
        return None

    def assign(self, counts: Mapping[str, int], members: Iterable[Member]) -> Partitions:
        ordered = sorted(members, key=lambda member: member.order)
        assigned: Partitions = {member.id: [] for member in ordered}
        at = 0
        for topic in sorted(counts):
            if not any(topic in member.subscription.topics for member in ordered):
                continue
            for partition in range(counts[topic]):
                while topic not in ordered[at % len(ordered)].subscription.topics:
                    at += 1
                assigned[ordered[at % len(ordered)].id].append(TopicPartition(topic, partition))
                at += 1
        return assigned


class StickyAssignor:
    """Members report the partitions they had as user data: [topic [partition]], generation."""

    name: ClassVar[str] = "sticky"
    is_cooperative: ClassVar[bool] = False

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        fields = FieldWriter()
        write_partitions(fields, owned)
        return fields.int32(generation).done()

    def assign(self, counts: Mapping[str, int], members: Iterable[Member]) -> Partitions:
        ordered = sorted(members, key=lambda member: member.id)
        topics = {member.id: frozenset(member.subscription.topics) for member in ordered}
        return balance(counts, topics, _undisputed({member.id: self._had(member.subscription) for member in ordered}))

    def _had(self, subscription: MemberSubscription) -> tuple[Iterable[TopicPartition], int]:
        """Return the partitions that a member had, and the generation in which it had them."""
        if not subscription.user_data:
            return subscription.owned, subscription.generation
        fields = member_fields(subscription.user_data, "a member's user data for the sticky assignor")
        try:
            partitions = read_partitions(fields)
            return partitions, fields.int32() if fields.left else NO_GENERATION
        except MalformedResponseError:
            return (), NO_GENERATION  # not in this format, so the member keeps nothing


class CooperativeStickyAssignor(StickyAssignor):
    """A member's partitions and generation are in its subscription. Old members send the generation as user data."""

    name: ClassVar[str] = "cooperative-sticky"
    is_cooperative: ClassVar[bool] = True

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:  # noqa: ARG002
        return INT32.pack(generation)

    def _had(self, subscription: MemberSubscription) -> tuple[Iterable[TopicPartition], int]:
        generation = subscription.generation
        if generation == NO_GENERATION and subscription.user_data and len(subscription.user_data) >= INT32.size:
            (generation,) = INT32.unpack(subscription.user_data[-INT32.size :])
        return subscription.owned, generation

    def assign(self, counts: Mapping[str, int], members: Iterable[Member]) -> Partitions:
        known = list(members)
        assigned = super().assign(counts, known)
        owner = {partition: member.id for member in known for partition in member.subscription.owned}
        for member_id, partitions in assigned.items():
            # A partition that another member owns waits for the next rebalance. Its owner gives it up before that.
            assigned[member_id] = [
                partition for partition in partitions if owner.get(partition, member_id) == member_id
            ]
        return assigned


def _undisputed(had: Mapping[str, tuple[Iterable[TopicPartition], int]]) -> dict[str, list[TopicPartition]]:
    """Return each member's partitions. If several members claim a partition, the latest generation has it, and two
    claims of the same generation cancel each other out."""
    owners: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id, (partitions, generation) in had.items():
        for partition in set(partitions):
            before = owners.get(partition)
            if before is None or generation > before[0]:
                owners[partition] = generation, member_id
            elif generation == before[0]:
                owners[partition] = generation, None
    kept: dict[str, list[TopicPartition]] = {member_id: [] for member_id in had}
    for partition in sorted(owners):
        member = owners[partition][1]
        if member is not None:
            kept[member].append(partition)
    return kept


ASSIGNORS: Mapping[str, type[Assignor]] = {
    kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}


def assignors_of(names: Iterable[str]) -> list[Assignor]:
    assignors: list[Assignor] = []
    for name in names:
        # Java's settings name classes; the last part of a class name identifies the assignor.
        short = (
            name.rpartition(".")[2].removesuffix("Assignor").replace("CooperativeSticky", "cooperative-sticky").lower()
        )
        if short not in ASSIGNORS:
            known = ", ".join(ASSIGNORS)
            raise ConfigError(f"partition.assignment.strategy has {name!r}; it must be one of: {known}")
        assignors.append(ASSIGNORS[short]())
    return assignors
