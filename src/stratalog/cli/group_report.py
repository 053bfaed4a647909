"""What there is to say of consumer groups, for people or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from stratalog.cli import wording
from stratalog.cli.output import QUIET, STRONG, Output
from stratalog.cli.program import CommandError, printable
from stratalog.cli.tables import print_table
from stratalog.client.admin import Admin, GroupDescription, GroupListing, GroupMember, OffsetSpec
from stratalog.client.metadata import TopicPartition

_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Empty", "Dead", "Assigning", "Reconciling")


def known_states(states: Sequence[str]) -> list[str]:
    """With Kafka's capitals. One that is not known stays as it is: a newer broker may have it."""
    known = {state.lower(): state for state in _STATES}
    return [known.get(state.lower(), state) for state in states]


def check_states(states: Sequence[str]) -> None:
    """Raise where a state is the mistake; no group is in any of them."""
    unknown = [state for state in known_states(states) if state not in _STATES]
    if unknown:
        raise CommandError(f"no group is in state {unknown[0]!r}; states are {', '.join(_STATES)}")


def list_lines(output: Output, groups: Sequence[GroupListing], states: Sequence[str] = (), others: int = 0) -> None:
    """`others`: how many groups there are that are in none of the states."""
    if output.as_json:
        for one in groups:
            fields = {"group": one.name, "state": one.state, "group_type": one.type, "protocol_type": one.protocol_type}
            output.json({"type": "group", **fields})
    elif groups:
        print_table(output, ("group", "type", "state"), [(one.name, one.type or None, one.state) for one in groups])
    elif others:
        shown = " or ".join(repr(state) for state in known_states(states))
        output.line((f"no group is in state {shown}; `stratalog group list` shows all {others:,}", QUIET))
    else:
        output.line(("no groups; they appear with their first consumer", QUIET))


@dataclass(frozen=True)
class GroupReport:
    """All partitions of the topics in which the group has committed or reads.

    Where it has no commit, the lag counts from the log's start: auto.offset.reset is a setting of the consumers, which
    no broker knows.
    """

    description: GroupDescription
    committed: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int]  # these two lack topics that were deleted
    ends: Mapping[TopicPartition, int]
    readers: Mapping[TopicPartition, GroupMember]

    @classmethod
    def of(cls, admin: Admin, description: GroupDescription) -> Self:
        committed = {place: one.offset for place, one in admin.list_group_offsets(description.name).items()}
        readers = {place: member for member in description.members for place in member.assignment}
        used = {*committed, *readers}
        topics = admin.describe_topics(sorted({place.topic for place in used})).succeeded() if used else {}
        there = [TopicPartition(name, one.partition) for name, info in topics.items() for one in info.partitions]
        starts, ends = _offsets(admin, there, OffsetSpec.EARLIEST), _offsets(admin, there, OffsetSpec.LATEST)
        return cls(description, committed, starts, ends, readers)

    @property
    def places(self) -> list[TopicPartition]:
        return sorted({*self.committed, *self.readers, *self.ends})

    def lag(self, place: TopicPartition) -> int | None:
        begin, end = self.committed.get(place, self.starts.get(place)), self.ends.get(place)
        return None if begin is None or end is None else max(0, end - begin)

    @property
    def total_lag(self) -> int:
        return sum(self.lag(place) or 0 for place in self.places)

    def show(self, output: Output) -> None:
        if output.as_json:
            output.json(self._as_json())
            return
        group = self.description
        about = [group.state, group.type, *([group.assignor] if group.assignor else [])]
        about += [wording.plural(len(group.members), "member"), f"lag {self.total_lag:,}"]
        output.line((printable(group.name), STRONG), (f"  {', '.join(about)}, coordinator {group.coordinator}", QUIET))
        rows = []
        for place in self.places:
            member = self.readers.get(place)
            rows.append(
                (
                    place.topic,
                    str(place.partition),
                    self.committed.get(place),
                    self.ends.get(place),
                    self.lag(place),
                    None if member is None else member.client_id,
                    None if member is None else member.host,
                    None if member is None else member.id,
                )
            )
        if rows:
            columns = ("topic", "partition", "committed", "end", "lag", "client", "host", "member")
            print_table(output, columns, rows, "  ")
            if any(place not in self.committed and place in self.ends for place in self.places):
                output.line(("  without a committed offset (-), the lag counts from the start of the log", QUIET))
        else:
            output.line(("  nothing is committed, and nobody reads", QUIET))
        idle = [member for member in group.members if not member.assignment]
        if idle:
            output.line(f"  without a partition: {', '.join(printable(member.id) for member in idle)}")

    def _as_json(self) -> dict[str, object]:
        group = self.description
        return {
            "type": "group",
            "group": group.name,
            "state": group.state,
            "group_type": group.type,
            "assignor": group.assignor,
            "coordinator": {"id": group.coordinator.id, "host": group.coordinator.host, "port": group.coordinator.port},
            "lag": self.total_lag,
            "partitions": [
                {
                    "topic": place.topic,
                    "partition": place.partition,
                    "committed_offset": self.committed.get(place),
                    "start_offset": self.starts.get(place),
                    "end_offset": self.ends.get(place),
                    "lag": self.lag(place),
                    "member": self.readers[place].id if place in self.readers else None,
                }
                for place in self.places
            ],
            "members": [
                {
                    "member": member.id,
                    "instance": member.instance_id,
                    "client": member.client_id,
                    "host": member.host,
                    "partitions": [[place.topic, place.partition] for place in member.assignment],
                }
                for member in group.members
            ],
        }


def _offsets(admin: Admin, places: Sequence[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
    if not places:
        return {}
    found = admin.list_offsets(dict.fromkeys(places, spec)).succeeded()
    return {place: one.offset for place, one in found.items()}
