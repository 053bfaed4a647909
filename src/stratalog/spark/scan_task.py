"""The task of a read. Each new Python worker imports this module, so it imports no code for planning, and the code for
reading over the wire only on demand.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from stratalog.spark import direct_scan
from stratalog.spark.direct_plan import FilesUnavailableError
from stratalog.spark.scan_request import OffsetRange, ScanRequest
from stratalog.spark.worker_process import acknowledge, freeze_modules

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("stratalog.spark")


class ScanPartition(InputPartition):
    """The range of one task. The request is not part of it, because every task also receives the reader."""

    def __init__(self, range: OffsetRange, data_dirs: tuple[str, ...] = (), in_sync: tuple[int, ...] = ()) -> None:
        super().__init__(None)
        self.range = range
        self.data_dirs = data_dirs
        self.in_sync = in_sync

    def __repr__(self) -> str:
        return f"ScanPartition({self.range}, {'direct' if self.data_dirs else 'wire'})"


class TaskReader(DataSourceReader):
    """The reader of a batch or a stream as it is pickled to the executors: without planning."""

    def __init__(self, request: ScanRequest) -> None:
        self.request = request
        acknowledge()  # the task's partition is still to come

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.request)


def read_partition(partition: InputPartition, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    """Read the range of a task. Spark creates a task without a range if there is nothing to read."""
    if isinstance(partition, ScanPartition):
        own = replace(request, data_dirs=partition.data_dirs, in_sync=partition.in_sync)
        yield from _read_range(partition.range, own, are_dirs_named=bool(request.data_dirs))
    freeze_modules()


def _read_range(range: OffsetRange, request: ScanRequest, *, are_dirs_named: bool) -> Iterator[pa.RecordBatch]:
    if request.data_dirs:
        try:
            yield from direct_scan.scan(range, request)
        except FilesUnavailableError as error:
            if are_dirs_named:
                raise  # the user named these directories
            logger.info("%s is read over the wire: %s", range, error)
            range = replace(range, start=error.next_offset)
        else:
            return
    from stratalog.spark import wire_scan  # imports the client and the protocol

    yield from wire_scan.scan(range, request)
