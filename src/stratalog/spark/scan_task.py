"""What a task of a read does, and what it is told. All that goes to the executors is here: each Python worker that is
started imports it anew, so what serves planning only, or the other way to the bytes, is left out until it is needed.
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
from stratalog.spark.worker_memory import settle
from stratalog.spark.worker_socket import acknowledge

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("stratalog.spark")


class ScanPartition(InputPartition):
    """One task. The request is the reader's, which every task has anyway."""

    def __init__(self, range: OffsetRange, data_dirs: tuple[str, ...] = ()) -> None:
        super().__init__(None)
        self.range = range
        self.data_dirs = data_dirs

    def __repr__(self) -> str:
        return f"ScanPartition({self.range}, {'direct' if self.data_dirs else 'wire'})"


class TaskReader(DataSourceReader):
    """What becomes of a reader, of a batch's or of a stream's, when it goes to the executors: only the reading."""

    def __init__(self, request: ScanRequest) -> None:
        """In a task this is what a worker comes to first; the partition is yet to be sent."""
        self.request = request
        acknowledge()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.request)


def read_partition(partition: InputPartition, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    """In an executor. Spark makes a task without a range where there is nothing to read."""
    if isinstance(partition, ScanPartition):
        yield from _read_range(partition.range, partition.data_dirs, request)
    settle()


def _read_range(place: OffsetRange, data_dirs: tuple[str, ...], request: ScanRequest) -> Iterator[pa.RecordBatch]:
    if data_dirs:
        try:
            yield from direct_scan.scan(place, replace(request, data_dirs=data_dirs))
        except FilesUnavailableError as error:
            if request.data_dirs:
                raise  # who names directories wants these
            logger.info("%s is read over the wire: %s", place, error)
            place = replace(place, start=error.next_offset)
        else:
            return
    from stratalog.spark import wire_scan  # with it come the client and the protocol

    yield from wire_scan.scan(place, request)
