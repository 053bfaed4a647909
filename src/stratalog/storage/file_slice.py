"""A range of a log file: the only thing that crosses from storage to the network.

A LogFile closes its descriptor with the last reference to it. A FileSlice holds its LogFile, so a segment that is
deleted, or closed to save descriptors, stays readable for the sends that are in progress.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stratalog.errors import StorageError
from stratalog.records.batch import Batch, batches
from stratalog.storage import limits
from stratalog.storage.disk import Disk

_PIECE = 256 * 1024


class LogFile:
    """An open .log file. Closed with its last reference, never by hand."""

    __slots__ = ("__weakref__", "_disk", "fd", "path")

    def __init__(self, disk: Disk, path: Path, *, create: bool = False, writable: bool = False) -> None:
        self.fd = -1
        self._disk = disk
        self.path = path
        self.fd = disk.open(path, create=create, writable=writable)

    def fileno(self) -> int:
        return self.fd

    def read(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        return self._disk.read(self.fd, size, position)

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:  # an interrupt may have come before it was set
            self._disk.close(self.fd)
            self.fd = -1


class FileSlice:
    """`length` bytes of a file from `position`: give its fileno() to sendfile, or read() it.

    The bytes are stable unless the log is truncated before them: bytes in a log never change.
    """

    __slots__ = ("file", "length", "position")

    def __init__(self, file: LogFile, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __repr__(self) -> str:
        return f"FileSlice({self.file.path.name}, position={self.position}, length={self.length})"

    def __len__(self) -> int:
        return self.length

    def fileno(self) -> int:
        return self.file.fd

    def read(self) -> bytes:
        try:
            data = self.file.read(self.length, self.position)
        except OSError as error:
            raise StorageError(f"{self.file.path}: can't be read: {error}") from error
        if len(data) != self.length:
            raise StorageError(
                f"{self.file.path}: {self.length} bytes were expected at position {self.position}, "
                f"{len(data)} are there: the log was truncated under this slice"
            )
        return data

    def read_ahead(self) -> None:
        """Have the bytes in the page cache when this returns, and the kernel begin to read as many that follow."""
        fd, end = self.file.fd, self.position + self.length
        os.posix_fadvise(fd, end, self.length, os.POSIX_FADV_WILLNEED)
        for position in range(self.position, end, _PIECE):
            self.file.read(min(_PIECE, end - position), position)

    def sendable(self) -> FileSlice | bytes:
        """Return what to keep until it is sent: this slice, or its bytes if descriptors are scarce. A response may have
        slices of a thousand segments, each with a descriptor. Raises StorageError."""
        return self if self.file.fd < limits.first_scarce_descriptor() else self.read()

    def batches(self) -> Iterator[Batch]:
        """Return the complete batches of the slice, without one that max_bytes has cut off."""
        return batches(self.read())
