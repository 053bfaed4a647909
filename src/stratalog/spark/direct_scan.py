"""A range of a partition straight off its files: mapped, decoded window by window, beside a live broker.

`scan(range, request)` has the signature of wire_scan.scan, and gives the same rows. It never reads past range.end,
which the plan took from the broker: the high watermark or the last stable offset.

A segment that is deleted or compacted while it is read stays readable: its file is open. One that is gone before it
was opened has the directory listed again; what compaction made of it is read from where the scan stands. What
retention took is lost, and failOnDataLoss says what follows. Memory is a window and a portion of rows, whatever the
size of the topic.
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
_LOOKS = 100  # at files that end before the range does: a file system in the network may be behind its broker
_PAUSE_SECONDS = 0.05


def scan(range: OffsetRange, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    """Raises FilesUnavailableError where the files can't be used, or not any more: its `next_offset` says where the
    caller may go on over the wire. Raises DataLossError where records are lost, CorruptBatchError on damage."""
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
        looks = 0
        try:
            while not decoder.is_done:
                before = decoder.next_offset
                segments = self._segments()
                self._look_for_loss(segments)
                is_read = yield from self._read(segments)
                if is_read and segments.reaches_past_end:
                    break
                looks = 0 if decoder.next_offset > before else looks + 1
                if looks > _LOOKS:
                    raise FilesUnavailableError(
                        f"{self._range}: the files end at offset {decoder.next_offset}; the broker has more. Are these "
                        "the directories of the broker that leads the partition?"
                    )
                if looks:
                    time.sleep(_PAUSE_SECONDS)
        except FilesUnavailableError as error:
            error.next_offset = decoder.next_offset
            yield from decoder.finish()
            raise
        yield from decoder.finish()

    def _segments(self) -> Segments:
        """As they are now, from where the scan stands; of the right topic still."""
        place = self._range
        directory = partition_directory(self._request.data_dirs, place.topic, place.partition, place.topic_id)
        read_committed = self._request.isolation == READ_COMMITTED
        return segments_of(directory, self._decoder.next_offset, place.end, read_committed=read_committed)

    def _look_for_loss(self, segments: Segments) -> None:
        start = self._decoder.next_offset
        first = min(segments.first_offset, self._range.end)
        if first <= start:
            return
        report_data_loss(
            f"{self._range.topic}-{self._range.partition}: the records from offset {start} to {first - 1} are gone, "
            "deleted by retention or by hand before they were read",
            self._request.fail_on_data_loss,
        )

    def _read(self, segments: Segments) -> Generator[pa.RecordBatch, None, bool]:
        """True: all of them; False: one was gone."""
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
        continues = False  # the first bytes of a segment begin anew
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
                window *= 2  # for a batch that is larger
            else:
                break
            position += decoder.position
        _check_end(reader, decoder, position)


def _check_end(reader: SegmentReader, decoder: Decoder, position: int) -> None:
    """A sealed segment is whole, and its offsets lie below the next one's: a base offset that does not (it is outside
    the checksum) would hide what follows."""
    following = reader.files.next_base_offset
    if following is None:
        return
    if decoder.last_fed >= following or (decoder.is_done and decoder.at_offset >= following):
        raise reader.corrupt(
            f"the batch at offset {decoder.at_offset} lies in a segment whose successor starts at {following}", position
        )
    if position < reader.log.size and not decoder.is_done:
        raise reader.corrupt(f"{reader.log.size - position} bytes at the end are not a whole batch", position)


def _located(error: CorruptBatchError, path: Path, origin: int) -> CorruptBatchError:
    return CorruptBatchError(error.reason, file=str(path), position=origin + (error.position or 0))
