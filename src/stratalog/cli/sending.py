"""What `produce` does: lines to a producer, one by one or many at once as columns, and what became of them.

When it returns, all are acknowledged. What was read before an error is sent too, if that takes no longer than a few
seconds; after an interrupt there is one, and it is said how many were acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from stratalog.cli.envelopes import Envelope
from stratalog.cli.program import CommandError, spoken
from stratalog.cli.progress_line import ProgressLine
from stratalog.cli.record_lines import LineFormat, chunks_of_lines
from stratalog.cli.wording import partitions_of, plural
from stratalog.client.producer import Delivery, Producer

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.client.arrow_sender import ArrowDelivery

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
        self._outcome = _Outcome()
        self._producer = Producer.from_config(config)

    def run(self, stream: BinaryIO, name: str, progress: ProgressLine) -> None:
        first = 1
        try:
            for lines in chunks_of_lines(stream):
                self._outcome.check()
                self._outcome.taken += len(lines)
                self._send(lines, name, first)
                first += len(lines)
                progress.add(len(lines), sum(map(len, lines)))
            self._producer.close()  # as long as delivery.timeout.ms allows
        except KeyboardInterrupt:
            self._producer.close(_INTERRUPTED_SECONDS)
            raise KeyboardInterrupt(self._outcome.counted()) from None
        except BaseException:
            self._producer.close(_LAST_SECONDS)
            raise
        self._outcome.check()

    def _send(self, lines: list[bytes], name: str, first: int) -> None:
        if self._partition is not None:
            self._check_partition(self._partition, "--partition")
        if len(lines) >= _WORTH_COLUMNS and not self._headers and self._send_columns(lines, name, first):
            return
        before = self._outcome.sent
        try:
            for number, record in self._format.read(lines, name, first, self._headers):
                partition = self._partition if self._chooses_partition else record.partition
                if partition is not None and partition is not self._partition:
                    self._check_partition(partition, f"{name}, line {number}: partition")
                self._send_one(record, partition)
        except CommandError as error:
            raise CommandError(f"{error}{self._sent_before()}") from None
        self._outcome.taken += self._outcome.sent - before - len(lines)  # empty lines of JSON are no records

    def _send_columns(self, lines: list[bytes], name: str, first: int) -> bool:
        """Not where a line is wrong: one by one, it is found and named."""
        table = self._format.table(lines, self._partition, is_chosen=self._chooses_partition)
        if table is None or not self._has_partitions_of(table):
            return False
        where = f"{name}, lines {first:,} to {first + len(lines) - 1:,}"
        self._outcome.taken += table.num_rows - len(lines)
        self._outcome.note_table(where, self._producer.send_arrow(self._topic, table), table.num_rows)
        return True

    def _has_partitions_of(self, table: pa.Table) -> bool:
        if "partition" not in table.column_names:
            return True
        import pyarrow.compute as pc

        highest = pc.max(table.column("partition")).as_py()
        return highest is None or highest < self._count()

    def _send_one(self, record: Envelope, partition: int | None) -> None:
        delivery = self._producer.send(
            self._topic,
            record.value,
            key=record.key,
            headers=record.headers or None,
            partition=partition,
            timestamp=record.timestamp,
        )
        self._outcome.sent += 1
        delivery.add_done_callback(self._outcome.settle)

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

    def _sent_before(self) -> str:
        sent = self._outcome.sent
        return f"; {plural(sent, 'record')} before it {'was' if sent == 1 else 'were'} sent" if sent else ""


class _Outcome:
    """Of all records; nothing is kept of those that were delivered."""

    def __init__(self) -> None:
        self.taken = 0  # records that were read, whether they were sent or not
        self.sent = 0
        self.failed = 0
        self.acknowledged = 0
        self.first_error: BaseException | None = None
        self._tables: deque[tuple[str, ArrowDelivery, int]] = deque()

    def settle(self, delivery: Delivery) -> None:
        """Called in the producer's own thread."""
        error = delivery.exception()
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1
            self.first_error = self.first_error or error

    def note_table(self, where: str, delivery: ArrowDelivery, rows: int) -> None:
        self.sent += rows
        self._tables.append((where, delivery, rows))

    def check(self) -> None:
        while self._tables and self._tables[0][1].done():
            where, delivery, rows = self._tables.popleft()
            error = delivery.exception()
            if error is not None:
                raise CommandError(f"{where}: not all were delivered: {spoken(error)}") from error
            self.acknowledged += rows
        if self.first_error is not None:
            verb = "was" if self.sent == 1 else "were"
            raise CommandError(
                f"{self.failed:,} of {plural(self.sent, 'record')} {verb} not delivered: {spoken(self.first_error)}"
            ) from self.first_error

    def counted(self) -> str:
        """What became of them, once the producer is closed."""
        acknowledged = self.acknowledged + sum(delivery.acknowledged() for _, delivery, _ in self._tables)
        others = self.taken - acknowledged
        said = f"{plural(acknowledged, 'record')} acknowledged"
        return f"{said}, {others:,} {'was' if others == 1 else 'were'} not" if others else said
