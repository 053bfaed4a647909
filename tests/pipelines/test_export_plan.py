"""The next step of an export, and the files that it merges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.client.metadata import TopicPartition
from stratalog.errors import OffsetOutOfRangeError
from stratalog.pipelines.export_plan import PartitionBounds, Step, after, plan_merges, plan_step
from stratalog.pipelines.table_files import TableFile
from stratalog.spark.scan_request import OffsetRange

ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
MIB = 1024**2


def test_new_partition_is_read_from_its_first_offset() -> None:
    step = plan_step({}, {ORDERS: PartitionBounds(5, 9)}, 100)
    assert step == Step([OffsetRange("orders", 0, 5, 9)], {})


def test_next_step_continues_after_the_last() -> None:
    bounds = {ORDERS: PartitionBounds(0, 10), OTHER: PartitionBounds(0, 4)}
    first = plan_step({}, bounds, 7)
    done = after({}, first)
    second = plan_step(done, bounds, 100)
    assert first.size == 7
    assert after(done, second) == {"orders": {0: 10, 1: 4}}
    assert plan_step(after(done, second), bounds, 100).ranges == []


def test_records_deleted_before_their_export_are_counted_as_lost() -> None:
    step = plan_step({"orders": {0: 10}}, {ORDERS: PartitionBounds(25, 30)}, 100)
    assert step == Step([OffsetRange("orders", 0, 25, 30)], {ORDERS: 15})


def test_partition_that_ends_before_its_exported_offsets_is_refused() -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"orders-0 ends at offset 3, .* up to offset 10"):
        plan_step({"orders": {0: 10}}, {ORDERS: PartitionBounds(0, 3)}, 100)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5000)), min_size=1, max_size=8), st.integers(1, 500))
def test_steps_read_each_offset_once_and_come_to_an_end(sizes: list[tuple[int, int]], most: int) -> None:
    bounds = {
        TopicPartition("t", number): PartitionBounds(start, start + size) for number, (start, size) in enumerate(sizes)
    }
    done: dict[str, dict[int, int]] = {}
    read: dict[int, list[int]] = {number: [] for number in range(len(sizes))}
    while (step := plan_step(done, bounds, most)).ranges:
        assert step.size <= most + len(sizes)  # each partition has at least one
        for each in step.ranges:
            assert each.size > 0
            read[each.partition] += range(each.start, each.end)
        done = after(done, step)
    assert read == {number: list(range(start, start + size)) for number, (start, size) in enumerate(sizes)}


def test_small_files_of_one_folder_are_merged() -> None:
    small = [TableFile(f"topic=a/date=2026-01-01/{number}.parquet", MIB) for number in range(5)]
    elsewhere = [TableFile("topic=a/date=2026-01-02/0.parquet", MIB)]
    large = [TableFile("topic=a/date=2026-01-01/9.parquet", 100 * MIB)]
    assert plan_merges([*small, *elsewhere, *large], 128 * MIB, 4) == [small]
    assert plan_merges([*small, *elsewhere, *large], 128 * MIB, 6) == []


def test_merged_files_do_not_pass_the_target() -> None:
    files = [TableFile(f"d/{number:02d}.parquet", 3 * MIB) for number in range(10)]
    groups = plan_merges(files, 10 * MIB, 2)
    assert [len(group) for group in groups] == [3, 3, 3]


def test_one_file_is_never_merged_with_itself() -> None:
    assert plan_merges([TableFile("d/0.parquet", 1)], 10, 1) == []
