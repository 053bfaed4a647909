"""Removes a segment's files, at once or by first renaming them to .deleted."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from stratalog.storage import names
from stratalog.storage.disk import Disk

logger = logging.getLogger(__name__)

# The log goes first: a crash in between then leaves an index without a log, which the next opening removes, and never a
# log without its indexes or its snapshot.
_ALL = (*names.SEGMENT_SUFFIXES, names.SNAPSHOT)


def remove_segment_files(disk: Disk, directory: Path, base_offset: int) -> None:
    for suffix in _ALL:
        disk.remove(names.segment_file(directory, base_offset, suffix))


def mark_segment_deleted(disk: Disk, directory: Path, base_offset: int) -> list[Path]:
    """Rename the files to .deleted, so that they no longer belong to a segment. Return the new names."""
    return mark_files_deleted(disk, directory, base_offset, _ALL)


def mark_files_deleted(
    disk: Disk, directory: Path, base_offset: int, suffixes: Iterable[str], *, must: bool = False
) -> list[Path]:
    """Rename the files with these suffixes to .deleted. Return the new names. Missing files are ignored. With `must`,
    an OSError of a rename is raised, else only logged."""
    marked = []
    for suffix in suffixes:
        path = names.segment_file(directory, base_offset, suffix)
        target = path.with_name(path.name + names.DELETED)
        try:
            disk.rename(path, target)
        except FileNotFoundError:
            continue
        except OSError as error:
            if must:
                raise
            # The segment is before the log start offset, so it is not served. The next opening finds it again.
            logger.warning("%s: can't rename the file to be deleted: %s", path, error)
            continue
        marked.append(target)
    return marked
