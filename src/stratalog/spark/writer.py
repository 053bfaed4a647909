"""Batches: `df.write.format("stratalog")`. All rows of a write count together, or none of them does.

The writer is made on the driver, and copies of it run in the tasks and, for commit and abort, on the driver again.
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
from stratalog.spark.worker_memory import settle
from stratalog.spark.write_columns import check_columns
from stratalog.spark.write_options import Delivery, parse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has written."""

    rows: int
    prepared: tuple[PreparedTransaction, ...] = ()


class StratalogWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Raises ConfigError, SinkError, and ClientError where no broker is there."""
        if overwrite:
            raise ConfigError("mode is overwrite; a topic can only be appended to: mode('append'), or delete the topic")
        parsed = parse(options)
        check_columns(schema, parsed.topic)
        self.options = resolved(parsed)
        settle()
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
    return [one for message in messages if isinstance(message, Written) for one in message.prepared]
