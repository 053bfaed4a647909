"""Where commands read, reset and delete: topics and partitions as they are named, and offsets and times in them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from stratalog.cli.moments import Edge, parse_offset, parse_time
from stratalog.cli.program import CommandError
from stratalog.cli.wording import describe_partitions, join_first
from stratalog.client.admin import Admin, OffsetSpec
from stratalog.client.metadata import TopicInfo, TopicPartition
from stratalog.client.offsets import OffsetAndTimestamp


@dataclass(frozen=True)
class TopicChoice:
    """The topics to read: some by name, or all that match a pattern."""

    topics: Sequence[str]
    pattern: re.Pattern[str] | None = None

    @classmethod
    def parse(cls, topics: Sequence[str], pattern: str | None) -> Self:
        if bool(topics) == (pattern is not None):
            raise CommandError("name the topics to read, or give --pattern")
        for name in topics:
            if "," in name:
                separate = " ".join(part for part in name.split(",") if part)
                raise CommandError(f"TOPIC is {name!r}; separate topics with blanks: {separate}")
        if pattern is None:
            return cls(tuple(dict.fromkeys(topics)))
        try:
            return cls((), re.compile(pattern))
        except re.error as error:
            raise CommandError(f"--pattern is {pattern!r}, which is not a regular expression: {error}") from None

    def find(self, admin: Admin) -> list[TopicInfo]:
        """Return the topics. Raise if a named topic does not exist, or none matches the pattern."""
        if self.pattern is None:
            return list(admin.describe_topics(self.topics).check().values())
        pattern = self.pattern
        matches = [info for name, info in admin.list_topics().items() if pattern.fullmatch(name)]
        if not matches:
            raise CommandError(
                f"--pattern is {pattern.pattern!r}, which matches no complete topic name; `stratalog topic list` shows "
                "all topics"
            )
        return matches


def parse_partitions(admin: Admin, option: str, text: str) -> list[TopicPartition]:
    """Return all partitions of a topic (orders), or those that are named (orders:0,3). `option` is for messages."""
    name, colon, numbers = text.partition(":")
    count = len(admin.describe_topic(name).partitions)
    if not colon:
        return [TopicPartition(name, partition) for partition in range(count)]
    for number in numbers.split(","):
        if not (number.isascii() and number.isdigit()) or int(number) >= count:
            raise CommandError(f"{option} is {text!r}; {name} has {describe_partitions(count)}, like {name}:0")
    return [TopicPartition(name, int(number)) for number in dict.fromkeys(numbers.split(","))]


class ReadRange(NamedTuple):
    """The offsets from `start` up to, but without, `end`."""

    start: int
    end: int


class Bounds(Protocol):
    """A source of the first and last offsets of partitions; a consumer is one."""

    def beginning_offsets(self, partitions: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]: ...
    def end_offsets(self, partitions: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]: ...
    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], /
    ) -> Mapping[TopicPartition, OffsetAndTimestamp | None]: ...


class AdminBounds:
    """Bounds that an Admin looks up."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def beginning_offsets(self, partitions: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return self._offsets(partitions, OffsetSpec.EARLIEST)

    def end_offsets(self, partitions: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return self._offsets(partitions, OffsetSpec.LATEST)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], /
    ) -> Mapping[TopicPartition, OffsetAndTimestamp | None]:
        return {
            partition: OffsetAndTimestamp(result.offset, result.timestamp) if result.offset >= 0 else None
            for partition, result in self._admin.list_offsets(times).check().items()
        }

    def _offsets(self, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        results = self._admin.list_offsets(dict.fromkeys(partitions, spec)).check()
        return {partition: result.offset for partition, result in results.items()}


@dataclass(frozen=True)
class ReadPositions:
    """Where to begin and end in all partitions, as options say it. None: no option was given."""

    from_offset: int | Edge | None = None
    from_time: int | None = None
    until_offset: int | Edge | None = None
    until_time: int | None = None
    start_option: str = "--from"  # the beginning of the options' names, for messages

    @classmethod
    def parse(
        cls,
        from_offset: str | None,
        from_time: str | None,
        until_offset: str | None = None,
        until_time: str | None = None,
        *,
        start_option: str = "--from",
    ) -> Self:
        for offset, moment, name in ((from_offset, from_time, start_option), (until_offset, until_time, "--until")):
            if offset is not None and moment is not None:
                raise CommandError(f"give {name}-offset or {name}-time, one of them")
        now_ms = time.time_ns() // 1_000_000
        return cls(
            None if from_offset is None else parse_offset(f"{start_option}-offset", from_offset),
            None if from_time is None else parse_time(f"{start_option}-time", from_time, now_ms),
            None if until_offset is None else parse_offset("--until-offset", until_offset),
            None if until_time is None else parse_time("--until-time", until_time, now_ms),
            start_option,
        )

    @property
    def has_end(self) -> bool:
        return self.until_offset is not None or self.until_time is not None

    @property
    def is_given(self) -> bool:
        return self.has_end or self.from_offset is not None or self.from_time is not None

    def resolve(self, bounds: Bounds, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ReadRange]:
        """Return the offsets in each partition. An offset that a partition lacks becomes the nearest one."""
        partitions = list(partitions)
        beginnings, ends = bounds.beginning_offsets(partitions), bounds.end_offsets(partitions)
        if self.start_option != "--to":  # a group that continues at the nearest offset loses nothing
            self._check_offset(ends)
        starts, stops = {}, {}
        for partition in partitions:
            edges = beginnings[partition], ends[partition]
            starts[partition] = _offset_in(_or_default(self.from_offset, Edge.BEGINNING), *edges)
            stops[partition] = _offset_in(_or_default(self.until_offset, Edge.END), *edges)
        if self.from_time is not None:
            starts = _offsets_at(bounds, self.from_time, ends)
        if self.until_time is not None:
            stops = _offsets_at(bounds, self.until_time, ends)
        return {
            partition: ReadRange(starts[partition], max(starts[partition], stops[partition]))
            for partition in partitions
        }

    def _check_offset(self, ends: Mapping[TopicPartition, int]) -> None:
        """Refuse an offset that is after the end of every partition. One before the beginning existed once."""
        offset = self.from_offset
        if isinstance(offset, int) and offset > max(ends.values(), default=0):
            shown = join_first([f"{name.topic}-{name.partition} ends at {end}" for name, end in sorted(ends.items())])
            raise CommandError(
                f"{self.start_option}-offset is {offset}, which is after the end: {shown}; give a smaller one, or end"
            )


def _or_default(value: int | Edge | None, edge: Edge) -> int | Edge:
    return edge if value is None else value


def _offset_in(position: int | Edge, beginning: int, end: int) -> int:
    if position is Edge.BEGINNING:
        return beginning
    if isinstance(position, Edge):
        return end
    return min(max(position if position >= 0 else end + position, beginning), end)


def _offsets_at(bounds: Bounds, timestamp: int, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the offsets of the first records that are not older than a timestamp."""
    results = bounds.offsets_for_times(dict.fromkeys(ends, timestamp))
    return {
        partition: end if (first := results.get(partition)) is None else min(first.offset, end)
        for partition, end in ends.items()
    }
