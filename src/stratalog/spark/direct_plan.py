"""Which files hold a range of a partition: the data directory, the segments, and where in them to begin.

Reads names, indexes and headers, beside a live broker, and changes nothing. What is left out can have no wanted row:
indexes are hints, and an entry that the log does not confirm is not used. Nothing is concluded from a time that is too
young: a log need not be in order of time, so what lies behind may still be wanted.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratalog.errors import CorruptCheckpointError, StorageError
from stratalog.inspect.checkpoint_files import read_topic_id
from stratalog.inspect.index_file import IndexEntry, IndexFile
from stratalog.inspect.partition_files import PartitionFiles, SegmentFiles, list_partition
from stratalog.inspect.segment_reader import Located, SegmentReader
from stratalog.spark.decoding import Aborted
from stratalog.spark.predicate import FIRST, Predicate
from stratalog.storage import names
from stratalog.storage.transaction_index import ENTRY_SIZE, AbortedTransaction, parse_entries

_SWAP = names.LOG + names.SWAP
_LISTINGS = 100  # a swap of compacted files takes some renames: no more than a few milliseconds
_PAUSE_SECONDS = 0.05


class FilesUnavailableError(StorageError):
    """A partition's files can't be seen from here, or are not this topic's. The wire may still serve it, from
    `next_offset` on: what lies before it was read."""

    next_offset: int = 0


@dataclass(frozen=True)
class Segments:
    """The segments that [start, end) lies in, as the directory had them at one moment, and what was aborted there."""

    files: tuple[SegmentFiles, ...]
    first_offset: int  # of the oldest segment in the directory
    reaches_past_end: bool  # there is a segment that begins at `end` or behind it
    aborted: tuple[Aborted, ...]


def partition_directory(data_dirs: Sequence[str], topic: str, partition: int, topic_id: uuid.UUID | None) -> Path:
    """The directory that holds the partition. Raises FilesUnavailableError, which says where was looked and what was
    wrong there: no such directory, or one of another topic id (None: any will do)."""
    found = []
    for data_dir in data_dirs:
        path = Path(data_dir).expanduser() / f"{topic}-{partition}"
        why = _why_not(path, topic_id)
        if why is None:
            return path
        found.append(why)
    raise FilesUnavailableError(
        f"the files of {topic}-{partition} can't be read directly: {'; '.join(found) or 'no directory is given'}. "
        "log.dirs must name the broker's data directories, as they are seen where Spark's tasks run; without it the "
        "records come over the wire"
    )


def _why_not(path: Path, topic_id: uuid.UUID | None) -> str | None:
    try:
        if not path.is_dir():
            return f"{path} does not exist"
        if topic_id is None:
            return None
        there = read_topic_id(path / names.PARTITION_METADATA)
    except FileNotFoundError:
        return f"{path} has no {names.PARTITION_METADATA}, so it can't be told whether it is this topic's"
    except (OSError, StorageError, CorruptCheckpointError) as error:
        return f"{path} can't be read: {error}"
    if there != topic_id:
        return f"{path} belongs to a topic with id {there}, and the broker's has {topic_id}: it was made anew"
    return None


def segments_of(directory: Path, start: int, end: int, *, read_committed: bool) -> Segments:
    """The segments of [start, end), listed until two listings agree: one that is read while files are renamed may miss
    some. Raises FilesUnavailableError where the directory is gone, or never comes to rest."""
    for _ in range(_LISTINGS):
        try:
            listed = list_partition(directory)
            segments = _segments(listed, start, end, read_committed)
            if _is_at_rest(listed) and list_partition(directory).bases == listed.bases:
                return segments
        except FileNotFoundError as error:
            if not directory.is_dir():
                raise FilesUnavailableError(f"{directory}: is gone; was the topic deleted? {error}") from error
        except NotADirectoryError as error:
            raise FilesUnavailableError(f"{directory}: {error}") from error
        time.sleep(_PAUSE_SECONDS)
    raise FilesUnavailableError(
        f"{directory}: files were renamed all the time, or a compaction was left unfinished (*{_SWAP}); if no broker "
        "is running there, start it once: it ends what was begun"
    )


def _is_at_rest(listed: PartitionFiles) -> bool:
    """Not while compacted files take the place of others: neither may have its name for a moment."""
    return not any(path.name.endswith(_SWAP) for path in listed.left_over)


def _segments(listed: PartitionFiles, start: int, end: int, read_committed: bool) -> Segments:
    wanted = tuple(
        segment
        for segment in listed.segments
        if segment.base_offset < end and (segment.next_base_offset is None or segment.next_base_offset > start)
    )
    bases = listed.bases
    return Segments(
        wanted,
        bases[0] if bases else end,
        bool(bases) and bases[-1] >= end,
        _aborted(listed, start, end) if read_committed else (),
    )


def _aborted(listed: PartitionFiles, start: int, end: int) -> tuple[Aborted, ...]:
    """The aborted transactions that have records in [start, end). An entry is in the segment of its marker, which may
    lie behind `end`; entries are in the order of their markers, each with what was stable by then."""
    found = []
    for segment in listed.segments:
        if segment.next_base_offset is not None and segment.next_base_offset <= start:
            continue
        for entry in _transaction_index(segment):
            if entry.last_offset >= start and entry.first_offset < end:
                found.append(Aborted(entry.producer_id, entry.first_offset, entry.last_offset))
            if entry.last_stable_offset >= end:
                return tuple(found)
    return tuple(found)


def _transaction_index(segment: SegmentFiles) -> list[AbortedTransaction]:
    path = segment.path(names.TRANSACTION_INDEX)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []  # as for every segment without an aborted transaction
    return parse_entries(content[: len(content) - len(content) % ENTRY_SIZE], path)  # the last one may be half written


def first_position(reader: SegmentReader, start: int, predicate: Predicate) -> int:
    """Where in a segment the first record can be that is at `start` or behind it, and not too old."""
    position = _floor_position(reader, start)
    if predicate.from_timestamp == FIRST:
        return position
    return max(position, _first_young_enough(reader, predicate.from_timestamp))


def _first_young_enough(reader: SegmentReader, timestamp: int) -> int:
    """An entry (t, o) of a time index says: no record up to offset o is younger than t. So what lies before the batch
    with offset o is too old if t is."""
    entry = _floor(reader.time_index, timestamp - 1)
    if entry is None:
        return 0
    found = _locate(reader, entry.value)
    if found is None or found.header.base_offset > entry.value or found.header.max_timestamp != entry.key:
        return 0
    return found.position


def _floor_position(reader: SegmentReader, offset: int) -> int:
    """The position of a batch at or before the one with this offset."""
    entry = _floor(reader.offset_index, offset)
    return 0 if entry is None or reader.find_mismatch(entry) is not None else entry.value


def _locate(reader: SegmentReader, offset: int) -> Located | None:
    for located in reader.headers(_floor_position(reader, offset)):
        if located.header.last_offset >= offset:
            return located
    return None


def _floor(index: IndexFile | None, wanted: int) -> IndexEntry | None:
    """The last entry whose key is not past `wanted`, by binary search."""
    if index is None:
        return None
    low, high = 0, index.count
    floor: IndexEntry | None = None
    while low < high:
        middle = (low + high) // 2
        entry = index.entry(middle)
        if entry.key <= wanted:
            low, floor = middle + 1, entry
        else:
            high = middle
    return floor
