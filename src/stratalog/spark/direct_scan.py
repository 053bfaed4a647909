"""Reads a range of a partition directly from its files, mapped window by window, while a broker may be running.

`scan(range, request)` has the signature of wire_scan.scan and yields the same rows. It never reads past range.end,
which the plan got from the broker: the high watermark or the last stable offset.

A segment that is deleted or compacted while it is read stays readable, because its file is open. If a segment is
missing when it is opened, the directory is listed again, and the scan continues in the compacted segment. Records that
retention has deleted are lost; failOnDataLoss decides whether that is an error. The scan needs memory for a window and
an Arrow batch, whatever the size of the topic.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.errors import CorruptBatchError
from stratalog.inspect.segment_reader import SegmentReader
from stratalog.spark.data_loss import report_data_loss
from stratalog.spark.decoding import Aborted, Decoder
from stratalog.spark.direct_plan import (
    FilesUnavailableError,
    Segments,
    first_position,
    partition_directory,
    segments_of,
)
from stratalog.spark.scan_request import READ_COMMITTED

if TYPE_CHECKING:
    from stratalog.spark.scan_request import OffsetRange, ScanRequest

WINDOW = 16 * 1024 * 1024
_ATTEMPTS = 100  # while the files end before the range: a network file system may lag behind its broker
_PAUSE_SECONDS = 0.05


def scan(range: OffsetRange, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the range that the request selects.

    Raises FilesUnavailableError if the files are not or no longer accessible; the caller can continue over the wire at
    its `next_offset`. Raises DataLossError if records are lost, and CorruptBatchError for corrupt ones.
    """
    return _DirectScan(range, request).batches()


class _DirectScan:
    def __init__(self, range: OffsetRange, request: ScanRequest) -> None:
        self._range = range
        self._request = request
        self._decoder = Decoder(
            range.topic,
            range.partition,
            request.columns,
            request.predicate,
            range.start,
            range.end,
            request.isolation,
            rows_per_batch=request.rows_per_batch,
            bytes_per_batch=request.bytes_per_batch,
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        decoder = self._decoder
        attempts = 0
        try:
            while not decoder.is_done:
                before = decoder.next_offset
                segments = self._segments()
                self._check_for_loss(segments)
                is_complete = yield from self._read(segments)
                if is_complete and segments.reaches_past_end:
                    break
                attempts = 0 if decoder.next_offset > before else attempts + 1
                if attempts > _ATTEMPTS:
                    raise FilesUnavailableError(
                        f"{self._range}: the files end at offset {decoder.next_offset}, but the broker has later "
                        "offsets; check that log.dirs names the directories of the partition's leader"
                    )
                if attempts:
                    time.sleep(_PAUSE_SECONDS)
        except FilesUnavailableError as error:
            error.next_offset = decoder.next_offset
            yield from decoder.finish()
            raise
        yield from decoder.finish()

    def _segments(self) -> Segments:
        """List the segments from the current offset on, and check that they belong to the planned topic."""
        range = self._range
        request = self._request
        directory = partition_directory(
            request.data_dirs, range.topic, range.partition, range.topic_id, request.in_sync
        )
        read_committed = request.isolation == READ_COMMITTED
        return segments_of(directory, self._decoder.next_offset, range.end, read_committed=read_committed)

    def _check_for_loss(self, segments: Segments) -> None:
        start = self._decoder.next_offset
        first = min(segments.first_offset, self._range.end)
        if first <= start:
            return
        report_data_loss(
            f"{self._range.topic}-{self._range.partition}: the records from offset {start} to {first - 1} were "
            "deleted, by retention or by a user, before they were read",
            self._request.fail_on_data_loss,
        )

    def _read(self, segments: Segments) -> Generator[pa.RecordBatch, None, bool]:
        """Read the segments. Return False if one was missing."""
        for files in segments.files:
            try:
                reader = SegmentReader(files)
            except FileNotFoundError:
                return False
            try:
                yield from self._read_segment(reader, segments.aborted)
            finally:
                reader.close()
            if self._decoder.is_done:
                break
        return True

    def _read_segment(self, reader: SegmentReader, aborted: tuple[Aborted, ...]) -> Iterator[pa.RecordBatch]:
        decoder = self._decoder
        position = first_position(reader, decoder.next_offset, self._request.predicate)
        size = reader.log.size
        window = WINDOW
        continues = False  # the first bytes of a segment don't follow others
        while position < size and not decoder.is_done:
            origin = position - position % mmap.ALLOCATIONGRANULARITY
            length = min(position + window, size) - origin
            with (
                mmap.mmap(reader.log.fileno(), length, prot=mmap.PROT_READ, offset=origin) as mapped,
                memoryview(mapped) as whole,
                whole[position - origin :] as view,
            ):
                try:
                    yield from decoder.decode(view, aborted, continues=continues)
                except CorruptBatchError as error:
                    raise _located(error, reader.log.path, position) from error
            if decoder.position:
                continues, window = True, WINDOW
            elif origin + length < size:
                window *= 2  # the batch is larger than the window
            else:
                break
            position += decoder.position
        _check_end(reader, decoder, position)


def _check_end(reader: SegmentReader, decoder: Decoder, position: int) -> None:
    """Check that a sealed segment is complete, and that its offsets are below those of the next segment. A wrong base
    offset, which the checksum does not cover, would hide the records after it."""
    following = reader.files.next_base_offset
    if following is None:
        return
    if decoder.last_fed >= following or (decoder.is_done and decoder.at_offset >= following):
        raise reader.corrupt(
            f"the batch at offset {decoder.at_offset} is in a segment whose successor starts at {following}", position
        )
    if position < reader.log.size and not decoder.is_done:
        raise reader.corrupt(f"{reader.log.size - position} bytes at the end are not a complete batch", position)


def _located(error: CorruptBatchError, path: Path, origin: int) -> CorruptBatchError:
    return CorruptBatchError(error.reason, file=str(path), position=origin + (error.position or 0))
