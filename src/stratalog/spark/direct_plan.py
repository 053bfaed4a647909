"""Which files hold a range of a partition: the data directory, the segments, and byte ranges through the indexes.

Reads names, indexes and headers, beside a live broker, and changes nothing. What is left out can have no wanted row:
indexes are hints, and an entry that the log does not confirm is not used.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratalog.errors import StorageError
from stratalog.spark.predicate import Predicate


class FilesUnavailableError(StorageError):
    """A partition's files can't be seen from here, or are not this topic's. The wire may still serve it."""


@dataclass(frozen=True)
class FileRange:
    """Bytes [start, end) of a .log. `is_active`: its last batch may be torn."""

    path: Path
    base_offset: int
    start: int
    end: int
    is_active: bool


def partition_directory(data_dirs: Sequence[str], topic: str, partition: int, topic_id: uuid.UUID | None) -> Path:
    """The directory that holds the partition. Raises FilesUnavailableError, which says where was looked and what was
    wrong there: no such directory, or one of another topic id (None: any will do)."""
    raise NotImplementedError


def file_ranges(directory: Path, start: int, end: int, predicate: Predicate) -> list[FileRange]:
    """The byte ranges that can have wanted records with offsets in [start, end), in order."""
    raise NotImplementedError
