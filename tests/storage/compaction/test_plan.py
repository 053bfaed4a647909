"""When a log is due, what blocks it, and the reasons. Groups of neighbouring segments that become one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.storage import LogConfig
from stratalog.storage.compaction.plan import MAX_OFFSET_RANGE, Dirt, SegmentSize, assess, groups
from stratalog.storage.retention import SegmentFacts

NOW = 1_000_000


def segment(base: int, end: int, *, size: int = 100, newest: int = 0, oldest: int = 0) -> SegmentFacts:
    return SegmentFacts(base, end, size, lambda: newest, lambda: oldest)


def dirt_of(*segments: SegmentFacts, first_dirty: int = 0, stable: int = 10**9, **settings: Any) -> Dirt:
    config = LogConfig(**{"cleanup_policy": ("compact",), **settings})
    return assess(segments, config, first_dirty_offset=first_dirty, last_stable_offset=stable, now_ms=NOW)


def test_log_with_only_an_active_segment_has_nothing_to_clean() -> None:
    dirt = dirt_of(segment(0, 50))
    assert (dirt.is_due, dirt.cleanable_bytes, dirt.uncleanable_bytes) == (False, 0, 100)
    assert (dirt.first_uncleanable_offset, dirt.ratio) == (0, 0.0)
    assert "active segment" in dirt.reason
    assert "segment.ms" in dirt.blocked_by


def test_log_is_due_when_more_than_the_ratio_is_dirty() -> None:
    segments = [segment(0, 10), segment(10, 20), segment(20, 30)]
    for first_dirty, ratio, is_due in [(0, 1.0, True), (10, 0.5, False), (20, 0.0, False)]:
        dirt = dirt_of(*segments, first_dirty=first_dirty, min_cleanable_dirty_ratio=0.5)
        assert (dirt.ratio, dirt.is_due) == (ratio, is_due), dirt.reason
    assert dirt_of(*segments, first_dirty=10, min_cleanable_dirty_ratio=0.49).is_due


def test_ratio_of_zero_is_due_with_any_dirty_byte_only() -> None:
    assert dirt_of(segment(0, 10), segment(10, 10, size=0), min_cleanable_dirty_ratio=0).is_due
    assert not dirt_of(segment(0, 10), segment(10, 10, size=0), first_dirty=10, min_cleanable_dirty_ratio=0).is_due


def test_segment_that_is_partly_clean_counts_as_dirty() -> None:
    dirt = dirt_of(segment(0, 10), segment(10, 20), first_dirty=5)
    assert (dirt.clean_bytes, dirt.cleanable_bytes) == (0, 100)


def test_open_transaction_blocks_its_segment_and_all_later_ones() -> None:
    dirt = dirt_of(segment(0, 10), segment(10, 20), segment(20, 30), segment(30, 40), stable=15)
    assert (dirt.first_uncleanable_offset, dirt.cleanable_bytes, dirt.uncleanable_bytes) == (10, 100, 300)
    assert "transaction has been open since offset 15" in dirt.blocked_by


def test_young_record_blocks_its_segment_until_the_lag_has_passed() -> None:
    segments = [segment(0, 10, newest=NOW - 100), segment(10, 20, newest=NOW - 99), segment(20, 30)]
    dirt = dirt_of(*segments, min_compaction_lag_ms=100)
    assert dirt.first_uncleanable_offset == 10
    assert "99 ms old" in dirt.blocked_by
    assert "min.compaction.lag.ms is 100" in dirt.blocked_by


def test_record_from_the_future_blocks_too() -> None:
    dirt = dirt_of(segment(0, 10, newest=NOW + 5), segment(10, 20), min_compaction_lag_ms=1)
    assert not dirt.is_due
    assert dirt.first_uncleanable_offset == 0


def test_clean_segment_with_young_records_blocks_nothing() -> None:
    dirt = dirt_of(
        segment(0, 10, newest=NOW), segment(10, 20), segment(20, 30), first_dirty=10, min_compaction_lag_ms=50
    )
    assert dirt.first_uncleanable_offset == 20


def test_log_with_old_dirty_records_is_due_at_any_ratio() -> None:
    segments = [segment(0, 10, size=1000), segment(10, 20, oldest=NOW - 500), segment(20, 30)]
    assert not dirt_of(*segments, first_dirty=10, max_compaction_lag_ms=500).is_due
    dirt = dirt_of(*segments, first_dirty=10, max_compaction_lag_ms=499)
    assert dirt.is_due
    assert "500 ms old, and max.compaction.lag.ms is 499" in dirt.reason


def test_log_without_compact_policy_is_never_due() -> None:
    dirt = dirt_of(segment(0, 10), segment(10, 20), cleanup_policy=("delete",))
    assert not dirt.is_due
    assert "cleanup.policy is delete" in dirt.reason


def test_timestamps_are_not_read_if_they_can_not_decide() -> None:
    def refuse() -> int:
        raise AssertionError("it costs a read")

    facts = SegmentFacts(0, 10, 100, refuse, refuse)
    assert dirt_of(facts, segment(10, 20)).is_due


sizes = st.builds(
    lambda gap, size, index: (gap, size, index), st.integers(1, 2**30), st.integers(0, 500), st.integers(0, 50)
)


@given(st.lists(sizes, max_size=30))
def test_groups_keep_the_order_and_limits_and_are_as_large_as_possible(
    shapes: list[tuple[int, int, int]],
) -> None:
    segments, base = [], 0
    for gap, size, index in shapes:
        segments.append(SegmentSize(base, base + gap, size, index))
        base += gap
    grouped = groups(segments, 1000, 100)
    assert [segment for group in grouped for segment in group] == segments
    for group in grouped:
        assert len(group) == 1 or fits(group)
    for group, following in pairwise(grouped):
        assert not fits([*group, following[0]])


def fits(group: list[SegmentSize]) -> bool:
    return (
        sum(segment.size for segment in group) <= 1000
        and sum(segment.index_size for segment in group) <= 100
        and group[-1].next_offset - 1 - group[0].base_offset <= MAX_OFFSET_RANGE
    )


@pytest.mark.parametrize(("end", "count"), [(2**31, 1), (2**31 + 1, 2)])
def test_group_is_not_wider_than_an_index_entry_can_express(end: int, count: int) -> None:
    assert len(groups([SegmentSize(0, 10, 1, 1), SegmentSize(10, end, 1, 1)], 100, 100)) == count
