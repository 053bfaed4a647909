"""Taking a segment's files away: at once, or marked .deleted first."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from stratalog.storage import names
from stratalog.storage.disk import Disk

logger = logging.getLogger(__name__)

# The log goes first: what is left of a removal that a crash cut short is then an index without a log, which the next
# opening clears away, and never a log that lost its indexes or its producers.
_ALL = (*names.SEGMENT_SUFFIXES, names.SNAPSHOT)


def remove_segment_files(disk: Disk, directory: Path, base_offset: int) -> None:
    for suffix in _ALL:
        disk.remove(names.segment_file(directory, base_offset, suffix))


def mark_segment_deleted(disk: Disk, directory: Path, base_offset: int) -> list[Path]:
    """Rename the files, so that they are no segment's any more; the new names."""
    return mark_files_deleted(disk, directory, base_offset, _ALL)


def mark_files_deleted(
    disk: Disk, directory: Path, base_offset: int, suffixes: Iterable[str], *, must: bool = False
) -> list[Path]:
    """`must`: raise the OSError of one that can't be renamed."""
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
            # It lies before the log start offset, so it is not served, and the next opening finds it again.
            logger.warning("%s: can't be renamed: %s", path, error)
            continue
        marked.append(target)
    return marked
