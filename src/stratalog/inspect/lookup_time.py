"""A look-up by time, explained: the first record that is not older than a timestamp.

Which segment: the first whose largest timestamp is not before it. Inside: the floor entry of the time index, from its
offset to a position (through the offset index, as any offset), then batch by batch and, in the right batch, record by
record. Control records count, as in Kafka.
"""

from __future__ import annotations

from pathlib import Path

from stratalog.clock import Clock
from stratalog.inspect.index_file import IndexEntry
from stratalog.inspect.lookup import TIME, LookUp
from stratalog.inspect.lookup_steps import Explanation, IndexDoubted, ScanRecorder, SegmentLeft
from stratalog.inspect.rows import RecordRow, record_row
from stratalog.inspect.segment_reader import Located, SegmentReader


def explain_timestamp(directory: Path, timestamp: int, clock: Clock | None = None) -> Explanation:
    """The explanation has no batch where all records are older. Raises as explain_offset()."""
    with LookUp.open(directory, clock) as look_up:
        return _of_timestamp(look_up, timestamp)


def _of_timestamp(look_up: LookUp, timestamp: int) -> Explanation:
    for slot in range(len(look_up.partition.segments)):
        reader = look_up.reader(slot)
        if reader.log.size and _is_young_enough(look_up, reader, timestamp):
            look_up.choose(slot, "the first one whose largest timestamp is not before it")
            found = _find(look_up, reader, timestamp)
            if found is not None:
                return look_up.explanation(reader, *found)
            why = "no record in it from the log start offset on is that young"
            look_up.steps.append(SegmentLeft(reader.base_offset, why))
        look_up.release(slot)
    return look_up.explanation(None, None, None)


def _is_young_enough(look_up: LookUp, reader: SegmentReader, timestamp: int) -> bool:
    with look_up.uncounted():
        largest = _largest_timestamp(look_up, reader)
    return look_up.compare_timestamp(reader, largest, timestamp)


def _largest_timestamp(look_up: LookUp, reader: SegmentReader) -> int:
    """The last time entry, if the log agrees, and whatever comes behind it. The engine asks once and remembers."""
    index = reader.time_index
    position, largest = 0, -1
    if index is not None and index.count:
        last = index.entry(index.count - 1)
        found = look_up.locate(reader, last.value)
        if found is not None and _confirms(found, last):
            position, largest = found.position, last.key
    for located in reader.headers(position):
        largest = max(largest, located.header.max_timestamp)
    return largest


def _confirms(found: Located, entry: IndexEntry) -> bool:
    """Whether the batch with a time entry's offset has its timestamp."""
    return found.header.base_offset <= entry.value and found.header.max_timestamp == entry.key


def _find(look_up: LookUp, reader: SegmentReader, timestamp: int) -> tuple[Located, RecordRow] | None:
    position = 0
    entry = look_up.floor(TIME, reader.time_index, timestamp)
    if entry is not None:
        found = look_up.locate(reader, entry.value)
        if found is not None and _confirms(found, entry):
            position = found.position
        else:
            why = f"no batch with offset {entry.value} has timestamp {entry.key}"
            look_up.steps.append(IndexDoubted(TIME, why))
    start = look_up.log_start_offset
    if start > reader.base_offset:
        first = look_up.locate(reader, start)
        if first is None:
            return None
        position = max(position, first.position)
    return _scan(look_up, reader, position, timestamp)


def _scan(look_up: LookUp, reader: SegmentReader, position: int, timestamp: int) -> tuple[Located, RecordRow] | None:
    scan = ScanRecorder(position)
    try:
        for located in reader.headers(position):
            if located.header.max_timestamp < timestamp:
                look_up.saw(scan, located, "all older", False)
                continue
            record = _first_record(look_up, reader, located, timestamp)
            if record is not None:
                look_up.saw(scan, located, "has it", True)
                return located, record
            look_up.saw(scan, located, "before the log's start", False)
    finally:
        look_up.steps.append(scan.step())
    return None


def _first_record(look_up: LookUp, reader: SegmentReader, located: Located, timestamp: int) -> RecordRow | None:
    for record in reader.records(located):
        if record.timestamp >= timestamp and record.offset >= look_up.log_start_offset:
            return record_row(record)
    return None
