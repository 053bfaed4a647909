"""What the next step of an export reads, and which small files it merges. Pure: facts in, a plan out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stratalog.client.metadata import TopicPartition
from stratalog.errors import OffsetOutOfRangeError
from stratalog.pipelines.table_commits import Offsets
from stratalog.pipelines.table_files import TableFile
from stratalog.spark.planning import limit_rows
from stratalog.spark.scan_request import OffsetRange


class Bounds(NamedTuple):
    """Of a partition: the first offset that it has, and the one behind its last that counts."""

    earliest: int
    latest: int


class Step(NamedTuple):
    """`lost`: records that went before they were exported, by partition."""

    ranges: list[OffsetRange]
    lost: dict[tuple[str, int], int]

    @property
    def size(self) -> int:
        return sum(one.size for one in self.ranges)


def plan_step(done: Offsets, bounds: Mapping[tuple[str, int], Bounds], max_offsets: int) -> Step:
    """Of each partition what lies behind what is done, at most `max_offsets` of all together, in shares of what each
    has. Raises OffsetOutOfRangeError where a partition ends before what is done: it is not the one it was."""
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    lost: dict[tuple[str, int], int] = {}
    for (topic, partition), (earliest, latest) in sorted(bounds.items()):
        start = done.get(topic, {}).get(partition, earliest)
        if start > latest:
            what = f"{topic}-{partition} ends at offset {latest}, the table has it up to {start} already"
            raise OffsetOutOfRangeError(f"{what}: it was cut, or made anew; export to another table")
        if start < earliest:
            lost[topic, partition] = earliest - start
            start = earliest
        if start < latest:
            place = TopicPartition(topic, partition)
            starts[place], ends[place] = start, latest
    ends = limit_rows(starts, ends, max_offsets)
    return Step([OffsetRange(*place, start, ends[place]) for place, start in starts.items()], lost)


def after(done: Offsets, step: Step) -> dict[str, dict[int, int]]:
    """Up to where the table goes once the step is done."""
    offsets = {topic: dict(partitions) for topic, partitions in done.items()}
    for one in step.ranges:
        offsets.setdefault(one.topic, {})[one.partition] = one.end
    return offsets


def plan_merges(files: Sequence[TableFile], target_bytes: int, fewest: int) -> list[list[TableFile]]:
    """Groups of small neighbours in a folder, each of `fewest` or more, that make one file of about the target.

    A file of more than half the target is left alone: so each byte is written again only a few times.
    """
    folders: dict[str, list[TableFile]] = {}
    for file in sorted(files):
        folders.setdefault(file.path.rpartition("/")[0], []).append(file)
    groups = []
    for of_folder in folders.values():
        group: list[TableFile] = []
        for file in of_folder:
            if file.size > target_bytes // 2:
                continue
            if group and sum(one.size for one in group) + file.size > target_bytes:
                groups.append(group)
                group = []
            group.append(file)
        groups.append(group)
    return [group for group in groups if len(group) >= max(fewest, 2)]
