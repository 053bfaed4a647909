"""Batch writes: `df.write.format("stratalog")`. A write is atomic: readers see all of its rows or none.

The writer is created on the driver. Copies of it run in the tasks, and for commit and abort on the driver.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from stratalog.client.prepared_transaction import PreparedTransaction
from stratalog.errors import ConfigError
from stratalog.spark.sink_ids import SinkIds
from stratalog.spark.sink_transactions import abort_batch, commit_batch, resolved
from stratalog.spark.task_writer import Attempt, write_in_transactions, write_plainly
from stratalog.spark.worker_process import freeze_modules
from stratalog.spark.write_columns import check_columns
from stratalog.spark.write_options import Delivery, parse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of a task."""

    rows: int
    prepared: tuple[PreparedTransaction, ...] = ()


class StratalogWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Check options and columns. Raises ConfigError, SinkError, and ClientError if no broker is reachable."""
        if overwrite:
            raise ConfigError("mode is overwrite; topics are append-only: use mode('append'), or delete the topic")
        parsed = parse(options)
        check_columns(schema, parsed.topic)
        self.options = resolved(parsed)
        freeze_modules()
        self.ids = SinkIds(f"batch-{uuid.uuid4().hex}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        if self.options.delivery is Delivery.AT_LEAST_ONCE:
            return Written(write_plainly(iterator, self.options))
        return Written(*write_in_transactions(iterator, self.options, self._attempt()))

    def _attempt(self) -> Attempt:
        task = TaskContext.get()
        assert task is not None
        return Attempt(self.ids, task.partitionId(), task.attemptNumber())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.options.delivery is Delivery.EXACTLY_ONCE:
            commit_batch(self.options, self.ids, prepared_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.options.delivery is Delivery.EXACTLY_ONCE:
            abort_batch(self.options, self.ids, prepared_of(messages))


def prepared_of(messages: list[WriterCommitMessage | None]) -> list[PreparedTransaction]:
    return [transaction for message in messages if isinstance(message, Written) for transaction in message.prepared]
