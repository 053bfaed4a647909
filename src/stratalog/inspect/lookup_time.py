"""An explained lookup by time, of the first record that is not older than a timestamp.

The segment is the first one whose largest timestamp is not before it. In the segment, the floor entry of the time index
leads to an offset, and the offset index to a position. From there the lookup goes batch by batch, and in the right
batch record by record. Control records count, as in Kafka.
"""

from __future__ import annotations

from pathlib import Path

from stratalog.clock import Clock
from stratalog.inspect.index_file import IndexEntry
from stratalog.inspect.lookup import TIME, Lookup
from stratalog.inspect.lookup_steps import Explanation, IndexDoubted, ScanRecorder, SegmentLeft
from stratalog.inspect.rows import RecordRow, record_row
from stratalog.inspect.segment_reader import Located, SegmentReader


def explain_timestamp(directory: Path, timestamp: int, clock: Clock | None = None) -> Explanation:
    """Explain the lookup of a timestamp. Without a batch, all records are older. Raises the errors of
    explain_offset()."""
    with Lookup.open(directory, clock) as lookup:
        return _of_timestamp(lookup, timestamp)


def _of_timestamp(lookup: Lookup, timestamp: int) -> Explanation:
    for slot in range(len(lookup.partition.segments)):
        reader = lookup.reader(slot)
        if reader.log.size and _is_young_enough(lookup, reader, timestamp):
            lookup.choose(slot, "the first one whose largest timestamp is not before it")
            match = _find(lookup, reader, timestamp)
            if match is not None:
                return lookup.explanation(reader, *match)
            why = "no record in it from the log start offset on is that young"
            lookup.steps.append(SegmentLeft(reader.base_offset, why))
        lookup.release(slot)
    return lookup.explanation(None, None, None)


def _is_young_enough(lookup: Lookup, reader: SegmentReader, timestamp: int) -> bool:
    with lookup.uncounted():
        largest = _largest_timestamp(lookup, reader)
    return lookup.compare_timestamp(reader, largest, timestamp)


def _largest_timestamp(lookup: Lookup, reader: SegmentReader) -> int:
    """Return the largest timestamp of the last time index entry, if the log confirms it, and of the batches after it.
    The engine does this once per segment."""
    index = reader.time_index
    position, largest = 0, -1
    if index is not None and index.count:
        last = index.entry(index.count - 1)
        located = lookup.locate(reader, last.value)
        if located is not None and _confirms(located, last):
            position, largest = located.position, last.key
    for located in reader.headers(position):
        largest = max(largest, located.header.max_timestamp)
    return largest


def _confirms(located: Located, entry: IndexEntry) -> bool:
    """Return whether the batch with a time index entry's offset has its timestamp."""
    return located.header.base_offset <= entry.value and located.header.max_timestamp == entry.key


def _find(lookup: Lookup, reader: SegmentReader, timestamp: int) -> tuple[Located, RecordRow] | None:
    position = 0
    entry = lookup.floor(TIME, reader.time_index, timestamp)
    if entry is not None:
        located = lookup.locate(reader, entry.value)
        if located is not None and _confirms(located, entry):
            position = located.position
        else:
            why = f"no batch with offset {entry.value} has timestamp {entry.key}"
            lookup.steps.append(IndexDoubted(TIME, why))
    start = lookup.log_start_offset
    if start > reader.base_offset:
        first = lookup.locate(reader, start)
        if first is None:
            return None
        position = max(position, first.position)
    return _scan(lookup, reader, position, timestamp)


def _scan(lookup: Lookup, reader: SegmentReader, position: int, timestamp: int) -> tuple[Located, RecordRow] | None:
    scan = ScanRecorder(position)
    try:
        for located in reader.headers(position):
            if located.header.max_timestamp < timestamp:
                lookup.saw(scan, located, "all older", False)
                continue
            record = _first_record(lookup, reader, located, timestamp)
            if record is not None:
                lookup.saw(scan, located, "has it", True)
                return located, record
            lookup.saw(scan, located, "before the log's start", False)
    finally:
        lookup.steps.append(scan.step())
    return None


def _first_record(lookup: Lookup, reader: SegmentReader, located: Located, timestamp: int) -> RecordRow | None:
    for record in reader.records(located):
        if record.timestamp >= timestamp and record.offset >= lookup.log_start_offset:
            return record_row(record)
    return None
