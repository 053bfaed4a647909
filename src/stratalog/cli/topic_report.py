"""What there is to say of topics, for people or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from stratalog.cli import wording
from stratalog.cli.bounds import AdminBounds
from stratalog.cli.output import QUIET, STRONG, Output
from stratalog.cli.program import printable
from stratalog.cli.tables import print_table
from stratalog.client.admin import Admin, ConfigResource, ConfigSource
from stratalog.client.errors import ClientError
from stratalog.client.metadata import TopicInfo, TopicPartition


def list_lines(output: Output, topics: Mapping[str, TopicInfo]) -> None:
    if output.as_json:
        for name, info in topics.items():
            output.json(
                {
                    "type": "topic",
                    "topic": name,
                    "topic_id": str(info.id),
                    "partitions": len(info.partitions),
                    "internal": info.is_internal,
                }
            )
    elif topics:
        rows = [(name, len(info.partitions), info.id) for name, info in topics.items()]
        print_table(output, ("topic", "partitions", "id"), rows)
    else:
        output.line(("no topics yet; `stratalog topic create NAME` makes one", QUIET))


@dataclass(frozen=True)
class TopicReport:
    info: TopicInfo
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    sizes: Mapping[TopicPartition, int]  # of the leaders; not all brokers tell
    settings: Mapping[str, str]  # the topic's own

    @classmethod
    def of(cls, admin: Admin, info: TopicInfo) -> Self:
        places = [TopicPartition(info.name, one.partition) for one in info.partitions]
        bounds = AdminBounds(admin)
        settings = admin.describe_config(ConfigResource.topic(info.name))
        return cls(
            info,
            bounds.beginning_offsets(places),
            bounds.end_offsets(places),
            _sizes(admin, info, places),
            {
                name: entry.value or ""
                for name, entry in sorted(settings.items())
                if entry.source is ConfigSource.TOPIC and not entry.is_sensitive
            },
        )

    def show(self, output: Output) -> None:
        if output.as_json:
            output.json(self._as_json())
            return
        info = self.info
        replicas = len(info.partitions[0].replicas) if info.partitions else 0
        records = sum(self.ends.values()) - sum(self.starts.values())
        about = [wording.plural(len(info.partitions), "partition"), wording.plural(replicas, "replica")]
        about.append(f"at most {wording.plural(records, 'record')}")
        if self.sizes:
            about.append(wording.size(sum(self.sizes.values())))
        output.line((printable(info.name), STRONG), (f"  {', '.join(about)}, id {info.id}", QUIET))
        rows = []
        for one in info.partitions:
            place = TopicPartition(info.name, one.partition)
            size = self.sizes.get(place)
            in_sync = ",".join(map(str, one.isr))
            rows.append(
                (
                    str(one.partition),
                    str(one.leader) if one.leader >= 0 else "none",
                    ",".join(map(str, one.replicas)),
                    in_sync,
                    self.starts[place],
                    self.ends[place],
                    None if size is None else wording.size(size),
                )
            )
        print_table(output, ("partition", "leader", "replicas", "in sync", "start", "end", "size"), rows, "  ")
        for name, value in self.settings.items():
            output.line(f"  {printable(name)}={printable(value)}")

    def _as_json(self) -> dict[str, object]:
        partitions = []
        for one in self.info.partitions:
            place = TopicPartition(self.info.name, one.partition)
            partitions.append(
                {
                    "partition": one.partition,
                    "leader": one.leader,
                    "leader_epoch": one.leader_epoch,
                    "replicas": list(one.replicas),
                    "isr": list(one.isr),
                    "start_offset": self.starts[place],
                    "end_offset": self.ends[place],
                    "size": self.sizes.get(place),
                }
            )
        return {
            "type": "topic",
            "topic": self.info.name,
            "topic_id": str(self.info.id),
            "internal": self.info.is_internal,
            "partitions": partitions,
            "settings": dict(self.settings),
        }


def _sizes(admin: Admin, info: TopicInfo, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    """What the partitions take up at their leaders. It is not worth an error where a broker does not tell."""
    leaders = {TopicPartition(info.name, one.partition): one.leader for one in info.partitions}
    try:
        by_node = admin.describe_log_dirs({node for node in leaders.values() if node >= 0}, partitions=places)
    except ClientError:
        return {}
    sizes: dict[TopicPartition, int] = {}
    for node, directories in by_node.succeeded().items():
        for directory in directories.values():
            for place, replica in directory.replicas.items():
                if leaders.get(place) == node and not replica.is_future:
                    sizes[place] = replica.size
    return sizes
