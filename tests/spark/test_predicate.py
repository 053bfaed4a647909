"""Filters and options as predicates: they select the same rows as Spark's filter, or the filter is left to Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from stratalog.errors import ConfigError
from stratalog.spark.predicate import (
    EVERYTHING,
    FIRST,
    LAST,
    MOST_KEYS,
    Predicate,
    from_filters,
    from_options,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS: dict[Any, Callable[[int, int], bool]] = {
    EqualTo: lambda value, bound: value == bound,
    GreaterThan: lambda value, bound: value > bound,
    GreaterThanOrEqual: lambda value, bound: value >= bound,
    LessThan: lambda value, bound: value < bound,
    LessThanOrEqual: lambda value, bound: value <= bound,
}


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@given(
    kind=st.sampled_from(list(COMPARISONS)),
    milliseconds=st.integers(-5, 5),
    microseconds=st.integers(-5000, 5000),
)
def test_timestamps_are_compared_like_sparks_microseconds(kind: Any, milliseconds: int, microseconds: int) -> None:
    predicate, left = from_filters([kind(("timestamp",), moment(microseconds))])
    assert left == []
    lets_through = predicate.from_timestamp <= milliseconds < predicate.until_timestamp
    assert lets_through == COMPARISONS[kind](milliseconds * 1000, microseconds)


@given(kind=st.sampled_from(list(COMPARISONS)), offset=st.integers(-3, 3), bound=st.integers(-3, 3))
def test_offsets_are_compared_as_in_spark(kind: Any, offset: int, bound: int) -> None:
    predicate, left = from_filters([kind(("offset",), bound)])
    assert left == []
    assert (predicate.from_offset <= offset < predicate.until_offset) == COMPARISONS[kind](offset, bound)


def test_filters_are_a_conjunction() -> None:
    filters: list[Filter] = [
        IsNotNull(("key",)),
        EqualTo(("topic",), "orders"),
        In(("partition",), (1, 2, 7)),
        In(("key",), (b"a", bytearray(b"b"), None)),
        EqualTo(("key",), b"b"),
        GreaterThan(("offset",), 9),
        LessThan(("offset",), 20),
        IsNotNull(("timestamp",)),
        IsNotNull(("offset",)),
    ]
    predicate, left = from_filters(filters)
    assert left == []
    assert predicate == Predicate(
        topics=frozenset(["orders"]),
        partitions=frozenset([1, 2, 7]),
        keys=frozenset([b"b"]),
        from_offset=10,
        until_offset=20,
    )
    assert predicate.selects_partition("orders", 7)
    assert not predicate.selects_partition("orders", 3)
    assert not predicate.selects_partition("refunds", 7)
    assert predicate.clamp(0, 15) == (10, 15)
    assert predicate.clamp(30, 40) == (30, 30)


@pytest.mark.parametrize(
    "filter",
    [
        Not(EqualTo(("key",), b"a")),
        IsNull(("key",)),
        IsNotNull(("key",)),
        IsNotNull(("value",)),
        EqualTo(("value",), b"a"),
        EqualTo(("timestampType",), 0),
        EqualNullSafe(("key",), None),
        StringStartsWith(("topic",), "ord"),
        GreaterThan(("key",), b"a"),
        GreaterThan(("partition",), 3),
        EqualTo(("headers", "key"), "a"),
        EqualTo(("topic",), 3),
    ],
    ids=repr,
)
def test_filter_without_an_exact_predicate_is_left_to_spark(filter: Filter) -> None:
    predicate, left = from_filters([filter])
    assert predicate == EVERYTHING
    assert len(left) == 1
    assert left[0] is filter


def test_filter_with_an_implied_predicate_narrows_the_scan_and_is_left_to_spark() -> None:
    filters: list[Filter] = [In(("offset",), (5, None, 1)), In(("timestamp",), (moment(1500), moment(9000)))]
    predicate, left = from_filters(filters)
    assert left == filters
    assert predicate == Predicate(from_offset=1, until_offset=6, from_timestamp=2, until_timestamp=10)


@pytest.mark.parametrize(
    "filters",
    [
        [EqualTo(("key",), b"a"), EqualTo(("key",), b"b")],
        [EqualTo(("key",), None)],
        [In(("key",), (None,))],
        [IsNull(("offset",))],
        [GreaterThan(("offset",), LAST)],
        [GreaterThan(("offset",), 5), LessThan(("offset",), 6)],
        [EqualTo(("timestamp",), moment(1500))],
        [EqualTo(("topic",), "a"), EqualTo(("topic",), "b")],
    ],
    ids=repr,
)
def test_contradictory_filters_select_nothing(filters: list[Filter]) -> None:
    predicate, left = from_filters(filters)
    assert left == []
    assert predicate.is_nothing


def test_timestamps_in_another_time_zone_are_the_same_instants() -> None:
    zone = timezone(timedelta(hours=2))
    predicate, _ = from_filters([GreaterThanOrEqual(("timestamp",), datetime(2026, 1, 1, 2, tzinfo=zone))])
    assert predicate.from_timestamp == 1_767_225_600_000


def test_too_many_keys_are_left_to_spark() -> None:
    many = In(("key",), tuple(b"%d" % number for number in range(MOST_KEYS + 1)))
    present = IsNotNull(("key",))
    predicate, left = from_filters([present, many])
    assert predicate == EVERYTHING
    assert left == [many, present]


def test_options_are_equivalent_to_filters() -> None:
    predicate = from_options(
        {
            "filterkeys": '["a", {"base64": "AAE="}]',
            "filterPartitions": "0, 3",
            "filterFromOffset": "5",
            "filterUntilOffset": "9",
            "filterFromTimestamp": "2026-01-01T00:00:00Z",
            "filterUntilTimestamp": "1767225600001",
            "subscribe": "orders",
        }
    )
    assert predicate == Predicate(
        keys=frozenset([b"a", b"\x00\x01"]),
        partitions=frozenset([0, 3]),
        from_offset=5,
        until_offset=9,
        from_timestamp=1_767_225_600_000,
        until_timestamp=1_767_225_600_001,
    )
    assert str(predicate) == (
        "partition in (0, 3) and offset >= 5 and offset < 9 and timestamp >= 1767225600000 "
        "and timestamp < 1767225600001 and key in 2 values"
    )
    assert pickle.loads(pickle.dumps(predicate)) == predicate


def test_no_options_select_everything() -> None:
    assert from_options({"subscribe": "orders"}).is_everything
    assert str(EVERYTHING) == "everything"
    assert (EVERYTHING.from_timestamp, EVERYTHING.until_timestamp) == (FIRST, LAST)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("filterKeys", "a", "JSON list"),
        ("filterKeys", '"a"', "JSON list"),
        ("filterKeys", "[3]", "'3' is not a key"),
        ("filterKeys", '[{"base64": "?"}]', "is not base64"),
        ("filterPartitions", "0,x", "'x' is not a whole number"),
        ("filterFromOffset", "", "is not a whole number"),
        ("filterFromOffset", "9" * 30, "64 bits"),
        ("filterFromTimestamp", "yesterday", "ISO 8601"),
    ],
)
def test_invalid_option_is_refused_by_name(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        from_options({name: value})
    assert says in str(caught.value)
