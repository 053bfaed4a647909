"""The contents of a directory by name: the segments of a partition, or the partitions of a data directory.

The kernel's table of locks shows whether a process is writing there. Opening the lock file is not an option: closing it
would drop a lock of this process.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stratalog.errors import CorruptCheckpointError, StorageError
from stratalog.inspect.checkpoint_files import read_offsets
from stratalog.storage import names

KERNEL_LOCKS = Path("/proc/locks")
_LEFT_OVER = (names.DELETED, names.CLEANED, names.SWAP, names.TEMPORARY)


@dataclass(frozen=True)
class SegmentFiles:
    """One segment. The last segment is the active one and has no `next_base_offset`."""

    directory: Path
    base_offset: int
    next_base_offset: int | None

    @property
    def is_active(self) -> bool:
        return self.next_base_offset is None

    def path(self, suffix: str) -> Path:
        return names.segment_file(self.directory, self.base_offset, suffix)


@dataclass(frozen=True)
class PartitionFiles:
    path: Path
    segments: list[SegmentFiles]
    snapshots: list[Path]
    orphans: list[Path]  # index files without a log
    left_over: list[Path]  # .deleted, .cleaned, .swap, .tmp

    @property
    def bases(self) -> list[int]:
        return [segment.base_offset for segment in self.segments]

    def log_start_offset(self) -> int:
        """Return the log start offset: the checkpoint's, or the first base offset if that is higher. Raises
        CorruptCheckpointError."""
        first = self.segments[0].base_offset
        return max(first, self._checkpointed(names.LOG_START_OFFSET_CHECKPOINT, first))

    def recovery_point(self) -> int:
        """Return the offset before which everything is durable; 0 if the checkpoint doesn't have it or can't be
        read."""
        try:
            return self._checkpointed(names.RECOVERY_POINT_CHECKPOINT, 0)
        except (CorruptCheckpointError, StorageError):
            return 0

    def _checkpointed(self, name: str, default: int) -> int:
        partition = names.parse_partition_directory(self.path.resolve().name)
        checkpoint = self.path.resolve().parent / name
        if partition is None or not checkpoint.is_file():
            return default
        return read_offsets(checkpoint).get(partition, default)

    def log_start_offset_or_first(self) -> int:
        """Return the log start offset, or the first base offset if the checkpoint can't be read."""
        try:
            return self.log_start_offset()
        except (CorruptCheckpointError, StorageError):
            return self.segments[0].base_offset


def list_partition(path: Path) -> PartitionFiles:
    bases: list[int] = []
    indexes: list[tuple[int, Path]] = []
    snapshots: list[Path] = []
    left_over: list[Path] = []
    for entry in sorted(path.iterdir()):
        parsed = names.parse_segment_file(entry.name)
        if parsed is not None and parsed[1] == names.LOG:
            bases.append(parsed[0])
        elif parsed is not None and parsed[1] == names.SNAPSHOT:
            snapshots.append(entry)
        elif parsed is not None and parsed[1] in names.SEGMENT_SUFFIXES:
            indexes.append((parsed[0], entry))
        elif entry.suffix in _LEFT_OVER:
            left_over.append(entry)
    following = [*bases[1:], None]
    segments = [SegmentFiles(path, base, following[slot]) for slot, base in enumerate(bases)]
    known = set(bases)
    orphans = [index for base, index in indexes if base not in known]
    return PartitionFiles(path, segments, snapshots, orphans, left_over)


def holds_segments(path: Path) -> bool:
    return any((names.parse_segment_file(entry.name) or (0, ""))[1] == names.LOG for entry in path.iterdir())


def find_partitions(path: Path) -> list[Path]:
    """Return the directory itself if it is a partition's, otherwise the partition directories in it."""
    if holds_segments(path) or names.parse_partition_directory(path.name) is not None:
        return [path]
    return sorted(entry for entry in path.iterdir() if _is_partition(entry))


def _is_partition(path: Path) -> bool:
    """Return whether a directory is a partition's. A name like something-1 is not enough: it must have segments or a
    topic id."""
    if not path.is_dir() or names.parse_partition_directory(path.name) is None:
        return False
    return holds_segments(path) or (path / names.PARTITION_METADATA).exists()


def has_writer(partition: Path) -> bool:
    """Return whether a process holds the lock of the partition's data directory."""
    try:
        inode = (partition.resolve().parent / names.LOCK).stat().st_ino
        table = KERNEL_LOCKS.read_text()
    except OSError:
        return False
    # "1: POSIX ADVISORY WRITE 4711 fe:00:1234 0 EOF". The device is ignored, because stat() reports another number on
    # some file systems. Mistaking another file's lock for this one only makes findings milder.
    files = (line.split()[-3] for line in table.splitlines() if len(line.split()) >= 8)
    return any(file.rpartition(":")[2] == str(inode) for file in files)
