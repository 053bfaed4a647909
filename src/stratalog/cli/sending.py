"""Sending for `produce`: lines go to a producer, one by one or many at once as columns.

When it returns, all records are acknowledged. After an error, records that are in flight have a few seconds to be
acknowledged; after an interrupt, one second. The error says how many were, and from which line to continue.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from stratalog.cli.advice import explain_too_large
from stratalog.cli.broker_names import nearest
from stratalog.cli.envelopes import Envelope
from stratalog.cli.options import admin_part
from stratalog.cli.program import CommandError
from stratalog.cli.progress import RecordProgress, print_line
from stratalog.cli.record_lines import BrokenLineError, LineFormat, chunks_of_lines
from stratalog.cli.send_outcome import SendOutcome
from stratalog.cli.wording import describe_partitions, pluralize
from stratalog.client.admin import Admin
from stratalog.client.errors import (
    BrokerUnreachableError,
    ClientError,
    RecordTooLargeError,
    RequestTimeoutError,
    UnknownTopicOrPartitionError,
)
from stratalog.client.producer import Delivery, Producer

if TYPE_CHECKING:
    import pyarrow as pa

_ERROR_SECONDS = 5.0
_INTERRUPT_SECONDS = 1.0
_MANY_LINES = 2000  # for fewer, importing Arrow takes longer than it saves


class Sending:
    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        line_format: LineFormat,
        headers: Sequence[tuple[str, bytes]],
        partition: int | None,
        *,
        by_key: bool,
        command: str,
    ) -> None:
        """`command` is the command line, to be shown for continuing after an error."""
        self._topic = topic
        self._format = line_format
        self._headers = headers
        self._partition = partition
        self._overrides_partition = partition is not None or by_key
        self._command = command
        self._partition_count: int | None = None
        self._producer = Producer.from_config(config)
        timeout = {"default.api.timeout.ms": self._producer.settings.max_block_ms}
        self._admin_config = admin_part(config) | timeout

    def run(self, stream: BinaryIO, name: str, progress: RecordProgress) -> str:
        """Send all lines of the input `name`. Return how many records are acknowledged, in words."""
        outcome = SendOutcome(name, self._topic, has_acks=self._producer.settings.acks != 0)
        is_topic_checked = False
        try:
            for lines in chunks_of_lines(stream):
                if not is_topic_checked:
                    self._check_topic()
                    is_topic_checked = True
                outcome.check()
                self._send(lines, outcome)
                progress.add(len(lines), sum(map(len, lines)) + len(lines))
            outcome.is_input_read = True
            self._producer.close()  # waits as long as delivery.timeout.ms allows
            outcome.check()
        except KeyboardInterrupt:
            self._producer.close(_INTERRUPT_SECONDS)
            raise KeyboardInterrupt(outcome.summary(self._command, can_continue=not stream.isatty())) from None
        except BaseException as error:
            self._producer.close(_ERROR_SECONDS)
            if outcome.sent:
                line = None
                if isinstance(error, BrokenLineError):
                    line = outcome.next_line = error.line  # there may be empty lines before it
                error.add_note(outcome.summary(self._command, can_continue=not stream.isatty(), broken_line=line))
            raise
        return outcome.acknowledged()

    def _check_topic(self) -> None:
        """Report that sending creates the topic, because its name may be a mistake."""
        try:
            with Admin.from_config(self._admin_config) as admin:
                error = admin.describe_topics([self._topic]).errors.get(self._topic)
                if not isinstance(error, UnknownTopicOrPartitionError):
                    return  # the producer reports other errors
                similar = nearest(self._topic, admin.list_topics())
        except (BrokerUnreachableError, RequestTimeoutError):
            raise
        except ClientError:
            return
        created = f"stratalog: topic {self._topic!r} was created with {pluralize(self._count(), 'partition')}"
        print_line(created if similar is None else f"{created}; did you mean {similar!r}?")

    def _send(self, lines: list[bytes], outcome: SendOutcome) -> None:
        if self._partition is not None:
            self._check_partition(self._partition)
        if len(lines) >= _MANY_LINES and not self._headers and self._send_columns(lines, outcome):
            return
        first = outcome.next_line
        for number, record in self._format.read(lines, outcome.name, first, self._headers):
            partition = self._partition if self._overrides_partition else record.partition
            if partition is not None and partition is not self._partition:
                self._check_line(partition, number, lines, outcome)
            try:
                delivery = self._send_one(record, partition)
            except RecordTooLargeError as error:
                is_compressed = str(self._producer.settings.compression_type) != "none"
                # A record that is compressed may fit the topic's limit, so that is not looked up.
                reason = explain_too_large(error, self._topic, None if is_compressed else self._admin_config)
                raise BrokenLineError(number, f"{outcome.name}, line {number:,}: not sent: {reason}") from None
            outcome.note_record(number, delivery)
        outcome.next_line = first + len(lines)  # empty lines of JSON are not records

    def _send_columns(self, lines: list[bytes], outcome: SendOutcome) -> bool:
        """Send many lines as columns. Return False if a line is wrong: sent one by one, it is found and named."""
        table = self._format.table(lines, self._partition, overrides_partition=self._overrides_partition)
        if table is None or not self._has_partitions_of(table):
            return False
        try:
            delivery = self._producer.send_arrow(self._topic, table)
        except RecordTooLargeError:
            return False  # no record of the table was sent
        has_one_order = self._partition is not None or table.column_names == ["value"]
        is_in_order = has_one_order and table.num_rows == len(lines)
        first = outcome.next_line
        outcome.note_table(first, first + len(lines) - 1, table.num_rows, delivery, is_in_order=is_in_order)
        return True

    def _has_partitions_of(self, table: pa.Table) -> bool:
        if "partition" not in table.column_names:
            return True
        import pyarrow.compute as pc

        highest = pc.max(table.column("partition")).as_py()
        return highest is None or highest < self._count()

    def _send_one(self, record: Envelope, partition: int | None) -> Delivery:
        return self._producer.send(
            self._topic,
            record.value,
            key=record.key,
            headers=record.headers or None,
            partition=partition,
            timestamp=record.timestamp,
        )

    def _count(self) -> int:
        if self._partition_count is None:
            self._partition_count = len(self._producer.partitions_for(self._topic))
        return self._partition_count

    def _check_partition(self, partition: int) -> None:
        """Raise if the topic lacks the partition. A producer would wait for it, and say less."""
        if partition >= self._count():
            raise CommandError(
                f"--partition is {partition}; {self._topic} has {describe_partitions(self._count())}; give another "
                f"--partition, or add partitions: stratalog topic add-partitions {shlex.quote(self._topic)} "
                f"{partition + 1}"
            )

    def _check_line(self, partition: int, number: int, lines: Sequence[bytes], outcome: SendOutcome) -> None:
        """Raise if the topic lacks a line's partition. The advice counts all lines that are read; later ones may name
        higher partitions."""
        if partition < self._count():
            return
        needed = self._format.highest_partition(lines) + 1
        raise BrokenLineError(
            number,
            f"{outcome.name}, line {number:,}: partition is {partition}; {self._topic} has "
            f"{describe_partitions(self._count())}; pass --by-key to choose partitions by keys, or give the topic as "
            f"many partitions as the lines name, {needed} or more: stratalog topic add-partitions "
            f"{shlex.quote(self._topic)} {needed}",
        )
