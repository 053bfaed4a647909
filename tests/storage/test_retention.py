"""The rules of retention on their own. (test_log_retention.py tests the files.)"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.storage import LogConfig
from stratalog.storage.retention import Doomed, SegmentFacts, doomed

NOW = 1_700_000_000_000
KEEP = {"retention_ms": -1, "retention_bytes": -1}


def segment(base: int, end: int, size: int = 100, age: int = 0) -> SegmentFacts:
    return SegmentFacts(base, end, size, lambda: NOW - age)


def bases(
    *segments: SegmentFacts, start: int = 0, upper: int = 10**9, retention_ms: int = -1, retention_bytes: int = -1
) -> list[int]:
    config = LogConfig(retention_ms=retention_ms, retention_bytes=retention_bytes)
    verdicts = doomed(segments, config, log_start_offset=start, upper_bound=upper, now_ms=NOW)
    return [verdict.base_offset for verdict in verdicts]


def test_without_limits_no_segment_is_deleted() -> None:
    assert bases(segment(0, 10, age=10**15), segment(10, 20, size=10**12)) == []


def test_without_delete_policy_only_segments_before_the_start_are_deleted() -> None:
    config = LogConfig(retention_ms=1, retention_bytes=1, cleanup_policy=())
    segments = [segment(0, 10, age=5000), segment(10, 20, age=5000)]
    assert doomed(segments, config, log_start_offset=0, upper_bound=20, now_ms=NOW) == []
    assert [
        verdict.base_offset for verdict in doomed(segments, config, log_start_offset=10, upper_bound=20, now_ms=NOW)
    ] == [0]


@pytest.mark.parametrize(("age", "gone"), [(999, []), (1000, []), (1001, [0])])
def test_segment_older_than_retention_ms_is_deleted(age: int, gone: list[int]) -> None:
    assert bases(segment(0, 10, age=age), segment(10, 20), retention_ms=1000) == gone


def test_young_segment_protects_later_older_ones() -> None:
    old, young = segment(0, 10, age=5000), segment(10, 20, age=10)
    assert bases(old, young, segment(20, 30, age=5000), retention_ms=1000) == [0]


def test_last_segment_is_deleted_by_age_too() -> None:
    assert bases(segment(0, 10, age=5000), segment(10, 20, age=5000), retention_ms=1000) == [0, 10]


def test_records_from_the_future_are_kept() -> None:
    assert bases(segment(0, 10, age=-(10**12)), retention_ms=0) == []


@pytest.mark.parametrize(
    ("limit", "gone"), [(400, []), (399, []), (301, []), (300, [0]), (201, [0]), (200, [0, 10]), (0, [0, 10, 20, 30])]
)
def test_segments_are_deleted_while_retention_bytes_remain(limit: int, gone: list[int]) -> None:
    segments = [segment(base, base + 10) for base in (0, 10, 20, 30)]
    assert bases(*segments, retention_bytes=limit) == gone


def test_first_segment_stays_if_less_than_retention_bytes_would_remain() -> None:
    assert bases(segment(0, 10, size=500), segment(10, 20, size=100), retention_bytes=200) == []


@pytest.mark.parametrize(("start", "gone"), [(0, []), (9, []), (10, [0]), (19, [0]), (20, [0, 10]), (30, [0, 10, 20])])
def test_segments_completely_before_the_log_start_are_deleted(start: int, gone: list[int]) -> None:
    assert bases(segment(0, 10), segment(10, 20), segment(20, 30), segment(30, 30, size=0), start=start) == gone


@pytest.mark.parametrize(("upper", "gone"), [(0, []), (9, []), (10, [0]), (25, [0, 10]), (30, [0, 10, 20])])
def test_segment_after_the_upper_bound_is_kept(upper: int, gone: list[int]) -> None:
    segments = [segment(base, base + 10, age=5000) for base in (0, 10, 20)]
    assert bases(*segments, upper=upper, retention_ms=1000) == gone


def test_empty_last_segment_stays() -> None:
    assert bases(segment(0, 10, age=5000), segment(10, 10, size=0, age=5000), retention_ms=1000) == [0]


def test_empty_segment_in_the_middle_does_not_protect_later_ones() -> None:
    gap = segment(10, 20, size=0, age=5000)
    assert bases(segment(0, 10, age=5000), gap, segment(20, 30, age=5000), retention_ms=1000) == [0, 10, 20]


def test_reasons_name_the_setting_and_the_numbers() -> None:
    config = LogConfig(retention_ms=1000, retention_bytes=150)
    segments = [segment(0, 10), segment(10, 20), segment(20, 30, age=1500), segment(30, 40, age=1)]
    assert doomed(segments, config, log_start_offset=10, upper_bound=40, now_ms=NOW) == [
        Doomed(0, "all its offsets are before the log start offset, 10"),
        Doomed(10, "the log is 150 bytes larger than retention.bytes, 150"),
        Doomed(20, "its newest record is 1500 ms old, retention.ms is 1000"),
    ]


def test_timestamp_is_not_read_if_size_decides() -> None:
    def expensive() -> int:
        raise AssertionError("read without need")

    facts = [SegmentFacts(0, 10, 100, expensive), SegmentFacts(10, 20, 100, expensive)]
    config = LogConfig(retention_ms=1000, retention_bytes=100)
    verdicts = doomed(facts, config, log_start_offset=0, upper_bound=15, now_ms=NOW)
    assert [verdict.base_offset for verdict in verdicts] == [0]


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    ages=st.lists(st.integers(0, 50), min_size=8, max_size=8),
    start=st.integers(0, 80),
    upper=st.integers(0, 80),
    retention_ms=st.integers(-1, 50),
    retention_bytes=st.integers(-1, 200),
)
def test_only_a_prefix_is_deleted_and_each_segment_for_a_reason(
    sizes: list[int], ages: list[int], start: int, upper: int, retention_ms: int, retention_bytes: int
) -> None:
    segments = [segment(i * 10, i * 10 + 10, size, ages[i]) for i, size in enumerate(sizes)]
    gone = bases(*segments, start=start, upper=upper, retention_ms=retention_ms, retention_bytes=retention_bytes)
    assert gone == [facts.base_offset for facts in segments[: len(gone)]]
    left = sum(sizes)
    for facts, age in zip(segments[: len(gone)], ages, strict=False):
        left -= facts.size
        assert facts.next_offset <= upper
        by_size = retention_bytes >= 0 and left >= retention_bytes
        assert facts.next_offset <= start or by_size or age > retention_ms >= 0
    if len(gone) < len(segments):
        kept = segments[len(gone)]
        if kept.next_offset <= upper and kept.size:
            assert kept.next_offset > start
            assert retention_bytes < 0 or left - kept.size < retention_bytes
            assert retention_ms < 0 or ages[len(gone)] <= retention_ms
