"""Plans: whatever is split or limited, nothing is read twice and nothing is left out. Pure, so hypothesis tries it."""

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
    lambda found: [OffsetRange("t", index, start, start + size) for index, (start, size) in enumerate(found)]
)
counts = st.none() | st.integers(1, 50)


def covered(ranges: list[OffsetRange]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """By partition, neighbours joined; overlaps stay to be seen."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for one in sorted(ranges, key=lambda each: (each.topic, each.partition, each.start)):
        parts = found.setdefault((one.topic, one.partition), [])
        if parts and parts[-1][1] == one.start:
            parts[-1] = (parts[-1][0], one.end)
        else:
            parts.append((one.start, one.end))
    return found


@given(many_ranges, counts, counts.map(lambda count: None if count is None else count * 2**35))
def test_tasks_together_are_the_whole_and_do_not_overlap(
    ranges: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    tasks = split(ranges, min_partitions, max_records)
    assert covered(tasks) == covered([one for one in ranges if one.size > 0])
    assert all(one.size > 0 for one in tasks)
    if max_records is not None:
        assert all(one.size <= max_records for one in tasks)


@given(many_ranges, st.integers(1, 50))
def test_there_are_about_as_many_tasks_as_were_asked_for(ranges: list[OffsetRange], wanted: int) -> None:
    tasks = split(ranges, wanted)
    some = [one for one in ranges if one.size > 0]
    possible = min(wanted, sum(one.size for one in some))
    assert len(tasks) >= len(some)
    assert len(tasks) >= possible - len(some)  # rounding: at most one a range
    assert len(tasks) <= max(wanted + len(some), len(some))


def test_large_partitions_are_split_and_small_ones_left_alone() -> None:
    ranges = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 100, 1100)]
    tasks = split(ranges, 5)
    assert [one.partition for one in tasks] == [0, 1, 1, 1, 1]
    assert {one.size for one in tasks[1:]} == {250}


def test_a_plan_of_ten_thousand_partitions() -> None:
    ranges = [OffsetRange("t", index, 0, 1000) for index in range(10_000)]
    tasks = split(ranges, 20_000, 600)
    assert len(tasks) == 20_000
    assert covered(tasks) == covered(ranges)


@given(many_ranges)
def test_pruning_keeps_what_may_be_wanted(ranges: list[OffsetRange]) -> None:
    predicate = Predicate(partitions=frozenset({0, 2}), from_offset=100, until_offset=10_000)
    kept = prune(ranges, predicate)
    assert {one.partition for one in kept} <= {0, 2}
    for one in ranges:
        if one.partition in (0, 2):
            wanted = (max(one.start, 100), min(one.end, 10_000))
            parts = covered([each for each in kept if each.partition == one.partition and each.size > 0])
            assert list(parts.values()) == ([[wanted]] if wanted[0] < wanted[1] else [])
    assert prune(ranges, EVERYTHING) == [one for one in ranges if one.size > 0] or any(one.size <= 0 for one in ranges)
    assert prune(ranges, NOTHING) == []


# Micro-batches

backlogs = st.lists(st.tuples(offsets, st.integers(0, 2**40)), min_size=1, max_size=8)


def as_offsets(found: list[tuple[int, int]]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    start = {TopicPartition("t", index): begin for index, (begin, _) in enumerate(found)}
    return start, {place: start[place] + size for place, (_, size) in zip(start, found, strict=True)}


@given(backlogs, st.integers(1, 2**40))
def test_a_limit_of_rows_is_kept_and_nobody_starves(found: list[tuple[int, int]], most: int) -> None:
    start, latest = as_offsets(found)
    ends = limit_rows(start, latest, most)
    waiting = [place for place in start if latest[place] > start[place]]
    for place in start:
        assert start[place] <= ends[place] <= latest[place]
    assert all(ends[place] > start[place] for place in waiting)
    assert backlog(start, ends) <= max(most, len(waiting)) + len(waiting)
    if backlog(start, latest) <= most:
        assert ends == latest


@given(backlogs, st.integers(1, 2**30), st.floats(0.1, 10_000))
def test_a_limit_of_bytes_is_kept_and_nobody_starves(found: list[tuple[int, int]], most: int, size: float) -> None:
    start, latest = as_offsets(found)
    ends = limit_bytes(start, latest, dict.fromkeys(start, size), most)
    waiting = [place for place in start if latest[place] > start[place]]
    assert all(start[place] < ends[place] <= latest[place] for place in waiting)
    assert backlog(start, ends) * size <= most * 1.01 + len(waiting) * size


def test_limits_are_spread_in_proportion_to_the_backlogs() -> None:
    start = {TopicPartition("t", 0): 0, TopicPartition("t", 1): 500}
    latest = {TopicPartition("t", 0): 900, TopicPartition("t", 1): 600}
    assert limit_rows(start, latest, 100) == {TopicPartition("t", 0): 90, TopicPartition("t", 1): 510}


def test_a_log_that_ends_before_its_start_stays_as_it_is() -> None:
    start, latest = {TopicPartition("t", 0): 50}, {TopicPartition("t", 0): 20}
    assert limit_rows(start, latest, 5) == latest
    assert limit_bytes(start, latest, {}, 5) == latest


# Offsets in the checkpoint


@given(st.dictionaries(st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 2**31 - 1)), offsets))
def test_offsets_survive_the_checkpoint(found: dict[TopicPartition, int]) -> None:
    assert from_json(to_json(found)) == found


def test_offsets_have_one_order_and_the_stock_connectors_form() -> None:
    one = {TopicPartition("b", 10): 1, TopicPartition("b", 2): 2, TopicPartition("a", 0): 3}
    other = dict(reversed(one.items()))
    assert str(to_json(one)) == str(to_json(other)) == "{'a': {'0': 3}, 'b': {'2': 2, '10': 1}}"
