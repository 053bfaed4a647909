"""Who gets which partitions in a classic group: computed by the member that leads it. Pure, and deterministic.

- `range`: for each topic, members in order get contiguous ranges.
- `roundrobin`: all partitions in order, to one member after the other.
- `sticky`: loads differ as little as can be, and whoever has a partition keeps it where that allows it.
- `cooperative-sticky`: the same, but a partition is given to another member only after its owner gave it up, a
  rebalance later; members go on with what they keep.

Names and user data are those of Java's, so that members of all clients can be in one group. Known gap: racks are not
looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from stratalog.client.groups.member_data import (
    NO_GENERATION,
    Subscription,
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
    subscription: Subscription
    instance_id: str | None = None

    @property
    def order(self) -> tuple[bool, str]:
        """Static members first: their place stays the same when they come back under another id."""
        return (False, self.instance_id) if self.instance_id is not None else (True, self.id)


class Assignor(Protocol):
    name: ClassVar[str]
    is_cooperative: ClassVar[bool]

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        """What this member tells the next leader beside its topics."""

    def assign(self, counts: Mapping[str, int], members: Iterable[Member]) -> Partitions:
        """`counts`: partitions of each topic that exists. Every member has an entry in the result."""


class RangeAssignor:
    name: ClassVar[str] = "range"
    is_cooperative: ClassVar[bool] = False

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:  # noqa: ARG002
        return None

    def assign(self, counts: Mapping[str, int], members: Iterable[Member]) -> Partitions:
        ordered = sorted(members, key=lambda member: member.order)
        given: Partitions = {member.id: [] for member in ordered}
        for topic in sorted(counts):
            subscribers = [member for member in ordered if topic in member.subscription.topics]
            if not subscribers:
                continue
            quota, extra = divmod(counts[topic], len(subscribers))
            begin = 0
            for position, member in enumerate(subscribers):
                end = begin + quota + (position < extra)
                given[member.id] += [TopicPartition(topic, partition) for partition in range(begin, end)]
                begin = end
        return given


class RoundRobinAssignor:
    name: ClassVar[str] = "roundrobin"
    is_cooperative: ClassVar[bool] = False

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:  # noqa: ARG002
        return None

    def assign(self, counts: Mapping[str, int], members: Iterable[Member]) -> Partitions:
        ordered = sorted(members, key=lambda member: member.order)
        given: Partitions = {member.id: [] for member in ordered}
        at = 0
        for topic in sorted(counts):
            if not any(topic in member.subscription.topics for member in ordered):
                continue
            for partition in range(counts[topic]):
                while topic not in ordered[at % len(ordered)].subscription.topics:
                    at += 1
                given[ordered[at % len(ordered)].id].append(TopicPartition(topic, partition))
                at += 1
        return given


class StickyAssignor:
    """Members tell what they had in the user data: [topic [partition]], generation."""

    name: ClassVar[str] = "sticky"
    is_cooperative: ClassVar[bool] = False

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        fields = FieldWriter()
        write_partitions(fields, owned)
        return fields.int32(generation).done()

    def assign(self, counts: Mapping[str, int], members: Iterable[Member]) -> Partitions:
        ordered = sorted(members, key=lambda member: member.id)
        wanted = {member.id: frozenset(member.subscription.topics) for member in ordered}
        return balance(counts, wanted, _undisputed({member.id: self._had(member.subscription) for member in ordered}))

    def _had(self, subscription: Subscription) -> tuple[Iterable[TopicPartition], int]:
        """Partitions, and the generation in which they were had."""
        if not subscription.user_data:
            return subscription.owned, subscription.generation
        fields = member_fields(subscription.user_data, "a member's user data for the sticky assignor")
        try:
            partitions = read_partitions(fields)
            return partitions, fields.int32() if fields.left else NO_GENERATION
        except MalformedResponseError:
            return (), NO_GENERATION  # another's format: it keeps nothing, and that is all


class CooperativeStickyAssignor(StickyAssignor):
    """What a member owns is in its subscription; the generation is there too, and for old members in the user data."""

    name: ClassVar[str] = "cooperative-sticky"
    is_cooperative: ClassVar[bool] = True

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:  # noqa: ARG002
        return INT32.pack(generation)

    def _had(self, subscription: Subscription) -> tuple[Iterable[TopicPartition], int]:
        generation = subscription.generation
        if generation == NO_GENERATION and subscription.user_data and len(subscription.user_data) >= INT32.size:
            (generation,) = INT32.unpack(subscription.user_data[-INT32.size :])
        return subscription.owned, generation

    def assign(self, counts: Mapping[str, int], members: Iterable[Member]) -> Partitions:
        known = list(members)
        given = super().assign(counts, known)
        owner = {partition: member.id for member in known for partition in member.subscription.owned}
        for member_id, mine in given.items():
            # One that another still has waits for the next rebalance, when that one will have given it up.
            given[member_id] = [one for one in mine if owner.get(one, member_id) == member_id]
        return given


def _undisputed(had: Mapping[str, tuple[Iterable[TopicPartition], int]]) -> dict[str, list[TopicPartition]]:
    """Each partition's owner of the latest generation. Two of the same generation: nobody's word counts."""
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
    made: list[Assignor] = []
    for name in names:
        # Java's settings name classes; their last word says which is meant.
        short = (
            name.rpartition(".")[2].removesuffix("Assignor").replace("CooperativeSticky", "cooperative-sticky").lower()
        )
        if short not in ASSIGNORS:
            known = ", ".join(ASSIGNORS)
            raise ConfigError(f"partition.assignment.strategy has {name!r}; it must be one of: {known}")
        made.append(ASSIGNORS[short]())
    return made
