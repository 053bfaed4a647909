"""Splits ranges of offsets into tasks, and limits the backlog to a micro-batch. Pure.

The parts of a range cover it exactly, and never overlap.
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
    """Split ranges into tasks of at most `max_records` offsets, about `min_partitions` in total. Larger ranges become
    more tasks. Empty ranges are dropped."""
    parts = [each for each in ranges if each.size > 0]
    if max_records is not None:
        parts = [part for each in parts for part in _cut(each, ceil(each.size / max_records))]
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    total = sum(part.size for part in parts)
    is_small = [_share(part.size, total, min_partitions) == 1 for part in parts]
    large_total = total - sum(part.size for part, small in zip(parts, is_small, strict=True) if small)
    remaining = max(1, min_partitions - sum(is_small))
    tasks: list[OffsetRange] = []
    for part, small in zip(parts, is_small, strict=True):
        tasks += [part] if small else _cut(part, _share(part.size, large_total, remaining))
    return tasks


def _share(size: int, total: int, parts: int) -> int:
    return max(1, floor(size / total * parts + 0.5))


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut a range into parts whose sizes differ by at most 1; into fewer parts if it has fewer offsets."""
    parts = min(parts, whole.size)
    bounds = [whole.start + whole.size * index // parts for index in range(parts + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(bounds)]


def prune(ranges: Iterable[OffsetRange], predicate: Predicate) -> list[OffsetRange]:
    """Reduce the ranges to the parts that can contain matching rows."""
    if predicate.is_nothing:
        return []
    kept = []
    for each in ranges:
        if predicate.selects_partition(each.topic, each.partition):
            start, end = predicate.clamp(each.start, each.end)
            kept.append(replace(each, start=start, end=end))
    return kept


# Micro-batches


def limit_rows(start: Offsets, latest: Offsets, most: int) -> dict[TopicPartition, int]:
    """Return the end offsets of a micro-batch of about `most` offsets. Each partition gets a share in proportion to its
    backlog, but at least one offset, so that small partitions make progress. `start` must contain all partitions of
    `latest`."""
    sizes = _backlogs(start, latest)
    total = sum(sizes.values())
    ends = dict(latest)
    for partition, size in sizes.items():
        share = max(1, most * size // total)  # integers, because a float can't count the largest backlogs
        ends[partition] = start[partition] + min(size, share)
    return ends


def limit_bytes(
    start: Offsets, latest: Offsets, bytes_per_offset: Mapping[TopicPartition, float], most: int
) -> dict[TopicPartition, int]:
    """Return the end offsets of a micro-batch of about `most` bytes. All partitions advance by the same fraction of
    their backlogs, but by at least one offset. The sizes are averages, so the result is exact only for records of one
    size.
    """
    sizes = _backlogs(start, latest)
    total = sum(size * bytes_per_offset.get(partition, 0.0) for partition, size in sizes.items())
    if total <= most:
        return dict(latest)
    fraction = most / total
    ends = dict(latest)
    for partition, size in sizes.items():
        ends[partition] = start[partition] + min(size, max(1, floor(size * fraction)))
    return ends


def _backlogs(start: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    return {
        partition: latest[partition] - start[partition] for partition in latest if latest[partition] > start[partition]
    }


def backlog(start: Offsets, latest: Offsets) -> int:
    return sum(max(0, end - start.get(partition, end)) for partition, end in latest.items())


# Offsets in the checkpoint

Json = dict[str, dict[str, int]]


def to_json(offsets: Offsets) -> Json:
    """Return {"topic": {"0": 23}}, the format of Spark's Kafka connector, sorted because Spark compares it as text."""
    topics: Json = {}
    for partition in sorted(offsets):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return topics


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }
