"""The sink, with deaths planted in it: the format `dying` is `stratalog`, and one process dies once at each point.

STRATALOG_TEST_DEATHS is "point:file;point:file". Who gets there first makes the file and is gone, by SIGKILL: a task's
Python worker for a point of a task, its executor's whole JVM for that of an executor, the whole driver with its JVM for
a point of the driver. At a point of a batch it only stands still: the driver is killed by who sees both files.
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

DEATHS, DRIVER = "STRATALOG_TEST_DEATHS", "STRATALOG_TEST_DRIVER"  # the second: the driver's process group
TASK_POINTS = ("rows sent", "prepared")
DRIVER_POINTS = ("before the note", "noted", "decided", "cleaned up")
EXECUTOR_POINT = "executor prepared"
BATCH_POINTS = ("batch prepared", "batch decided")


def reached(point: str) -> None:
    planted = dict(one.split(":", 1) for one in os.environ.get(DEATHS, "").split(";") if one)
    if point not in planted:
        return
    try:
        Path(planted[point]).touch(exist_ok=False)
    except FileExistsError:
        return
    if point in BATCH_POINTS:
        _stand_still()
    if point in DRIVER_POINTS:
        os.killpg(int(os.environ[DRIVER]), signal.SIGKILL)
    if point == EXECUTOR_POINT:
        os.kill(_parent(os.getppid()), signal.SIGKILL)  # between it and the worker there is a daemon
    os.kill(os.getpid(), signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _stand_still() -> None:
    """Until who started this process is gone, and its group is told so."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


class DyingStreamSink(StreamSink):
    def _prepare_progress(self, batch_id: int) -> PreparedTransaction:
        reached("before the note")
        own = super()._prepare_progress(batch_id)
        reached("noted")
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
        super().abort(messages)  # cleans up, which harms nothing that is decided


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
