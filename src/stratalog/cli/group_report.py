"""What there is to say of consumer groups, for people or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from stratalog.cli import wording
from stratalog.cli.output import QUIET, STRONG, Output
from stratalog.cli.program import printable
from stratalog.cli.tables import print_table
from stratalog.client.admin import Admin, GroupDescription, GroupListing, GroupMember, OffsetSpec
from stratalog.client.metadata import TopicPartition


def list_lines(output: Output, groups: Sequence[GroupListing]) -> None:
    if output.as_json:
        for one in groups:
            fields = {"group": one.name, "state": one.state, "group_type": one.type, "protocol_type": one.protocol_type}
            output.json({"type": "group", **fields})
    elif groups:
        print_table(output, ("group", "type", "state"), [(one.name, one.type or None, one.state) for one in groups])
    else:
        output.line(("no groups; they appear with their first consumer", QUIET))


@dataclass(frozen=True)
class GroupReport:
    description: GroupDescription
    committed: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]  # not of topics that are gone
    readers: Mapping[TopicPartition, GroupMember]

    @classmethod
    def of(cls, admin: Admin, description: GroupDescription) -> Self:
        committed = {place: one.offset for place, one in admin.list_group_offsets(description.name).items()}
        readers = {place: member for member in description.members for place in member.assignment}
        wanted = dict.fromkeys([*committed, *readers], OffsetSpec.LATEST)
        ends = (
            {place: found.offset for place, found in admin.list_offsets(wanted).succeeded().items()} if wanted else {}
        )
        return cls(description, committed, ends, readers)

    @property
    def places(self) -> list[TopicPartition]:
        return sorted({*self.committed, *self.readers})

    def lag(self, place: TopicPartition) -> int | None:
        if place not in self.committed or place not in self.ends:
            return None
        return max(0, self.ends[place] - self.committed[place])

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
