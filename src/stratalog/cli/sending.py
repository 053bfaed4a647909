"""What `produce` does: lines to a producer, one by one or many at once as columns, and what became of them.

When it returns, all are acknowledged. What was read before an error or an interrupt is sent too, if that takes no
longer than a few seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from stratalog.cli.envelopes import Envelope
from stratalog.cli.program import CommandError
from stratalog.cli.progress_line import ProgressLine
from stratalog.cli.record_lines import LineFormat, chunks_of_lines
from stratalog.client.producer import Delivery, Producer

_LAST_SECONDS = 5.0
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
        patience: float | None = _LAST_SECONDS
        first = 1
        try:
            for lines in chunks_of_lines(stream):
                self._outcome.check()
                self._send(lines, name, first)
                first += len(lines)
                progress.add(len(lines), sum(map(len, lines)))
            patience = None  # as long as delivery.timeout.ms allows
        finally:
            self._producer.close(patience)
        self._outcome.check()

    def _send(self, lines: list[bytes], name: str, first: int) -> None:
        if self._partition is not None:
            self._check_partition(self._partition)
        if len(lines) >= _WORTH_COLUMNS and not self._headers:
            table = self._format.table(lines, self._partition)
            if table is not None:
                where = f"{name}, lines {first:,} to {first + len(lines) - 1:,}"
                self._outcome.note_table(where, self._producer.send_arrow(self._topic, table))
                return
        for record in self._format.read(lines, name, first, self._headers):
            self._send_one(record._replace(partition=self._partition) if self._chooses_partition else record)

    def _send_one(self, record: Envelope) -> None:
        if record.partition is not None:
            self._check_partition(record.partition)
        delivery = self._producer.send(
            self._topic,
            record.value,
            key=record.key,
            headers=record.headers or None,
            partition=record.partition,
            timestamp=record.timestamp,
        )
        self._outcome.sent += 1
        delivery.add_done_callback(self._outcome.settle)

    def _check_partition(self, partition: int) -> None:
        """A producer would wait for it to be added, and then say less."""
        if self._partition_count is None:
            self._partition_count = len(self._producer.partitions_for(self._topic))
        if partition >= self._partition_count:
            raise CommandError(
                f"partition is {partition}; {self._topic} has the partitions 0 to {self._partition_count - 1}; give "
                "another --partition, or --by-key to choose by keys, or add some: stratalog topic add-partitions "
                f"{self._topic} {partition + 1}"
            )


class _Outcome:
    """Of all records; nothing is kept of those that were delivered."""

    def __init__(self) -> None:
        self.sent = 0  # one by one
        self.failed = 0
        self.first_error: BaseException | None = None
        self._tables: deque[tuple[str, Any]] = deque()

    def settle(self, delivery: Delivery) -> None:
        """Called in the producer's own thread."""
        error = delivery.exception()
        if error is not None:
            self.failed += 1
            self.first_error = self.first_error or error

    def note_table(self, where: str, delivery: Any) -> None:
        self._tables.append((where, delivery))

    def check(self) -> None:
        while self._tables and self._tables[0][1].done():
            where, delivery = self._tables.popleft()
            error = delivery.exception()
            if error is not None:
                raise CommandError(f"{where}: not all were delivered: {error}") from error
        if self.first_error is not None:
            raise CommandError(
                f"{self.failed:,} of {self.sent:,} records were not delivered: {self.first_error}"
            ) from self.first_error
