"""Reading for `consume`: poll, print, and notice when everything is read.

Records are flushed to stdout before their offsets are committed, so a group never skips records that were not printed.
Records that were fetched and not printed are not committed either.
"""

from __future__ import annotations

import errno
import select
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stratalog.cli.options import admin_part
from stratalog.cli.positions import ReadPositions, ReadRange, TopicChoice
from stratalog.cli.program import CommandError, writing_to_stdout
from stratalog.cli.progress import RecordProgress, is_stderr_stdout, print_line
from stratalog.cli.record_lines import LineFormat
from stratalog.cli.wording import describe_partitions, join_first
from stratalog.client.admin import Admin
from stratalog.client.consumer import Consumer, ConsumerRecord
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import OffsetAndMetadata

_POLL_SECONDS = 0.5
_CLOSE_SECONDS = 5.0  # for leaving a group whose coordinator may be gone


class Reading:
    def __init__(
        self, config: Mapping[str, Any], choice: TopicChoice, line_format: LineFormat, count: int | None, follow: bool
    ) -> None:
        self._config = config
        self._choice = choice
        self._format = line_format
        self._left = count
        self._follow = follow
        is_free = not sys.stdout.isatty()
        self._progress = RecordProgress(on_terminal=is_free, in_pipe=is_free and not is_stderr_stdout() and not follow)
        self._progress.total_records = count

    def run(self, positions: ReadPositions, numbers: Sequence[int]) -> None:
        """Read without a group, from all partitions or those with these numbers."""
        partitions = self._partitions(numbers)
        with self._consumer() as consumer, self._progress:
            plan = positions.resolve(consumer, partitions)
            if not self._follow:
                plan = {partition: offsets for partition, offsets in plan.items() if offsets.start < offsets.end}
                records = sum(end - start for start, end in plan.values())
                self._progress.total_records = records if self._left is None else min(self._left, records)
            consumer.assign(list(plan))
            for partition, offsets in plan.items():
                consumer.seek(partition, offsets.start)
            while plan and self._left != 0:
                self._print_polled(consumer, plan)
                if not self._follow:
                    self._drop_finished(consumer, plan)
        self._report_if_empty(" in the given range" if positions.is_given or numbers else "")

    def run_in_group(self) -> None:
        self._partitions(())  # a subscription would wait without end for a topic that does not exist
        with self._consumer() as consumer, self._progress:
            consumer.subscribe(self._choice.pattern or self._choice.topics)
            ends: dict[TopicPartition, int] = {}
            while self._left != 0 and not self._is_group_done(consumer, ends):
                printed = self._print_polled(consumer, None)
                if printed:
                    consumer.commit({partition: OffsetAndMetadata(offset) for partition, offset in printed.items()})
        self._report_if_empty(" after the group's offsets; --follow waits for new ones")

    def _report_if_empty(self, where: str) -> None:
        """Say so if nothing was printed, because an empty output could also be a mistake in the command."""
        if not self._progress.records:
            pattern = self._choice.pattern
            topics = join_first(self._choice.topics) if pattern is None else f"topics that match {pattern.pattern}"
            print_line(f"stratalog: no records in {topics}{where}")

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer.from_config(self._config)
        try:
            yield consumer
        finally:
            consumer.close(_CLOSE_SECONDS)

    def _partitions(self, numbers: Sequence[int]) -> list[TopicPartition]:
        """Return the partitions to read. An admin reports a missing topic at once; a consumer would wait for it."""
        with Admin.from_config(admin_part(self._config)) as admin:
            topics = self._choice.find(admin)
        partitions: list[TopicPartition] = []
        for topic in topics:
            existing = sorted(info.partition for info in topic.partitions)
            for number in numbers:
                if number not in existing:
                    raise CommandError(
                        f"--partition is {number}; {topic.name} has {describe_partitions(len(existing))}"
                    )
            partitions += [TopicPartition(topic.name, number) for number in dict.fromkeys(numbers or existing)]
        return partitions

    def _print_polled(
        self, consumer: Consumer, plan: Mapping[TopicPartition, ReadRange] | None
    ) -> dict[TopicPartition, int]:
        """Poll once and print. Return the offset after the last printed record of each partition."""
        printed: dict[TopicPartition, int] = {}
        for partition, records in consumer.poll(_POLL_SECONDS).items():
            if plan is not None and not self._follow:
                if partition not in plan:
                    continue
                end = plan[partition].end
                records = [record for record in records if record.offset < end]
            if self._left is not None:
                records = records[: self._left]
                self._left -= len(records)
            if records:
                self._print(records)
                printed[partition] = records[-1].offset + 1
        if printed:
            with writing_to_stdout():
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

    def _drop_finished(self, consumer: Consumer, plan: dict[TopicPartition, ReadRange]) -> None:
        """Drop partitions by their position: the last offsets may be transaction markers, which are no records."""
        finished = [partition for partition, offsets in plan.items() if consumer.position(partition) >= offsets.end]
        for partition in finished:
            del plan[partition]
        if finished:
            consumer.pause(finished)

    def _is_group_done(self, consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
        """Return whether everything is read that existed when this member got its partitions."""
        if self._follow:
            return False
        assigned = consumer.assignment()
        if not assigned:
            return False
        new = [partition for partition in assigned if partition not in ends]
        if new:
            ends.update(consumer.end_offsets(new))
        return all(consumer.position(partition) >= ends[partition] for partition in assigned)


def _write(content: bytes) -> None:
    """Write all of it: without a buffer (PYTHONUNBUFFERED), a signal may end a write early."""
    view = memoryview(content)
    with writing_to_stdout():
        while view:
            view = view[sys.stdout.buffer.write(view) :]


def _check_reader() -> None:
    """Raise BrokenPipeError if the reader of the pipe has gone. Without new records no write would notice it."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return  # stdout has no file behind it
    if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, "the reader of stdout has gone")
