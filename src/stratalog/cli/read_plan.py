"""From where to where in each partition: what the options of `consume` come to, given what is there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from stratalog.cli.moments import Edge, parse_offset, parse_time
from stratalog.cli.program import CommandError
from stratalog.cli.wording import listed
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import OffsetAndTimestamp


class Stretch(NamedTuple):
    """`start` is the first offset to be read, `end` the first that is not."""

    start: int
    end: int


class Bounds(Protocol):
    """A consumer, or what a test puts in its place."""

    def beginning_offsets(self, places: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]: ...
    def end_offsets(self, places: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]: ...
    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], /
    ) -> Mapping[TopicPartition, OffsetAndTimestamp | None]: ...


@dataclass(frozen=True)
class Wanted:
    """As it was asked for; None: not at all."""

    from_offset: int | Edge | None = None
    from_time: int | None = None
    until_offset: int | Edge | None = None
    until_time: int | None = None
    start: str = "--from"  # how the options for it begin, for messages

    @classmethod
    def parse(
        cls,
        from_offset: str | None,
        from_time: str | None,
        until_offset: str | None = None,
        until_time: str | None = None,
        *,
        start: str = "--from",
    ) -> Self:
        for offset, moment, name in ((from_offset, from_time, start), (until_offset, until_time, "--until")):
            if offset is not None and moment is not None:
                raise CommandError(f"give {name}-offset or {name}-time, one of them")
        now_ms = time.time_ns() // 1_000_000
        return cls(
            None if from_offset is None else parse_offset(f"{start}-offset", from_offset),
            None if from_time is None else parse_time(f"{start}-time", from_time, now_ms),
            None if until_offset is None else parse_offset("--until-offset", until_offset),
            None if until_time is None else parse_time("--until-time", until_time, now_ms),
            start,
        )

    @property
    def has_end(self) -> bool:
        return self.until_offset is not None or self.until_time is not None

    @property
    def is_given(self) -> bool:
        return self.has_end or self.from_offset is not None or self.from_time is not None

    def plan(self, bounds: Bounds, places: Sequence[TopicPartition]) -> dict[TopicPartition, Stretch]:
        beginnings, ends = bounds.beginning_offsets(places), bounds.end_offsets(places)
        if self.start != "--to":  # a group that goes to the nearest offset loses nothing
            self._check_reach(ends)
        starts = {place: _offset(self.from_offset, beginnings[place], ends[place], Edge.BEGINNING) for place in places}
        stops = {place: _offset(self.until_offset, beginnings[place], ends[place], Edge.END) for place in places}
        if self.from_time is not None:
            starts = _at_time(bounds, self.from_time, ends)
        if self.until_time is not None:
            stops = _at_time(bounds, self.until_time, ends)
        return {place: Stretch(starts[place], max(starts[place], stops[place])) for place in places}

    def _check_reach(self, ends: Mapping[TopicPartition, int]) -> None:
        """An offset that is past every end is a mistake; one that is before the beginning was right once."""
        offset = self.from_offset
        if isinstance(offset, int) and offset > max(ends.values(), default=0):
            shown = listed([f"{place.topic}-{place.partition} ends at {end}" for place, end in sorted(ends.items())])
            raise CommandError(
                f"{self.start}-offset is {offset}, which is past the end: {shown}; give a smaller one, or end"
            )


def _offset(wanted: int | Edge | None, beginning: int, end: int, default: Edge) -> int:
    match wanted if wanted is not None else default:
        case Edge.BEGINNING:
            return beginning
        case Edge.END:
            return end
        case int() as offset:
            return min(max(offset if offset >= 0 else end + offset, beginning), end)
    raise AssertionError(wanted)


def _at_time(bounds: Bounds, timestamp: int, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    found = bounds.offsets_for_times(dict.fromkeys(ends, timestamp))
    offsets = {}
    for place, end in ends.items():
        first = found.get(place)
        offsets[place] = end if first is None else min(first.offset, end)
    return offsets
