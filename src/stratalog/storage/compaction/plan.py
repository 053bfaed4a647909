"""What of a log is clean, what could be cleaned now, and what keeps the rest from it. Pure: facts in, a verdict out.

Kafka's rules. A log is clean up to its first dirty offset. From there on segments can be cleaned, up to the first that
can't: the one that grows, one with records of an open transaction, one that holds a record younger than
min.compaction.lag.ms. It is due when the part that can be cleaned is more than min.cleanable.dirty.ratio of the whole,
or its oldest record is older than max.compaction.lag.ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from stratalog.storage.config import LogConfig
from stratalog.storage.retention import SegmentFacts

MAX_OFFSET_RANGE = 2**31 - 1  # of a segment: its indexes have room for no more


class Dirt(NamedTuple):
    first_dirty_offset: int
    first_uncleanable_offset: int  # up to where a run would look now
    clean_bytes: int
    cleanable_bytes: int
    uncleanable_bytes: int
    blocked_by: str  # why what lies behind first_uncleanable_offset can't be cleaned yet
    oldest_dirty_ms: (
        int | None
    )  # about the time of the oldest record that can be cleaned, if max.compaction.lag.ms asks
    is_due: bool
    reason: str  # for is_due, either way

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
) -> Dirt:
    """`segments`: all of a log, the growing one last."""
    blocked = len(segments) - 1
    blocked_by = "the segment that grows is never cleaned; it rolls by segment.bytes or segment.ms"
    for slot, segment in enumerate(segments[:-1]):
        if segment.next_offset <= first_dirty_offset:
            continue
        if segment.next_offset > last_stable_offset:
            blocked, blocked_by = slot, f"a transaction is open since offset {last_stable_offset}"
            break
        age = now_ms - segment.largest_timestamp() if config.min_compaction_lag_ms > 0 else 0
        if age < config.min_compaction_lag_ms:
            blocked, blocked_by = (
                slot,
                (
                    f"the segment at {segment.base_offset} has a record {age} ms old, "
                    f"min.compaction.lag.ms is {config.min_compaction_lag_ms}"
                ),
            )
            break
    clean = [segment for segment in segments[:blocked] if segment.next_offset <= first_dirty_offset]
    dirty = segments[len(clean) : blocked]
    # Asked only where it may decide: it costs a read of each segment.
    asks_age = bool(dirty) and config.max_compaction_lag_ms < now_ms
    oldest = min(segment.first_timestamp() for segment in dirty) if asks_age else None
    found = Dirt(
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
    is_due, reason = _verdict(found, config, now_ms)
    return found._replace(is_due=is_due, reason=reason)


def _size(segments: Sequence[SegmentFacts]) -> int:
    return sum(segment.size for segment in segments)


def _verdict(dirt: Dirt, config: LogConfig, now_ms: int) -> tuple[bool, str]:
    if "compact" not in config.cleanup_policy:
        return False, f"cleanup.policy is {','.join(config.cleanup_policy) or 'empty'}: the log is not compacted"
    if not dirt.cleanable_bytes and not dirt.uncleanable_bytes:
        return False, "all of it is clean" if dirt.clean_bytes else "it is empty"
    if not dirt.cleanable_bytes:
        return False, f"nothing new can be cleaned: {dirt.blocked_by}"
    if dirt.ratio > config.min_cleanable_dirty_ratio:
        return True, (
            f"{dirt.ratio:.2f} of the log is dirty, more than min.cleanable.dirty.ratio, "
            f"{config.min_cleanable_dirty_ratio:g}"
        )
    waited = 0 if dirt.oldest_dirty_ms is None else now_ms - dirt.oldest_dirty_ms
    if waited > config.max_compaction_lag_ms:
        return True, f"a dirty segment is {waited} ms old, max.compaction.lag.ms is {config.max_compaction_lag_ms}"
    return False, (
        f"{dirt.ratio:.2f} of the log is dirty; it waits for more than min.cleanable.dirty.ratio, "
        f"{config.min_cleanable_dirty_ratio:g}"
    )


class Sized(NamedTuple):
    """A segment, for grouping."""

    base_offset: int
    next_offset: int
    size: int
    index_size: int


S = TypeVar("S", bound=Sized)


def groups(segments: Sequence[S], max_bytes: int, max_index_bytes: int) -> list[list[S]]:
    """Neighbours that fit into one segment together, so that what shrinks again and again is not many small files."""
    found: list[list[S]] = []
    size = index_size = 0
    for segment in segments:
        fits = (
            bool(found)
            and size + segment.size <= max_bytes
            and index_size + segment.index_size <= max_index_bytes
            and segment.next_offset - 1 - found[-1][0].base_offset <= MAX_OFFSET_RANGE
        )
        if fits:
            found[-1].append(segment)
        else:
            found.append([segment])
            size = index_size = 0
        size += segment.size
        index_size += segment.index_size
    return found
