"""What `consume` does: polls, prints, and knows when it is done.

What is printed is flushed before it is committed: a group never skips what nobody has seen. Records that were fetched
and not printed are not committed either.
"""

from __future__ import annotations

import errno
import select
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stratalog.cli.program import CommandError, writing
from stratalog.cli.progress_line import ProgressLine, is_stderr_stdout
from stratalog.cli.read_plan import Stretch, Wanted
from stratalog.cli.record_lines import LineFormat
from stratalog.cli.topic_choice import TopicChoice
from stratalog.cli.wording import partitions_of
from stratalog.client.admin import Admin
from stratalog.client.admin_settings import AdminSettings
from stratalog.client.consumer import Consumer, ConsumerRecord
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import OffsetAndMetadata

_POLL_SECONDS = 0.5
_LAST_SECONDS = 5.0  # for leaving a group whose coordinator may be gone


class Reading:
    def __init__(
        self, config: Mapping[str, Any], choice: TopicChoice, line_format: LineFormat, count: int | None, follow: bool
    ) -> None:
        self._config = config
        common = set(AdminSettings.names())
        self._admin_config = {name: value for name, value in config.items() if name in common}
        self._choice = choice
        self._format = line_format
        self._left = count
        self._follow = follow
        is_free = not sys.stdout.isatty()
        self._progress = ProgressLine(also_if=is_free, in_pipe=is_free and not is_stderr_stdout() and not follow)
        self._progress.total = count

    def run(self, wanted: Wanted, partitions: Sequence[int]) -> None:
        """On its own, in all partitions or some."""
        places = self._places(partitions)
        with self._consumer() as consumer, self._progress:
            plan = wanted.plan(consumer, places)
            if not self._follow:
                plan = {place: stretch for place, stretch in plan.items() if stretch.start < stretch.end}
                there = sum(end - start for start, end in plan.values())
                self._progress.total = there if self._left is None else min(self._left, there)
            consumer.assign(list(plan))
            for place, stretch in plan.items():
                consumer.seek(place, stretch.start)
            while plan and self._left != 0:
                self._print_polled(consumer, plan)
                if not self._follow:
                    self._leave_out_what_is_read(consumer, plan)

    def run_in_group(self) -> None:
        self._places(())  # a name that does not exist would be waited for, for ever
        with self._consumer() as consumer, self._progress:
            consumer.subscribe(self._choice.pattern or self._choice.topics)
            ends: dict[TopicPartition, int] = {}
            while self._left != 0 and not self._is_group_done(consumer, ends):
                printed = self._print_polled(consumer, None)
                if printed:
                    consumer.commit({place: OffsetAndMetadata(offset) for place, offset in printed.items()})

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer.from_config(self._config)
        try:
            yield consumer
        finally:
            consumer.close(_LAST_SECONDS)

    def _places(self, partitions: Sequence[int]) -> list[TopicPartition]:
        """An admin is told at once that there is no such topic; a consumer would wait for it."""
        with Admin.from_config(self._admin_config) as admin:
            topics = self._choice.find(admin)
        places: list[TopicPartition] = []
        for topic in topics:
            there = sorted(one.partition for one in topic.partitions)
            for partition in partitions:
                if partition not in there:
                    raise CommandError(f"--partition is {partition}; {topic.name} has {partitions_of(len(there))}")
            places += [TopicPartition(topic.name, partition) for partition in dict.fromkeys(partitions or there)]
        return places

    def _print_polled(
        self, consumer: Consumer, plan: Mapping[TopicPartition, Stretch] | None
    ) -> dict[TopicPartition, int]:
        """What comes after what was printed, in each partition."""
        printed: dict[TopicPartition, int] = {}
        for place, records in consumer.poll(_POLL_SECONDS).items():
            if plan is not None and not self._follow:
                if place not in plan:
                    continue
                end = plan[place].end
                records = [record for record in records if record.offset < end]
            if self._left is not None:
                records = records[: self._left]
                self._left -= len(records)
            if records:
                self._print(records)
                printed[place] = records[-1].offset + 1
        if printed:
            with writing():
                sys.stdout.flush()
        else:
            _check_reader()
        return printed

    def _print(self, records: Iterable[ConsumerRecord]) -> None:
        write = self._format.write
        lines = [write(record) for record in records]
        content = b"".join(lines)
        _write(content)
        self._progress.add(len(lines), len(content))

    def _leave_out_what_is_read(self, consumer: Consumer, plan: dict[TopicPartition, Stretch]) -> None:
        """By position and not by the last record: there may be none at the end, but markers of transactions."""
        done = [place for place, stretch in plan.items() if consumer.position(place) >= stretch.end]
        for place in done:
            del plan[place]
        if done:
            consumer.pause(done)

    def _is_group_done(self, consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
        """Whether all that was there when this member got its partitions is read."""
        if self._follow:
            return False
        assigned = consumer.assignment()
        if not assigned:
            return False
        new = [place for place in assigned if place not in ends]
        if new:
            ends.update(consumer.end_offsets(new))
        return all(consumer.position(place) >= ends[place] for place in assigned)


def _write(content: bytes) -> None:
    """All of it: without a buffer (PYTHONUNBUFFERED) a write may take a part, when a signal comes or a reader goes."""
    view = memoryview(content)
    with writing():
        while view:
            view = view[sys.stdout.buffer.write(view) :]


def _check_reader() -> None:
    """Who reads a pipe may have gone, which a write would tell; there may be none for long."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return  # a stdout without a file behind it
    if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, "who read stdout has gone")
