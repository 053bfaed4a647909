"""Offsets with what belongs to them, as users give and get them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stratalog.client.metadata import TopicPartition, place_of


class OffsetAndMetadata(NamedTuple):
    """A committed offset: that of the record to read next. `leader_epoch`: of the record before it; -1: not known."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """Which member of which group a consumer is, for a producer that commits in its name."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None


def offsets_given(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """What a user wants to commit: each is the offset of the record to read next."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets are {offsets!r}; a dict is wanted, as {{TopicPartition('orders', 0): 42}}")
    wanted = {}
    for place, given in offsets.items():
        one = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
        if not isinstance(one.offset, int):
            raise TypeError(f"offset of {place_of(place)} is {one.offset!r}; a number is wanted")
        if one.offset < 0:
            raise ValueError(f"offset of {place_of(place)} is {one.offset}; it must not be negative")
        wanted[place_of(place)] = one
    return wanted


def offset_topics(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[dict[str, Any]]:
    """As OffsetCommit and TxnOffsetCommit name them."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for place, one in offsets.items():
        entry = {
            "partition_index": place.partition,
            "committed_offset": one.offset,
            "committed_leader_epoch": one.leader_epoch,
            "committed_metadata": one.metadata,
        }
        topics.setdefault(place.topic, []).append(entry)
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
