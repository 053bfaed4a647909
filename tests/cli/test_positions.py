from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from stratalog.cli.moments import Edge
from stratalog.cli.positions import ReadPositions, ReadRange
from stratalog.cli.program import CommandError
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import OffsetAndTimestamp

LONG, SHORT, EMPTY = (TopicPartition("orders", partition) for partition in range(3))
PARTITIONS = [LONG, SHORT, EMPTY]


class FakeBounds:
    """Bounds of partitions whose records have their offset as their time."""

    def __init__(self) -> None:
        self.beginnings = {LONG: 100, SHORT: 0, EMPTY: 7}
        self.ends = {LONG: 200, SHORT: 5, EMPTY: 7}

    def beginning_offsets(self, partitions: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return {partition: self.beginnings[partition] for partition in partitions}

    def end_offsets(self, partitions: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return {partition: self.ends[partition] for partition in partitions}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], /
    ) -> Mapping[TopicPartition, OffsetAndTimestamp | None]:
        results = {}
        for partition, time in times.items():
            offset = max(time, self.beginnings[partition])
            results[partition] = OffsetAndTimestamp(offset, offset) if offset < self.ends[partition] else None
        return results


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        (ReadPositions(), [(100, 200), (0, 5), (7, 7)]),
        (ReadPositions(from_offset=Edge.BEGINNING, until_offset=Edge.END), [(100, 200), (0, 5), (7, 7)]),
        (ReadPositions(from_offset=Edge.END), [(200, 200), (5, 5), (7, 7)]),
        (ReadPositions(from_offset=150), [(150, 200), (5, 5), (7, 7)]),
        (ReadPositions(from_offset=3), [(100, 200), (3, 5), (7, 7)]),
        (ReadPositions(from_offset=-10), [(190, 200), (0, 5), (7, 7)]),
        (ReadPositions(until_offset=3), [(100, 100), (0, 3), (7, 7)]),
        (ReadPositions(until_offset=-1), [(100, 199), (0, 4), (7, 7)]),
        (ReadPositions(until_offset=1000), [(100, 200), (0, 5), (7, 7)]),
        (ReadPositions(from_time=120), [(120, 200), (5, 5), (7, 7)]),
        (ReadPositions(from_time=2, until_time=150), [(100, 150), (2, 5), (7, 7)]),
        (ReadPositions(from_time=150, until_time=120), [(150, 150), (5, 5), (7, 7)]),
    ],
)
def test_positions_are_clipped_to_each_partition(positions: ReadPositions, expected: list[tuple[int, int]]) -> None:
    ranges = positions.resolve(FakeBounds(), PARTITIONS)
    assert ranges == dict(zip(PARTITIONS, (ReadRange(*offsets) for offsets in expected), strict=True))


def test_offset_after_every_end_is_refused_with_the_ends() -> None:
    with pytest.raises(CommandError, match=r"--from-offset is 201.*orders-0 ends at 200"):
        ReadPositions(from_offset=201).resolve(FakeBounds(), PARTITIONS)


def test_ends_past_the_first_three_are_counted() -> None:
    partitions = [TopicPartition("orders", number) for number in range(5)]
    bounds = FakeBounds()
    bounds.beginnings = bounds.ends = dict.fromkeys(partitions, 7)
    with pytest.raises(CommandError, match=r"orders-2 ends at 7 and 2 more; give a smaller one"):
        ReadPositions(from_offset=8, start_option="--before").resolve(bounds, partitions)


def test_offset_and_time_exclude_each_other() -> None:
    with pytest.raises(CommandError, match="--until-offset or --until-time"):
        ReadPositions.parse(None, None, "1", "-1h")
    assert ReadPositions.parse("-3", None, None, None) == ReadPositions(from_offset=-3)
