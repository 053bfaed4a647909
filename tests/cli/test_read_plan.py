from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from stratalog.cli.moments import Edge
from stratalog.cli.program import CommandError
from stratalog.cli.read_plan import Stretch, Wanted
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import OffsetAndTimestamp

LONG, SHORT, EMPTY = (TopicPartition("orders", partition) for partition in range(3))
PLACES = [LONG, SHORT, EMPTY]


class FakeBounds:
    """Records have their offset as their time."""

    def __init__(self) -> None:
        self.beginnings = {LONG: 100, SHORT: 0, EMPTY: 7}
        self.ends = {LONG: 200, SHORT: 5, EMPTY: 7}

    def beginning_offsets(self, places: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return {place: self.beginnings[place] for place in places}

    def end_offsets(self, places: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return {place: self.ends[place] for place in places}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], /
    ) -> Mapping[TopicPartition, OffsetAndTimestamp | None]:
        found = {}
        for place, time in times.items():
            offset = max(time, self.beginnings[place])
            found[place] = OffsetAndTimestamp(offset, offset) if offset < self.ends[place] else None
        return found


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), [(100, 200), (0, 5), (7, 7)]),
        (Wanted(from_offset=Edge.BEGINNING, until_offset=Edge.END), [(100, 200), (0, 5), (7, 7)]),
        (Wanted(from_offset=Edge.END), [(200, 200), (5, 5), (7, 7)]),
        (Wanted(from_offset=150), [(150, 200), (5, 5), (7, 7)]),
        (Wanted(from_offset=3), [(100, 200), (3, 5), (7, 7)]),
        (Wanted(from_offset=-10), [(190, 200), (0, 5), (7, 7)]),
        (Wanted(until_offset=3), [(100, 100), (0, 3), (7, 7)]),
        (Wanted(until_offset=-1), [(100, 199), (0, 4), (7, 7)]),
        (Wanted(until_offset=1000), [(100, 200), (0, 5), (7, 7)]),
        (Wanted(from_time=120), [(120, 200), (5, 5), (7, 7)]),
        (Wanted(from_time=2, until_time=150), [(100, 150), (2, 5), (7, 7)]),
        (Wanted(from_time=150, until_time=120), [(150, 150), (5, 5), (7, 7)]),
    ],
)
def test_each_partition_is_read_as_far_as_it_goes(wanted: Wanted, expected: list[tuple[int, int]]) -> None:
    plan = wanted.plan(FakeBounds(), PLACES)
    assert plan == dict(zip(PLACES, (Stretch(*one) for one in expected), strict=True))


def test_offset_past_every_end_is_refused_with_the_ends() -> None:
    with pytest.raises(CommandError, match=r"--from-offset is 201.*orders-0 ends at 200"):
        Wanted(from_offset=201).plan(FakeBounds(), PLACES)


def test_ends_that_are_not_named_are_counted() -> None:
    places = [TopicPartition("orders", number) for number in range(5)]
    bounds = FakeBounds()
    bounds.beginnings = bounds.ends = dict.fromkeys(places, 7)
    with pytest.raises(CommandError, match=r"orders-2 ends at 7 and 2 more; give a smaller one"):
        Wanted(from_offset=8, start="--before").plan(bounds, places)


def test_offset_and_time_exclude_each_other() -> None:
    with pytest.raises(CommandError, match="--until-offset or --until-time"):
        Wanted.parse(None, None, "1", "-1h")
    assert Wanted.parse("-3", None, None, None) == Wanted(from_offset=-3)
