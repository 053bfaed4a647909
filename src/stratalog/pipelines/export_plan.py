"""Plans what the next step of an export reads, and which small files it merges. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stratalog.client.metadata import TopicPartition
from stratalog.errors import OffsetOutOfRangeError
from stratalog.pipelines.table_commits import Offsets
from stratalog.pipelines.table_files import TableFile
from stratalog.spark.planning import limit_rows
from stratalog.spark.scan_request import OffsetRange


class PartitionBounds(NamedTuple):
    """The log start offset of a partition, and the offset at which an export ends: the last stable offset."""

    earliest: int
    latest: int


class Step(NamedTuple):
    """The ranges to read. `lost` counts, by partition, the records that were deleted before they were exported."""

    ranges: list[OffsetRange]
    lost: dict[TopicPartition, int]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.ranges)


def plan_step(done: Offsets, bounds: Mapping[TopicPartition, PartitionBounds], max_offsets: int) -> Step:
    """Plan the ranges after the exported offsets, at most `max_offsets` in total, in proportion to each backlog.

    Raises OffsetOutOfRangeError if a partition ends before its exported offsets: it is not the same partition.
    """
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    lost: dict[TopicPartition, int] = {}
    for partition, (earliest, latest) in sorted(bounds.items()):
        start = done.get(partition.topic, {}).get(partition.partition, earliest)
        if start > latest:
            raise OffsetOutOfRangeError(
                f"{partition} ends at offset {latest}, but the table already contains it up to offset {start}: the "
                "partition was truncated or created again; export to another table"
            )
        if start < earliest:
            lost[partition] = earliest - start
            start = earliest
        if start < latest:
            starts[partition], ends[partition] = start, latest
    ends = limit_rows(starts, ends, max_offsets)
    return Step([OffsetRange(*partition, start, ends[partition]) for partition, start in starts.items()], lost)


def after(done: Offsets, step: Step) -> dict[str, dict[int, int]]:
    """Return the exported offsets after the step."""
    offsets = {topic: dict(partitions) for topic, partitions in done.items()}
    for each in step.ranges:
        offsets.setdefault(each.topic, {})[each.partition] = each.end
    return offsets


def plan_merges(files: Sequence[TableFile], target_bytes: int, fewest: int) -> list[list[TableFile]]:
    """Group small files that follow each other in a folder. Each group has at least `fewest` files and makes one file
    of about `target_bytes`.

    A file of more than half the target is left as it is, so each byte is rewritten only a few times.
    """
    folders: dict[str, list[TableFile]] = {}
    for file in sorted(files):
        folders.setdefault(file.path.rpartition("/")[0], []).append(file)
    groups = []
    for folder_files in folders.values():
        group: list[TableFile] = []
        for file in folder_files:
            if file.size > target_bytes // 2:
                continue
            if group and sum(member.size for member in group) + file.size > target_bytes:
                groups.append(group)
                group = []
            group.append(file)
        groups.append(group)
    return [group for group in groups if len(group) >= max(fewest, 2)]
