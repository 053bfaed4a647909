"""The sink, with deaths planted in it: the format `dying` is `stratalog`, and one process dies once at each point.

STRATALOG_TEST_DEATHS is "point:file;point:file". Who gets there first makes the file and is gone, by SIGKILL: a task's
Python worker for a point of a task, the whole driver with its JVM for a point of the driver.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.client.prepared_transaction import PreparedTransaction
from stratalog.spark.sink_transactions import StreamSink
from stratalog.spark.source import StratalogDataSource
from stratalog.spark.stream_writer import StratalogStreamWriter, WrittenOfStream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

DEATHS, DRIVER = "STRATALOG_TEST_DEATHS", "STRATALOG_TEST_DRIVER"  # the second: the driver's process group
TASK_POINTS = ("rows sent", "prepared")
DRIVER_POINTS = ("before the note", "noted", "decided", "cleaned up")


def reached(point: str) -> None:
    planted = dict(one.split(":", 1) for one in os.environ.get(DEATHS, "").split(";") if one)
    if point not in planted:
        return
    try:
        Path(planted[point]).touch(exist_ok=False)
    except FileExistsError:
        return
    if point in DRIVER_POINTS:
        os.killpg(int(os.environ[DRIVER]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class DyingStreamSink(StreamSink):
    def _note(self, batch_id: int) -> PreparedTransaction:
        reached("before the note")
        own = super()._note(batch_id)
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
        def rows() -> Iterator[pa.RecordBatch]:
            yield from iterator
            reached("rows sent")

        written = super().write(rows())
        if written.rows:
            reached("prepared")
        return written


class DyingDataSource(StratalogDataSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingStreamWriter:  # noqa: N802
        return DyingStreamWriter(self.options, schema)
