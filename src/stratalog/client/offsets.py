"""Offsets with their metadata, in the API of the clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stratalog.client.metadata import TopicPartition, to_topic_partition


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the offset of the record to read next. `leader_epoch` belongs to the record before it; -1 if
    it is not known."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    """The offset of the first record at or after a timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """A consumer's group and its identity in it, for a producer that commits offsets on its behalf."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None


def parse_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Check offsets that a user commits, each that of the record to read next, and return them in one form."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets are {offsets!r}; they must be a dict, such as {{TopicPartition('orders', 0): 42}}")
    parsed = {}
    for key, value in offsets.items():
        partition = to_topic_partition(key)
        offset = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
        if not isinstance(offset.offset, int):
            raise TypeError(f"offset of {partition} is {offset.offset!r}; it must be a number")
        if offset.offset < 0:
            raise ValueError(f"offset of {partition} is {offset.offset}; it must not be negative")
        parsed[partition] = offset
    return parsed


def offset_topics(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[dict[str, Any]]:
    """Return the `topics` field of OffsetCommit and TxnOffsetCommit."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition, offset in offsets.items():
        entry = {
            "partition_index": partition.partition,
            "committed_offset": offset.offset,
            "committed_leader_epoch": offset.leader_epoch,
            "committed_metadata": offset.metadata,
        }
        topics.setdefault(partition.topic, []).append(entry)
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
