"""The contents of any file of a log, row by row: batches and records, index entries, producers, checkpoints.

A dump ends at the first position that can't be parsed, with a ProblemRow for it. Only a file of an unknown kind, or one
that can't be opened, raises an error. Rows are created during the iteration.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from stratalog.errors import StorageError, StratalogError
from stratalog.inspect import checkpoint_files
from stratalog.inspect.batch_walk import BatchOnDisk, BatchWalk, Damage
from stratalog.inspect.index_file import IndexFile
from stratalog.inspect.partition_files import has_writer
from stratalog.inspect.read_only_file import ReadOnlyFile, read_small
from stratalog.inspect.rows import (
    AbortedRow,
    EpochRow,
    OffsetEntryRow,
    PartitionOffsetRow,
    ProblemRow,
    ProducerRow,
    Row,
    TimeEntryRow,
    TopicIdRow,
    batch_row,
    record_row,
)
from stratalog.records.reader import read_control
from stratalog.storage import names, transaction_index
from stratalog.storage.producer_state import ProducerEntry
from stratalog.storage.scan import reason

_SUFFIXES_OF_LEFTOVERS = (names.DELETED, names.CLEANED, names.SWAP, names.TEMPORARY)
_OFFSET_CHECKPOINT_SUFFIX = "-offset-checkpoint"


class FileKind(Enum):
    LOG = "log"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TRANSACTION_INDEX = "transaction index"
    SNAPSHOT = "producer snapshot"
    LEADER_EPOCHS = "leader epochs"
    OFFSET_CHECKPOINT = "offset checkpoint"
    PARTITION_METADATA = "partition metadata"


@dataclass(frozen=True)
class Options:
    """The options for a .log: whether to include its records, and the limit of bytes to dump."""

    records: bool = False
    max_bytes: int | None = None


@dataclass(frozen=True)
class Dump:
    path: Path
    kind: FileKind
    size: int
    rows: Iterator[Row]


def identify(path: Path) -> FileKind:
    """Return the kind of a file by its name, also for a file to be deleted. Raises StorageError for other names."""
    name = path.name
    while name.endswith(_SUFFIXES_OF_LEFTOVERS):
        name = name.rpartition(".")[0]
    if name == names.LEADER_EPOCH_CHECKPOINT:
        return FileKind.LEADER_EPOCHS
    if name == names.PARTITION_METADATA:
        return FileKind.PARTITION_METADATA
    if name.endswith(_OFFSET_CHECKPOINT_SUFFIX):
        return FileKind.OFFSET_CHECKPOINT
    by_suffix = {
        names.LOG: FileKind.LOG,
        names.OFFSET_INDEX: FileKind.OFFSET_INDEX,
        names.TIME_INDEX: FileKind.TIME_INDEX,
        names.TRANSACTION_INDEX: FileKind.TRANSACTION_INDEX,
        names.SNAPSHOT: FileKind.SNAPSHOT,
    }
    kind = by_suffix.get(Path(name).suffix)
    if kind is None:
        raise StorageError(
            f"{path}: is not a file of a log; known are *.log, *.index, *.timeindex, *.txnindex, *.snapshot, "
            "leader-epoch-checkpoint, *-offset-checkpoint and partition.metadata"
        )
    return kind


def dump(path: Path, options: Options | None = None) -> Dump:
    """Return a file's rows. Raises StorageError for an unknown kind of file, and OSError if it can't be opened."""
    options = options or Options()
    kind = identify(path)
    with ReadOnlyFile(path) as file:
        size = file.size
    makers: dict[FileKind, Callable[[], Iterator[Row]]] = {
        FileKind.LOG: lambda: _log(path, options),
        FileKind.OFFSET_INDEX: lambda: _index(path),
        FileKind.TIME_INDEX: lambda: _index(path),
        FileKind.TRANSACTION_INDEX: lambda: _aborted(path),
        FileKind.SNAPSHOT: lambda: _producers(path),
        FileKind.LEADER_EPOCHS: lambda: _epochs(path),
        FileKind.OFFSET_CHECKPOINT: lambda: _offsets(path),
        FileKind.PARTITION_METADATA: lambda: _topic_id(path),
    }
    return Dump(path, kind, size, _guarded(makers[kind], size))


def _guarded(make: Callable[[], Iterator[Row]], size: int) -> Iterator[Row]:
    """Yield the rows, and a ProblemRow for a file that can't be parsed at all."""
    try:
        yield from make()
    except StorageError as error:
        yield ProblemRow(0, str(error), size)


def _log(path: Path, options: Options) -> Iterator[Row]:
    with ReadOnlyFile(path) as file:
        walk = BatchWalk(file)
        for batch in walk:
            if options.max_bytes is not None and batch.end > options.max_bytes and batch.position > 0:
                return
            yield from _batch(batch, options)
        if walk.damage is not None:
            yield _log_problem(path, walk.damage)


def _batch(batch: BatchOnDisk, options: Options) -> Iterator[Row]:
    row = batch_row(batch)
    yield row
    if not row.crc_valid:
        yield ProblemRow(batch.position, f"checksum of the batch is not the one in its header, {row.crc:#010x}", 0)
    if options.records:
        try:
            yield from _records(batch)
        except StratalogError as error:
            yield ProblemRow(batch.position, f"records can't be decoded: {reason(error)}", 0)


def _records(batch: BatchOnDisk) -> Iterator[Row]:
    if not batch.header.is_control:
        yield from map(record_row, batch.records())
        return
    if not batch.header.record_count:
        return  # a marker after compaction
    control, coordinator_epoch = read_control(batch.batch)
    for record in batch.records():
        yield record_row(record, control.name, coordinator_epoch if coordinator_epoch >= 0 else None)


def _log_problem(path: Path, damage: Damage) -> ProblemRow:
    """Return the row for damage. It is harmless if the torn batch may be one that a process is appending."""
    if damage.is_torn and _is_active(path) and has_writer(path.parent):
        why = f"{damage.reason}: a process is appending"
        return ProblemRow(damage.position, why, damage.bytes_left, is_harmless=True)
    return ProblemRow(damage.position, damage.reason, damage.bytes_left)


def _is_active(path: Path) -> bool:
    logs = (entry.name for entry in path.parent.iterdir() if entry.suffix == names.LOG)
    return path.name == max((name for name in logs if names.parse_segment_file(name)), default="")


def _index(path: Path) -> Iterator[Row]:
    index = IndexFile(path)
    try:
        previous: int | None = None
        for entry in index:
            if previous is not None and entry.key <= previous:
                what = "timestamp" if index.is_time else "offset"
                yield ProblemRow(
                    entry.slot * index.entry_size, f"{what} {entry.key} follows {previous}; it must rise", 0
                )
            previous = entry.key
            yield TimeEntryRow(*entry) if index.is_time else OffsetEntryRow(*entry)
        used = index.count * index.entry_size
        if index.left_over:
            why = f"{index.left_over} bytes are not a complete entry of {index.entry_size} bytes"
            yield ProblemRow(index.size - index.left_over, why, index.left_over)
        elif index.is_preallocated:
            zeros = index.size - used
            yield ProblemRow(used, f"{zeros} zeros, preallocated", zeros, is_harmless=True)
    finally:
        index.close()


def _aborted(path: Path) -> Iterator[Row]:
    content = read_small(path)
    whole = len(content) - len(content) % transaction_index.ENTRY_SIZE
    for start in range(0, whole, transaction_index.ENTRY_SIZE):
        entry = content[start : start + transaction_index.ENTRY_SIZE]
        try:
            (aborted,) = transaction_index.parse_entries(entry, path)
        except StorageError as error:
            yield ProblemRow(start, str(error), len(content) - start)
            return
        yield AbortedRow(*aborted)
    if whole < len(content):
        left = len(content) - whole
        yield ProblemRow(whole, f"{left} bytes are not a complete entry of {transaction_index.ENTRY_SIZE} bytes", left)


def _producers(path: Path) -> Iterator[Row]:
    return map(_producer_row, checkpoint_files.read_producers(path))


def _producer_row(producer: ProducerEntry) -> ProducerRow:
    last = producer.batches[-1] if producer.batches else None
    return ProducerRow(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=-1 if last is None else last.last_sequence,
        last_offset=-1 if last is None else last.last_offset,
        offset_delta=0 if last is None else last.offset_delta,
        timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        transaction_first_offset=(
            -1 if producer.transaction_first_offset is None else producer.transaction_first_offset
        ),
    )


def _epochs(path: Path) -> Iterator[Row]:
    return (EpochRow(epoch, start) for epoch, start in checkpoint_files.read_epochs(path))


def _offsets(path: Path) -> Iterator[Row]:
    offsets = checkpoint_files.read_offsets(path)
    return (PartitionOffsetRow(partition.topic, partition.partition, at) for partition, at in offsets.items())


def _topic_id(path: Path) -> Iterator[Row]:
    topic_id = checkpoint_files.read_topic_id(path)
    encoded = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return iter([TopicIdRow(0, encoded, str(topic_id))])
