"""Replaces segments by a new one. A crash at any step leaves the old or the new segments, never a mix.

These are Kafka's steps:
1. The new segment is complete and durable. The names of its files end in .cleaned.
2. Its files are renamed to .swap, the log last. From then on, durably, the new segment counts.
3. The files of the old segments are renamed to .deleted.
4. The .swap files get their final names.

A crash before the end of step 2 leaves .cleaned files, or .swap files without a log, which the next opening removes.
After a crash later than that, the next opening repeats steps 3 and 4.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from stratalog.errors import CorruptBatchError
from stratalog.storage import names
from stratalog.storage.disk import Disk
from stratalog.storage.file_slice import LogFile
from stratalog.storage.scan import scan
from stratalog.storage.segment_files import mark_files_deleted

logger = logging.getLogger(__name__)

# The log is the last file to become .swap, and the last to lose that suffix. While it has it, the swap is not finished.
_LOG_LAST = (names.OFFSET_INDEX, names.TIME_INDEX, names.TRANSACTION_INDEX, names.LOG)


def begin(disk: Disk, directory: Path, base_offset: int) -> None:
    """Do step 2, durably. Raises OSError. Then the new segment does not count, and `undo` removes it."""
    _rename(disk, directory, base_offset, names.CLEANED, names.SWAP)
    disk.sync_directory(directory)


def undo(disk: Disk, directory: Path, base_offset: int) -> None:
    """Remove the new files after begin() failed. The log is removed first, because the other files don't count without
    it."""
    for suffix in reversed(_LOG_LAST):
        for state in (names.SWAP, names.CLEANED):
            disk.remove(_path(directory, base_offset, suffix, state))
    disk.sync_directory(directory)


def finish(disk: Disk, directory: Path, base_offset: int, replaced: Iterable[int]) -> list[Path]:
    """Do steps 3 and 4, and return the files to remove later. Not durable: after a power cut, the next opening repeats
    the steps. Raises OSError."""
    deleted = []
    for replaced_base in replaced:
        # The snapshot at the new segment's base offset is about the batches before it, which have not changed.
        suffixes = names.SEGMENT_SUFFIXES if replaced_base == base_offset else (*names.SEGMENT_SUFFIXES, names.SNAPSHOT)
        deleted += mark_files_deleted(disk, directory, replaced_base, suffixes, must=True)
    _rename(disk, directory, base_offset, names.SWAP, "")
    return deleted


def finish_all(disk: Disk, directory: Path) -> list[str]:
    """Finish or undo the swaps that a crash of this program or of Apache Kafka interrupted. Return a note on each
    segment that was swapped in."""
    entries = sorted(directory.iterdir())
    cleaned = [base for base, _ in _in_state(entries, names.CLEANED)]
    swaps = _in_state(entries, names.SWAP)
    complete = sorted(base for base, suffix in swaps if suffix == names.LOG and not _is_undone(base, cleaned))
    notes = []
    for base, suffix in swaps:
        if base not in complete:
            disk.remove(_path(directory, base, suffix, names.SWAP))
    for base in complete:
        stop = _end_offset(disk, directory, base)
        present = {parsed[0] for entry in entries if (parsed := names.parse_segment_file(entry.name)) is not None}
        replaced = sorted(present_base for present_base in present if base <= present_base < max(stop, base + 1))
        finish(disk, directory, base, replaced)
        notes.append(
            f"{names.segment_file(directory, base, names.LOG)}: finished an interrupted compaction; its new segment "
            f"replaces {len(replaced)} old ones"
        )
    if swaps:
        disk.sync_directory(directory)
    return notes


def _is_undone(base: int, cleaned: list[int]) -> bool:
    """Return True if the swap has to be undone. Kafka may split a segment into several, and a .cleaned file among them
    means that step 2 was not finished."""
    return bool(cleaned) and base >= min(cleaned)


def _end_offset(disk: Disk, directory: Path, base: int) -> int:
    """Return the offset after the last record of a .swap log. The log is complete, because it was durable before it got
    that name."""
    file = LogFile(disk, _path(directory, base, names.LOG, names.SWAP))
    end = base
    try:
        for chunk in scan(file, 0, disk.size(file.fd)):
            end = chunk.headers[-1].next_offset
    except CorruptBatchError as error:
        logger.error("a compacted segment is corrupt: %s", error)
    return end


def _in_state(entries: list[Path], state: str) -> list[tuple[int, str]]:
    stems = [entry.name.removesuffix(state) for entry in entries if entry.name.endswith(state)]
    return [parsed for stem in stems if (parsed := names.parse_segment_file(stem)) is not None]


def _rename(disk: Disk, directory: Path, base_offset: int, before: str, after: str) -> None:
    for suffix in _LOG_LAST:
        source = _path(directory, base_offset, suffix, before)
        try:
            disk.rename(source, _path(directory, base_offset, suffix, after))
        except FileNotFoundError:
            if suffix == names.LOG:
                raise


def _path(directory: Path, base_offset: int, suffix: str, state: str) -> Path:
    path = names.segment_file(directory, base_offset, suffix)
    return path.with_name(path.name + state)
