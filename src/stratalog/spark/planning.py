"""From offsets to tasks, and from a backlog to a micro-batch. Pure: what brokers know is given.

Whatever is split, the parts together are exactly the whole, and no two overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from math import ceil, floor

from stratalog.client.metadata import TopicPartition
from stratalog.spark.predicate import Predicate
from stratalog.spark.scan_request import OffsetRange

Offsets = Mapping[TopicPartition, int]


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """The ranges as tasks: none with more than `max_records` offsets, and about `min_partitions` in all, of which large
    ranges get more than small ones. Empty ranges are left out."""
    wanted = [one for one in ranges if one.size > 0]
    if max_records is not None:
        wanted = [part for one in wanted for part in _cut(one, ceil(one.size / max_records))]
    if min_partitions is None or len(wanted) >= min_partitions:
        return wanted
    total = sum(one.size for one in wanted)
    is_small = [_share(one.size, total, min_partitions) == 1 for one in wanted]
    large_total = total - sum(one.size for one, small in zip(wanted, is_small, strict=True) if small)
    left = max(1, min_partitions - sum(is_small))
    tasks: list[OffsetRange] = []
    for one, small in zip(wanted, is_small, strict=True):
        tasks += [one] if small else _cut(one, _share(one.size, large_total, left))
    return tasks


def _share(size: int, total: int, parts: int) -> int:
    return max(1, floor(size / total * parts + 0.5))


def _cut(one: OffsetRange, parts: int) -> list[OffsetRange]:
    """In so many, the sizes of which differ by at most 1; fewer where there are not so many offsets."""
    parts = min(parts, one.size)
    bounds = [one.start + one.size * index // parts for index in range(parts + 1)]
    return [replace(one, start=start, end=end) for start, end in pairwise(bounds)]


def prune(ranges: Iterable[OffsetRange], predicate: Predicate) -> list[OffsetRange]:
    """What can have wanted rows."""
    if predicate.is_nothing:
        return []
    kept = []
    for one in ranges:
        if predicate.wants_partition(one.topic, one.partition):
            start, end = predicate.clamp(one.start, one.end)
            kept.append(replace(one, start=start, end=end))
    return kept


# Micro-batches


def limit_rows(start: Offsets, latest: Offsets, most: int) -> dict[TopicPartition, int]:
    """Where a micro-batch of about `most` offsets ends: each partition gets its share of them, in proportion to its
    backlog, and at least one offset, or a small partition beside large ones would never have its turn. `start` names
    all partitions of `latest`."""
    backlog = {place: latest[place] - start[place] for place in latest if latest[place] > start[place]}
    total = sum(backlog.values())
    ends = dict(latest)
    for place, size in backlog.items():
        # In whole numbers: backlogs may be larger than a float can count.
        share = max(1, most * size // total)
        ends[place] = start[place] + min(size, share)
    return ends


def limit_bytes(
    start: Offsets, latest: Offsets, bytes_per_offset: Mapping[TopicPartition, float], most: int
) -> dict[TopicPartition, int]:
    """Where a micro-batch of about `most` bytes ends: all partitions advance by the same part of their backlogs, by at
    least one offset each. Exact where the records of a partition are of one size, as the sizes are averages."""
    backlog = {place: latest[place] - start[place] for place in latest if latest[place] > start[place]}
    total = sum(size * bytes_per_offset.get(place, 0.0) for place, size in backlog.items())
    if total <= most:
        return dict(latest)
    part = most / total
    ends = dict(latest)
    for place, size in backlog.items():
        ends[place] = start[place] + min(size, max(1, floor(size * part)))
    return ends


def backlog(start: Offsets, latest: Offsets) -> int:
    return sum(max(0, end - start.get(place, end)) for place, end in latest.items())


# Offsets in the checkpoint

Json = dict[str, dict[str, int]]


def to_json(offsets: Offsets) -> Json:
    """{"topic": {"0": 23}}, as the stock connector has it. Spark compares the text, so the order is always the same."""
    found: Json = {}
    for place in sorted(offsets):
        found.setdefault(place.topic, {})[str(place.partition)] = offsets[place]
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }
