"""What `produce` does: lines to a producer, one by one or many at once as columns.

When it returns, all are acknowledged. After an error, what was sent before it has a few seconds to be acknowledged, and
after an interrupt one second. Either says how many were, and with which line to go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from stratalog.cli.envelopes import Envelope
from stratalog.cli.program import CommandError
from stratalog.cli.progress_line import ProgressLine
from stratalog.cli.record_lines import LineFormat, chunks_of_lines
from stratalog.cli.send_outcome import SendOutcome
from stratalog.cli.wording import partitions_of
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
    ) -> None:
        self._topic = topic
        self._format = line_format
        self._headers = headers
        self._partition = partition
        self._chooses_partition = partition is not None or by_key
        self._partition_count: int | None = None
        self._producer = Producer.from_config(config)

    def run(self, stream: BinaryIO, name: str, progress: ProgressLine) -> None:
        outcome = SendOutcome(name, has_acks=self._producer.settings.acks != 0)
        try:
            for lines in chunks_of_lines(stream):
                outcome.check()
                self._send(lines, outcome)
                progress.add(len(lines), sum(map(len, lines)) + len(lines))
            outcome.is_all_read = True
            self._producer.close()  # as long as delivery.timeout.ms allows
            outcome.check()
        except KeyboardInterrupt:
            self._producer.close(_INTERRUPTED_SECONDS)
            raise KeyboardInterrupt(outcome.summary(self._topic, can_go_on=not stream.isatty())) from None
        except BaseException as error:
            self._producer.close(_LAST_SECONDS)
            if outcome.sent:
                error.add_note(outcome.summary(self._topic, can_go_on=not stream.isatty()))
            raise

    def _send(self, lines: list[bytes], outcome: SendOutcome) -> None:
        if self._partition is not None:
            self._check_partition(self._partition, "--partition")
        if len(lines) >= _WORTH_COLUMNS and not self._headers and self._send_columns(lines, outcome):
            return
        first = outcome.next_line
        for number, record in self._format.read(lines, outcome.name, first, self._headers):
            partition = self._partition if self._chooses_partition else record.partition
            if partition is not None and partition is not self._partition:
                self._check_partition(partition, f"{outcome.name}, line {number}: partition")
            outcome.note_record(number, self._send_one(record, partition))
        outcome.next_line = first + len(lines)  # empty lines of JSON are no records

    def _send_columns(self, lines: list[bytes], outcome: SendOutcome) -> bool:
        """Not where a line is wrong: one by one, it is found and named."""
        table = self._format.table(lines, self._partition, is_chosen=self._chooses_partition)
        if table is None or not self._has_partitions_of(table):
            return False
        delivery = self._producer.send_arrow(self._topic, table)
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

    def _check_partition(self, partition: int, what: str) -> None:
        """A producer would wait for it to be added, and then say less."""
        if partition >= self._count():
            by_key = ", use --by-key to choose by keys" if self._format.as_json else ""
            raise CommandError(
                f"{what} is {partition}; {self._topic} has {partitions_of(self._count())}; give another --partition"
                f"{by_key}, or add some: stratalog topic add-partitions {self._topic} {partition + 1}"
            )
