"""The sink with planned kills: the format `dying` is `stratalog`, and at each point one process is killed once.

STRATALOG_TEST_DEATHS is "point:file;point:file". The first process to reach a point creates the file and is killed by
SIGKILL: the Python worker at a point of a task, the JVM of the executor at that of an executor, and the driver with its
JVM at a point of the driver. At a point of a batch write, the driver only pauses; the test kills it when both files
exist.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from stratalog.client.prepared_transaction import PreparedTransaction
from stratalog.spark import sink_transactions
from stratalog.spark.sink_transactions import StreamSink
from stratalog.spark.source import StratalogDataSource
from stratalog.spark.stream_writer import StratalogStreamWriter, WrittenOfStream
from stratalog.spark.writer import StratalogWriter, Written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

DEATHS, DRIVER = "STRATALOG_TEST_DEATHS", "STRATALOG_TEST_DRIVER"  # the second is the driver's process group
TASK_POINTS = ("rows sent", "prepared")
DRIVER_POINTS = ("before progress", "progress prepared", "decided", "cleaned up")
EXECUTOR_POINT = "executor prepared"
BATCH_POINTS = ("batch prepared", "batch decided")


def reached(point: str) -> None:
    planted = dict(each.split(":", 1) for each in os.environ.get(DEATHS, "").split(";") if each)
    if point not in planted:
        return
    try:
        Path(planted[point]).touch(exist_ok=False)
    except FileExistsError:
        return
    if point in BATCH_POINTS:
        _pause()
    if point in DRIVER_POINTS:
        os.killpg(int(os.environ[DRIVER]), signal.SIGKILL)
    if point == EXECUTOR_POINT:
        os.kill(_parent(os.getppid()), signal.SIGKILL)  # the daemon is between it and the worker
    os.kill(os.getpid(), signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _pause() -> None:
    """Wait until the parent process has ended, then stop."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


class DyingStreamSink(StreamSink):
    def _prepare_progress(self, batch_id: int) -> PreparedTransaction:
        reached("before progress")
        own = super()._prepare_progress(batch_id)
        reached("progress prepared")
        return own

    def _decide(self, prepared: Sequence[PreparedTransaction]) -> None:
        super()._decide(prepared)
        reached("decided")

    def _clean_up(self) -> None:
        super()._clean_up()
        reached("cleaned up")


class DyingStreamWriter(StratalogStreamWriter):
    sink = DyingStreamSink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenOfStream:
        written = super().write(_dying(iterator))
        if written.rows:
            reached("prepared")
        return written


class DyingWriter(StratalogWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        written = super().write(_dying(iterator))
        if written.rows:
            reached("prepared")
            reached(EXECUTOR_POINT)
        return written

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        reached("batch prepared")
        with mock.patch.object(sink_transactions, "_clean_up", lambda *_: reached("batch decided")):
            super().commit(messages)
        super().abort(messages)  # cleans up, which does not affect what is decided


def _dying(iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from iterator
    reached("rows sent")


class DyingDataSource(StratalogDataSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def writer(self, schema: StructType, overwrite: bool) -> DyingWriter:
        return DyingWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingStreamWriter:  # noqa: N802
        return DyingStreamWriter(self.options, schema)
