"""Decides which part of a log is clean, which part can be cleaned now, and why the rest can't. Pure: it gets facts and
returns a verdict.

These are Kafka's rules. A log is clean up to its first dirty offset. The segments after that can be cleaned, up to the
first of these: the active segment, a segment with records of an open transaction, a segment with offsets at or after
the high watermark, a segment with a record younger than min.compaction.lag.ms. The log is due if the part that can be
cleaned is more than min.cleanable.dirty.ratio of it and the clean part together, or if its oldest record is older than
max.compaction.lag.ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from stratalog.storage.config import LogConfig
from stratalog.storage.retention import SegmentFacts

MAX_OFFSET_RANGE = 2**31 - 1  # the largest relative offset that fits into a segment's indexes


class Dirt(NamedTuple):
    """The parts of a log: clean, cleanable and uncleanable, in this order, and whether a run is due."""

    first_dirty_offset: int
    first_uncleanable_offset: int  # where a run would stop now
    clean_bytes: int
    cleanable_bytes: int
    uncleanable_bytes: int
    blocked_by: str  # why the segments from first_uncleanable_offset on can't be cleaned yet
    oldest_dirty_ms: int | None  # about the time of the oldest record that can be cleaned; None if it is not needed
    is_due: bool
    reason: str  # why the log is due, or why not

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


def assess(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    *,
    first_dirty_offset: int,
    last_stable_offset: int,
    now_ms: int,
    high_watermark: int | None = None,
) -> Dirt:
    """Assess a log. `segments` are all its segments, the active one last. Without a `high_watermark`, all of it is
    committed."""
    blocked = len(segments) - 1
    blocked_by = "the active segment is never cleaned; segment.bytes and segment.ms decide when it rolls"
    for slot, segment in enumerate(segments[:-1]):
        if segment.next_offset <= first_dirty_offset:
            continue
        if segment.next_offset > last_stable_offset:
            blocked, blocked_by = slot, f"a transaction has been open since offset {last_stable_offset}"
            break
        if high_watermark is not None and segment.next_offset > high_watermark:
            blocked, blocked_by = slot, f"the other replicas may not have offset {high_watermark}, the high watermark"
            break
        age = now_ms - segment.largest_timestamp() if config.min_compaction_lag_ms > 0 else 0
        if age < config.min_compaction_lag_ms:
            blocked, blocked_by = (
                slot,
                (
                    f"the segment at {segment.base_offset} has a record that is {age} ms old, "
                    f"and min.compaction.lag.ms is {config.min_compaction_lag_ms}"
                ),
            )
            break
    clean = [segment for segment in segments[:blocked] if segment.next_offset <= first_dirty_offset]
    dirty = segments[len(clean) : blocked]
    # Only if it may decide, because it costs a read of each segment.
    needs_age = bool(dirty) and config.max_compaction_lag_ms < now_ms
    oldest = min(segment.first_timestamp() for segment in dirty) if needs_age else None
    dirt = Dirt(
        first_dirty_offset,
        segments[blocked].base_offset,
        _size(clean),
        _size(dirty),
        _size(segments[blocked:]),
        blocked_by,
        oldest,
        is_due=False,
        reason="",
    )
    is_due, reason = _verdict(dirt, config, now_ms)
    return dirt._replace(is_due=is_due, reason=reason)


def _size(segments: Sequence[SegmentFacts]) -> int:
    return sum(segment.size for segment in segments)


def _verdict(dirt: Dirt, config: LogConfig, now_ms: int) -> tuple[bool, str]:
    if "compact" not in config.cleanup_policy:
        return False, f"cleanup.policy is {','.join(config.cleanup_policy) or 'empty'}: the log is not compacted"
    if not dirt.cleanable_bytes and not dirt.uncleanable_bytes:
        return False, "the whole log is clean" if dirt.clean_bytes else "the log is empty"
    if not dirt.cleanable_bytes:
        return False, f"nothing new can be cleaned: {dirt.blocked_by}"
    if dirt.ratio > config.min_cleanable_dirty_ratio:
        return True, (
            f"{dirt.ratio:.2f} of the log is dirty, more than min.cleanable.dirty.ratio, "
            f"{config.min_cleanable_dirty_ratio:g}"
        )
    waited = 0 if dirt.oldest_dirty_ms is None else now_ms - dirt.oldest_dirty_ms
    if waited > config.max_compaction_lag_ms:
        return True, f"a dirty segment is {waited} ms old, and max.compaction.lag.ms is {config.max_compaction_lag_ms}"
    return False, (
        f"{dirt.ratio:.2f} of the log is dirty; it is due above min.cleanable.dirty.ratio, "
        f"{config.min_cleanable_dirty_ratio:g}"
    )


class SegmentSize(NamedTuple):
    """The facts about a segment that grouping needs."""

    base_offset: int
    next_offset: int
    size: int
    index_size: int


S = TypeVar("S", bound=SegmentSize)


def groups(segments: Sequence[S], max_bytes: int, max_index_bytes: int) -> list[list[S]]:
    """Group neighbouring segments that fit into one segment together, so that repeated compaction does not leave many
    small files."""
    grouped: list[list[S]] = []
    size = index_size = 0
    for segment in segments:
        fits = (
            bool(grouped)
            and size + segment.size <= max_bytes
            and index_size + segment.index_size <= max_index_bytes
            and segment.next_offset - 1 - grouped[-1][0].base_offset <= MAX_OFFSET_RANGE
        )
        if fits:
            grouped[-1].append(segment)
        else:
            grouped.append([segment])
            size = index_size = 0
        size += segment.size
        index_size += segment.index_size
    return grouped
