"""Offsets with what belongs to them, as users give and get them."""

from __future__ import annotations

from typing import NamedTuple


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
