"""Plans read every offset once, however ranges are split or limited. Checked with hypothesis."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.client.metadata import TopicPartition
from stratalog.spark.planning import backlog, from_json, limit_bytes, limit_rows, prune, split, to_json
from stratalog.spark.predicate import EVERYTHING, NOTHING, Predicate
from stratalog.spark.scan_request import OffsetRange

offsets = st.integers(0, 2**62)
sizes = st.one_of(st.integers(-5, 2000), st.integers(0, 2**40))
many_ranges = st.lists(st.tuples(offsets, sizes), max_size=8).map(
    lambda actual: [OffsetRange("t", index, start, start + size) for index, (start, size) in enumerate(actual)]
)
counts = st.none() | st.integers(1, 50)


def covered(ranges: list[OffsetRange]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Return the ranges by partition. Adjacent ranges are joined, overlapping ones are not."""
    by_partition: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for part in sorted(ranges, key=lambda each: (each.topic, each.partition, each.start)):
        parts = by_partition.setdefault((part.topic, part.partition), [])
        if parts and parts[-1][1] == part.start:
            parts[-1] = (parts[-1][0], part.end)
        else:
            parts.append((part.start, part.end))
    return by_partition


@given(many_ranges, counts, counts.map(lambda count: None if count is None else count * 2**35))
def test_tasks_cover_the_ranges_without_overlap(
    ranges: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    tasks = split(ranges, min_partitions, max_records)
    assert covered(tasks) == covered([each for each in ranges if each.size > 0])
    assert all(each.size > 0 for each in tasks)
    if max_records is not None:
        assert all(each.size <= max_records for each in tasks)


@given(many_ranges, st.integers(1, 50))
def test_number_of_tasks_is_about_the_requested_one(ranges: list[OffsetRange], requested: int) -> None:
    tasks = split(ranges, requested)
    some = [each for each in ranges if each.size > 0]
    possible = min(requested, sum(each.size for each in some))
    assert len(tasks) >= len(some)
    assert len(tasks) >= possible - len(some)  # rounding may cost one task per range
    assert len(tasks) <= max(requested + len(some), len(some))


def test_large_partitions_are_split_and_small_ones_left_alone() -> None:
    ranges = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 100, 1100)]
    tasks = split(ranges, 5)
    assert [each.partition for each in tasks] == [0, 1, 1, 1, 1]
    assert {each.size for each in tasks[1:]} == {250}


def test_a_plan_of_ten_thousand_partitions() -> None:
    ranges = [OffsetRange("t", index, 0, 1000) for index in range(10_000)]
    tasks = split(ranges, 20_000, 600)
    assert len(tasks) == 20_000
    assert covered(tasks) == covered(ranges)


@given(many_ranges)
def test_pruning_keeps_all_ranges_that_can_match(ranges: list[OffsetRange]) -> None:
    predicate = Predicate(partitions=frozenset({0, 2}), from_offset=100, until_offset=10_000)
    kept = prune(ranges, predicate)
    assert {part.partition for part in kept} <= {0, 2}
    for whole in ranges:
        if whole.partition in (0, 2):
            expected = (max(whole.start, 100), min(whole.end, 10_000))
            parts = covered([each for each in kept if each.partition == whole.partition and each.size > 0])
            assert list(parts.values()) == ([[expected]] if expected[0] < expected[1] else [])
    assert prune(ranges, EVERYTHING) == [each for each in ranges if each.size > 0] or any(
        each.size <= 0 for each in ranges
    )
    assert prune(ranges, NOTHING) == []


# Micro-batches

backlogs = st.lists(st.tuples(offsets, st.integers(0, 2**40)), min_size=1, max_size=8)


def as_offsets(actual: list[tuple[int, int]]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    start = {TopicPartition("t", index): begin for index, (begin, _) in enumerate(actual)}
    return start, {partition: start[partition] + size for partition, (_, size) in zip(start, actual, strict=True)}


@given(backlogs, st.integers(1, 2**40))
def test_limit_of_rows_is_kept_and_every_partition_advances(actual: list[tuple[int, int]], most: int) -> None:
    start, latest = as_offsets(actual)
    ends = limit_rows(start, latest, most)
    waiting = [partition for partition in start if latest[partition] > start[partition]]
    for partition in start:
        assert start[partition] <= ends[partition] <= latest[partition]
    assert all(ends[partition] > start[partition] for partition in waiting)
    assert backlog(start, ends) <= max(most, len(waiting)) + len(waiting)
    if backlog(start, latest) <= most:
        assert ends == latest


@given(backlogs, st.integers(1, 2**30), st.floats(0.1, 10_000))
def test_limit_of_bytes_is_kept_and_every_partition_advances(
    actual: list[tuple[int, int]], most: int, size: float
) -> None:
    start, latest = as_offsets(actual)
    ends = limit_bytes(start, latest, dict.fromkeys(start, size), most)
    waiting = [partition for partition in start if latest[partition] > start[partition]]
    assert all(start[partition] < ends[partition] <= latest[partition] for partition in waiting)
    assert backlog(start, ends) * size <= most * 1.01 + len(waiting) * size


def test_limits_are_divided_in_proportion_to_the_backlogs() -> None:
    start = {TopicPartition("t", 0): 0, TopicPartition("t", 1): 500}
    latest = {TopicPartition("t", 0): 900, TopicPartition("t", 1): 600}
    assert limit_rows(start, latest, 100) == {TopicPartition("t", 0): 90, TopicPartition("t", 1): 510}


def test_end_before_the_start_is_kept() -> None:
    start, latest = {TopicPartition("t", 0): 50}, {TopicPartition("t", 0): 20}
    assert limit_rows(start, latest, 5) == latest
    assert limit_bytes(start, latest, {}, 5) == latest


# Offsets in the checkpoint


@given(st.dictionaries(st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 2**31 - 1)), offsets))
def test_offsets_survive_the_checkpoint(actual: dict[TopicPartition, int]) -> None:
    assert from_json(to_json(actual)) == actual


def test_offsets_are_sorted_and_in_the_connectors_format() -> None:
    each = {TopicPartition("b", 10): 1, TopicPartition("b", 2): 2, TopicPartition("a", 0): 3}
    other = dict(reversed(each.items()))
    assert str(to_json(each)) == str(to_json(other)) == "{'a': {'0': 3}, 'b': {'2': 2, '10': 1}}"
