"""Finds the files of a range of a partition: the data directory, the segments, and the position to start at.

Reads names, indexes and headers while a broker may be running, and changes nothing. Skipped files and bytes contain no
matching row: indexes are hints, and an entry that the log does not confirm is not used. A timestamp that is too new
does not end a scan, because the timestamps in a log are not sorted.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratalog.errors import CorruptCheckpointError, StorageError
from stratalog.inspect.checkpoint_files import read_node_id, read_topic_id
from stratalog.inspect.index_file import IndexEntry, IndexFile
from stratalog.inspect.partition_files import PartitionFiles, SegmentFiles, list_partition
from stratalog.inspect.segment_reader import Located, SegmentReader
from stratalog.spark.decoding import Aborted
from stratalog.spark.predicate import FIRST, Predicate
from stratalog.storage import names
from stratalog.storage.transaction_index import ENTRY_SIZE, AbortedTransaction, parse_entries

_SWAP = names.LOG + names.SWAP
_LISTINGS = 100  # a swap of compacted files is a few renames, which take milliseconds
_PAUSE_SECONDS = 0.05


class FilesUnavailableError(StorageError):
    """A partition's files are not accessible, or belong to another topic. The offsets before `next_offset` were read;
    the caller can read the rest over the wire."""

    next_offset: int = 0


@dataclass(frozen=True)
class Segments:
    """The segments with offsets in [start, end) at one point in time, and the aborted transactions there."""

    files: tuple[SegmentFiles, ...]
    first_offset: int  # of the oldest segment in the directory
    reaches_past_end: bool  # a segment starts at or after `end`
    aborted: tuple[Aborted, ...]


def partition_directory(
    data_dirs: Sequence[str], topic: str, partition: int, topic_id: uuid.UUID | None, in_sync: Sequence[int] = ()
) -> Path:
    """Return the partition's directory. `topic_id` is the expected id, or None for any. `in_sync` are the node ids of
    the brokers whose replicas may be read, or none if any may: a replica that is not in sync may have records that
    other records have replaced.

    Raises FilesUnavailableError with a reason for each data directory: the partition is missing there, its topic id
    differs, or its replica is not in sync.
    """
    problems = []
    for data_dir in data_dirs:
        path = Path(data_dir).expanduser() / f"{topic}-{partition}"
        problem = _problem(path, topic_id) or _sync_problem(path, in_sync)
        if problem is None:
            return path
        problems.append(problem)
    raise FilesUnavailableError(
        f"the files of {topic}-{partition} can't be read directly: {'; '.join(problems) or 'log.dirs names none'}. "
        "log.dirs must name the broker's data directories, as Spark's tasks see them; without log.dirs, records are "
        "read over the wire"
    )


def _problem(path: Path, topic_id: uuid.UUID | None) -> str | None:
    try:
        if not path.is_dir():
            return f"{path} does not exist"
        if topic_id is None:
            return None
        stored_id = read_topic_id(path / names.PARTITION_METADATA)
    except FileNotFoundError:
        return f"{path} has no {names.PARTITION_METADATA}, so its topic id is unknown"
    except (OSError, StorageError, CorruptCheckpointError) as error:
        return f"{path} can't be read: {error}"
    if stored_id != topic_id:
        return f"{path} belongs to topic id {stored_id}, but the broker's topic has {topic_id}: it was created again"
    return None


def _sync_problem(path: Path, in_sync: Sequence[int]) -> str | None:
    node_id = read_node_id(path.parent) if in_sync else None
    if node_id is None or node_id in in_sync:
        return None
    return f"{path} belongs to broker {node_id}, and in sync are only {', '.join(map(str, in_sync))}"


def segments_of(directory: Path, start: int, end: int, *, read_committed: bool) -> Segments:
    """Return the segments of [start, end). The directory is listed until two listings agree, because a listing during
    renames may miss files. Raises FilesUnavailableError if the directory is missing, or changes all the time."""
    for _ in range(_LISTINGS):
        try:
            listed = list_partition(directory)
            segments = _segments(listed, start, end, read_committed)
            if not _is_swapping(listed) and list_partition(directory).bases == listed.bases:
                return segments
        except FileNotFoundError as error:
            if not directory.is_dir():
                raise FilesUnavailableError(f"{directory}: does not exist any more; was the topic deleted?") from error
        except NotADirectoryError as error:
            raise FilesUnavailableError(f"{directory}: {error}") from error
        time.sleep(_PAUSE_SECONDS)
    raise FilesUnavailableError(
        f"{directory}: files were renamed all the time, or a compaction is unfinished (*{_SWAP}); if no broker is "
        "running on this directory, start one: it completes the compaction"
    )


def _is_swapping(listed: PartitionFiles) -> bool:
    """Return whether compacted files are replacing others. During the renames, files may be missing."""
    return any(path.name.endswith(_SWAP) for path in listed.left_over)


def _segments(listed: PartitionFiles, start: int, end: int, read_committed: bool) -> Segments:
    files = tuple(
        segment
        for segment in listed.segments
        if segment.base_offset < end and (segment.next_base_offset is None or segment.next_base_offset > start)
    )
    bases = listed.bases
    return Segments(
        files,
        bases[0] if bases else end,
        bool(bases) and bases[-1] >= end,
        _aborted(listed, start, end) if read_committed else (),
    )


def _aborted(listed: PartitionFiles, start: int, end: int) -> tuple[Aborted, ...]:
    """Return the aborted transactions with records in [start, end). An entry is in the segment of its marker, which may
    be after `end`. Entries are in the order of their markers, each with the last stable offset at that time."""
    aborted = []
    for segment in listed.segments:
        if segment.next_base_offset is not None and segment.next_base_offset <= start:
            continue
        for entry in _transaction_index(segment):
            if entry.last_offset >= start and entry.first_offset < end:
                aborted.append(Aborted(entry.producer_id, entry.first_offset, entry.last_offset))
            if entry.last_stable_offset >= end:
                return tuple(aborted)
    return tuple(aborted)


def _transaction_index(segment: SegmentFiles) -> list[AbortedTransaction]:
    path = segment.path(names.TRANSACTION_INDEX)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []  # segments without an aborted transaction have no such file
    return parse_entries(content[: len(content) - len(content) % ENTRY_SIZE], path)  # the last entry may be incomplete


def first_position(reader: SegmentReader, start: int, predicate: Predicate) -> int:
    """Return the position in a segment before which no record is at or after `start` and new enough."""
    position = _floor_position(reader, start)
    if predicate.from_timestamp == FIRST:
        return position
    return max(position, _first_new_enough(reader, predicate.from_timestamp))


def _first_new_enough(reader: SegmentReader, timestamp: int) -> int:
    """Return the position before which all records are older than `timestamp`. An entry (t, o) of a time index means
    that no record up to offset o is newer than t. If t is too old, so is everything before the batch of offset o."""
    entry = _floor(reader.time_index, timestamp - 1)
    if entry is None:
        return 0
    batch = _locate(reader, entry.value)
    if batch is None or batch.header.base_offset > entry.value or batch.header.max_timestamp != entry.key:
        return 0
    return batch.position


def _floor_position(reader: SegmentReader, offset: int) -> int:
    """Return the position of a batch at or before the one that contains the offset."""
    entry = _floor(reader.offset_index, offset)
    return 0 if entry is None or reader.find_mismatch(entry) is not None else entry.value


def _locate(reader: SegmentReader, offset: int) -> Located | None:
    for located in reader.headers(_floor_position(reader, offset)):
        if located.header.last_offset >= offset:
            return located
    return None


def _floor(index: IndexFile | None, key: int) -> IndexEntry | None:
    """Return the last entry whose key is at most `key`, by binary search."""
    if index is None:
        return None
    low, high = 0, index.count
    floor: IndexEntry | None = None
    while low < high:
        middle = (low + high) // 2
        entry = index.entry(middle)
        if entry.key <= key:
            low, floor = middle + 1, entry
        else:
            high = middle
    return floor
