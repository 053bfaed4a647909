"""New files in the place of old ones: a crash at any step leaves the old or the new, never a mix. Kafka's steps:

1. the new segment is whole and durable, under names that end in .cleaned
2. they are renamed to .swap, the log last: from here on, durably, the new one counts
3. the files of the segments that it replaces are renamed to .deleted
4. the .swap files get their own names

A crash before the end of 2 leaves .cleaned files, or .swap files without a log: they are removed. A crash behind it is
made good when the log is next opened: 3 and 4 are done again.
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

# The log is the last to become .swap, and the last to lose that suffix: while it has it, the work is not done.
_LOG_LAST = (names.OFFSET_INDEX, names.TIME_INDEX, names.TRANSACTION_INDEX, names.LOG)


def begin(disk: Disk, directory: Path, base_offset: int) -> None:
    """Step 2. Raises OSError; what it left half done counts for nothing, and `undo` removes it."""
    _rename(disk, directory, base_offset, names.CLEANED, names.SWAP)
    disk.sync_directory(directory)


def undo(disk: Disk, directory: Path, base_offset: int) -> None:
    """After a begin() that failed. The log's name first: without it the others mean nothing."""
    for suffix in reversed(_LOG_LAST):
        for state in (names.SWAP, names.CLEANED):
            disk.remove(_path(directory, base_offset, suffix, state))
    disk.sync_directory(directory)


def finish(disk: Disk, directory: Path, base_offset: int, replaced: Iterable[int]) -> list[Path]:
    """Steps 3 and 4; the files that are to be removed later. Not durable yet: what a power cut undoes is done again."""
    deleted = []
    for replaced_base in replaced:
        # A snapshot at the new segment's base tells of what lies before it: that has not changed.
        suffixes = names.SEGMENT_SUFFIXES if replaced_base == base_offset else (*names.SEGMENT_SUFFIXES, names.SNAPSHOT)
        deleted += mark_files_deleted(disk, directory, replaced_base, suffixes, must=True)
    _rename(disk, directory, base_offset, names.SWAP, "")
    return deleted


def finish_all(disk: Disk, directory: Path) -> list[str]:
    """What a crash interrupted, by this program or by Apache Kafka; what was done, in words."""
    found = sorted(directory.iterdir())
    cleaned = [base for base, _ in _in_state(found, names.CLEANED)]
    swaps = _in_state(found, names.SWAP)
    whole = sorted(base for base, suffix in swaps if suffix == names.LOG and not _is_undone(base, cleaned))
    notes = []
    for base, suffix in swaps:
        if base not in whole:
            disk.remove(_path(directory, base, suffix, names.SWAP))
    for base in whole:
        stop = _end_offset(disk, directory, base)
        present = {parsed[0] for entry in found if (parsed := names.parse_segment_file(entry.name)) is not None}
        replaced = sorted(one for one in present if base <= one < max(stop, base + 1))
        finish(disk, directory, base, replaced)
        notes.append(
            f"{names.segment_file(directory, base, names.LOG)}: a compaction was interrupted; its new segment is in "
            f"place, for {len(replaced)} old ones"
        )
    if swaps:
        disk.sync_directory(directory)
    return notes


def _is_undone(base: int, cleaned: list[int]) -> bool:
    """Kafka may split a segment into several; a .cleaned among them says that not all are there."""
    return bool(cleaned) and base >= min(cleaned)


def _end_offset(disk: Disk, directory: Path, base: int) -> int:
    """Behind the last record of a .swap log; it was durable before it got that name, so it is whole."""
    file = LogFile(disk, _path(directory, base, names.LOG, names.SWAP))
    end = base
    try:
        for chunk in scan(file, 0, disk.size(file.fd)):
            end = chunk.headers[-1].next_offset
    except CorruptBatchError as error:
        logger.error("a segment that compaction made is damaged: %s", error)
    return end


def _in_state(found: list[Path], state: str) -> list[tuple[int, str]]:
    stems = [entry.name.removesuffix(state) for entry in found if entry.name.endswith(state)]
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
