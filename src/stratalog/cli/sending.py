"""What `produce` does: lines to a producer, one by one or many at once as columns.

When it returns, all are acknowledged. After an error, what was sent before it has a few seconds to be acknowledged, and
after an interrupt one second. Either says how many were, and with which line to go on.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from stratalog.cli import news
from stratalog.cli.broker_names import nearest
from stratalog.cli.envelopes import Envelope
from stratalog.cli.program import CommandError
from stratalog.cli.progress_line import ProgressLine
from stratalog.cli.record_lines import BrokenLineError, LineFormat, chunks_of_lines
from stratalog.cli.send_outcome import SendOutcome
from stratalog.cli.size_limits import described
from stratalog.cli.wording import partitions_of, plural
from stratalog.client.admin import Admin
from stratalog.client.admin_settings import AdminSettings
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

_LAST_SECONDS = 5.0
_INTERRUPTED_SECONDS = 1.0  # who interrupts wants it to end
_WORTH_COLUMNS = 2000  # lines at once; for fewer, importing Arrow takes longer than it saves


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
        """`command`: how it was called, for who has to go on after an error."""
        self._topic = topic
        self._format = line_format
        self._headers = headers
        self._partition = partition
        self._chooses_partition = partition is not None or by_key
        self._command = command
        self._partition_count: int | None = None
        self._producer = Producer.from_config(config)
        common = set(AdminSettings.names())
        self._admin_config = {name: value for name, value in config.items() if name in common}
        self._admin_config["default.api.timeout.ms"] = self._producer.settings.max_block_ms

    def run(self, stream: BinaryIO, name: str, progress: ProgressLine) -> str:
        """Send all; how many records are acknowledged, in words."""
        outcome = SendOutcome(name, self._topic, has_acks=self._producer.settings.acks != 0)
        is_topic_known = False
        try:
            for lines in chunks_of_lines(stream):
                if not is_topic_known:
                    self._check_topic()
                    is_topic_known = True
                outcome.check()
                self._send(lines, outcome)
                progress.add(len(lines), sum(map(len, lines)) + len(lines))
            outcome.is_all_read = True
            self._producer.close()  # as long as delivery.timeout.ms allows
            outcome.check()
        except KeyboardInterrupt:
            self._producer.close(_INTERRUPTED_SECONDS)
            raise KeyboardInterrupt(outcome.summary(self._command, can_go_on=not stream.isatty())) from None
        except BaseException as error:
            self._producer.close(_LAST_SECONDS)
            if outcome.sent:
                line = None
                if isinstance(error, BrokenLineError):
                    line = outcome.next_line = error.line  # before it may be empty lines
                error.add_note(outcome.summary(self._command, can_go_on=not stream.isatty(), broken_line=line))
            raise
        return outcome.acknowledged()

    def _check_topic(self) -> None:
        """Say that the topic is made by sending to it: its name may be a mistake."""
        try:
            with Admin.from_config(self._admin_config) as admin:
                error = admin.describe_topics([self._topic]).errors.get(self._topic)
                if not isinstance(error, UnknownTopicOrPartitionError):
                    return  # what else is wrong, the producer says
                similar = nearest(self._topic, list(admin.list_topics()))
        except (BrokerUnreachableError, RequestTimeoutError):
            raise
        except ClientError:
            return
        created = f"topic {self._topic!r} was created with {plural(self._count(), 'partition')}"
        news.say(created if similar is None else f"{created}; did you mean {similar!r}?")

    def _send(self, lines: list[bytes], outcome: SendOutcome) -> None:
        if self._partition is not None:
            self._check_partition(self._partition)
        if len(lines) >= _WORTH_COLUMNS and not self._headers and self._send_columns(lines, outcome):
            return
        first = outcome.next_line
        for number, record in self._format.read(lines, outcome.name, first, self._headers):
            partition = self._partition if self._chooses_partition else record.partition
            if partition is not None and partition is not self._partition:
                self._check_line(partition, number, lines, outcome)
            try:
                delivery = self._send_one(record, partition)
            except RecordTooLargeError as error:
                codec = str(self._producer.settings.compression_type)
                why = described(error, self._topic, self._admin_config, codec)
                raise BrokenLineError(number, f"{outcome.name}, line {number:,}: not sent: {why}") from None
            outcome.note_record(number, delivery)
        outcome.next_line = first + len(lines)  # empty lines of JSON are no records

    def _send_columns(self, lines: list[bytes], outcome: SendOutcome) -> bool:
        """Not where a line is wrong: one by one, it is found and named."""
        table = self._format.table(lines, self._partition, is_chosen=self._chooses_partition)
        if table is None or not self._has_partitions_of(table):
            return False
        try:
            delivery = self._producer.send_arrow(self._topic, table)
        except RecordTooLargeError:
            return False  # nothing of it was sent
        is_in_order = self._partition is not None or table.column_names == ["value"]
        first = outcome.next_line
        outcome.note_table(
            first,
            first + len(lines) - 1,
            table.num_rows,
            delivery,
            is_in_order=is_in_order and table.num_rows == len(lines),
        )
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
        """A producer would wait for it to be added, and then say less."""
        if partition >= self._count():
            raise CommandError(
                f"--partition is {partition}; {self._topic} has {partitions_of(self._count())}; give another "
                f"--partition, or add some: stratalog topic add-partitions {shlex.quote(self._topic)} {partition + 1}"
            )

    def _check_line(self, partition: int, number: int, lines: Sequence[bytes], outcome: SendOutcome) -> None:
        """The advice has room for all that is read; what comes later may name more."""
        if partition < self._count():
            return
        needed = self._format.highest_partition(lines) + 1
        raise BrokenLineError(
            number,
            f"{outcome.name}, line {number:,}: partition is {partition}; {self._topic} has "
            f"{partitions_of(self._count())}; pass --by-key, to have partitions chosen by keys, or give the topic as "
            f"many as its lines name, {needed} or more: stratalog topic add-partitions {shlex.quote(self._topic)} "
            f"{needed}",
        )
