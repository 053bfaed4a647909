"""Stream writes: `df.writeStream.format("stratalog")`. Each batch of a query is written once, whatever crashes.

Spark creates a writer per batch on the driver and copies it to the tasks. It creates another one for the commit, in a
Python process that stays alive and keeps the driver's hold on each sink. After a restart, Spark may run a batch again.
If the batch is written already, tasks skip their rows, and the commit changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from stratalog.client.admin import Admin
from stratalog.spark.sink_ids import SinkIds
from stratalog.spark.sink_transactions import SinkError, StreamSink, abort_each, next_batch, resolved
from stratalog.spark.task_writer import Attempt, write_in_transactions, write_plainly
from stratalog.spark.worker_process import freeze_modules
from stratalog.spark.write_columns import check_columns
from stratalog.spark.write_options import Delivery, WriteOptions, parse
from stratalog.spark.writer import Written, prepared_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # local properties of tasks
_MOST_HELD = 16  # sinks per process; the least recently used one is closed first


@dataclass(frozen=True)
class WrittenOfStream(Written):
    query_id: str = ""
    was_there: bool = False  # the batch had been written before, so the task wrote nothing


class StratalogStreamWriter(DataSourceStreamArrowWriter):
    sink = StreamSink

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check options and columns. Raises ConfigError, SinkError, and ClientError if no broker is reachable."""
        parsed = parse(options)
        check_columns(schema, parsed.topic)
        self.options = resolved(parsed)
        freeze_modules()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenOfStream:
        task = TaskContext.get()
        assert task is not None
        query_id, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if query_id is None or batch is None:
            raise SinkError(f"Spark has not set the task's properties {_QUERY_ID} and {_BATCH_ID}")
        if self.options.delivery is Delivery.AT_LEAST_ONCE:
            return WrittenOfStream(write_plainly(iterator, self.options), query_id=query_id)
        ids = self._ids(query_id)
        if _is_written(self.options, ids, query_id, int(batch)):
            for _ in iterator:  # an aggregation saves its state only if all of its rows are consumed
                pass
            return WrittenOfStream(0, query_id=query_id, was_there=True)
        attempt = Attempt(ids, task.partitionId(), task.attemptNumber())
        return WrittenOfStream(*write_in_transactions(iterator, self.options, attempt), query_id=query_id)

    def _ids(self, query_id: str) -> SinkIds:
        return SinkIds(self.options.sink_id or query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        written = [message for message in messages if isinstance(message, WrittenOfStream)]
        prepared = prepared_of(messages)
        was_there = any(message.was_there for message in written)
        if self.options.delivery is Delivery.AT_LEAST_ONCE or not (prepared or was_there):
            return  # the batch has no rows, so there is nothing to commit
        query_id = written[0].query_id
        with _held(self.sink, self.options, self._ids(query_id), query_id) as sink:
            if was_there and not sink.has(batchId):
                raise SinkError(
                    f"tasks found batch {batchId} written, but its record is missing now; start the query again"
                )
            sink.commit(batchId, prepared)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        prepared = prepared_of(messages)
        if prepared:
            with Admin.from_config(self.options.admin_config()) as admin:
                abort_each(admin, prepared)


# The state of a process between batches

_Key = tuple[str, str, str]
_lock = threading.Lock()
_sinks: dict[_Key, StreamSink] = {}
_last_batches: dict[_Key, int] = {}


@contextmanager
def _held(kind: type[StreamSink], options: WriteOptions, ids: SinkIds, query_id: str) -> Iterator[StreamSink]:
    """Yield the driver's hold on a sink. After an error it is closed, and the next call claims the sink again."""
    key = (options.servers, ids.name, query_id)
    with _lock:
        sink = _sinks.pop(key, None)
    sink = sink or kind(options, ids, query_id)
    try:
        yield sink
    except BaseException:
        sink.close()
        raise
    with _lock:
        _sinks[key] = sink
        excess = [_sinks.pop(next(iter(_sinks))) for _ in range(len(_sinks) - _MOST_HELD)]
    for oldest in excess:
        oldest.close()


def _is_written(options: WriteOptions, ids: SinkIds, query_id: str, batch: int) -> bool:
    """Return whether the batch is written, to avoid writing it again. A worker that has seen earlier batches of the
    query does not check, because then the batch is new; the commit checks in any case."""
    key = (options.servers, ids.name, query_id)
    with _lock:
        before = _last_batches.get(key)
        _last_batches[key] = batch
    if before is not None and before < batch:
        return False
    with Admin.from_config(options.admin_config()) as admin:
        number = next_batch(admin, ids, query_id)
    return number is not None and batch < number
