"""Decides which segments of a log may be deleted, and why. Pure: it gets facts and returns verdicts. The log deletes
the segments.

These are Kafka's rules. Only the oldest segments are deleted, in order, up to the first that must stay:
- by offset: everything in the segment is before the log start offset
- by time: the segment's largest timestamp is older than retention.ms (without timestamps, the file's time counts)
- by size: the log is larger than retention.bytes even without the segment
A segment with records at or after `upper_bound`, the high watermark, stays. So does an empty last segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.storage.config import LogConfig


class SegmentFacts(NamedTuple):
    """The facts about a segment that retention and compaction decide by. The timestamps are functions because they may
    cost a read."""

    base_offset: int
    next_offset: int
    size: int
    largest_timestamp: Callable[[], int]
    first_timestamp: Callable[[], int] = lambda: -1  # of its first batch


class Doomed(NamedTuple):
    """A segment to delete, and the reason."""

    base_offset: int
    reason: str


def doomed(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    *,
    log_start_offset: int,
    upper_bound: int,
    now_ms: int,
) -> list[Doomed]:
    """Return the oldest segments that may be deleted, in order."""
    verdicts: list[Doomed] = []
    excess = sum(segment.size for segment in segments) - config.retention_bytes if config.retention_bytes >= 0 else -1
    for segment in segments:
        is_empty_last = segment is segments[-1] and segment.size == 0
        if is_empty_last or segment.next_offset > upper_bound:
            break
        reason = _reason(segment, config, log_start_offset, now_ms, excess)
        if reason is None:
            break
        verdicts.append(Doomed(segment.base_offset, reason))
        excess -= segment.size
    return verdicts


def _reason(segment: SegmentFacts, config: LogConfig, log_start_offset: int, now_ms: int, excess: int) -> str | None:
    if segment.next_offset <= log_start_offset:
        return f"all its offsets are before the log start offset, {log_start_offset}"
    if "delete" not in config.cleanup_policy:
        return None
    if excess >= segment.size and excess > 0:
        return f"the log is {excess} bytes larger than retention.bytes, {config.retention_bytes}"
    if config.retention_ms >= 0:
        age = now_ms - segment.largest_timestamp()
        if age > config.retention_ms:
            return f"its newest record is {age} ms old, retention.ms is {config.retention_ms}"
    return None
