"""A regular file, opened for reading only, read at positions. The one place of this package that opens files.

Opening does not wait (a named pipe is refused, not waited for) and where the system lets us does not even change the
file's access time. `size` is that of the moment of opening: what a writer adds later is not looked at.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from stratalog.errors import StorageError

LARGEST_SMALL_FILE = 64 * 1024 * 1024  # checkpoints and snapshots are read whole, up to this


class ReadOnlyFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0
        self._fd = _open(path)
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise StorageError(f"{path}: is not a regular file")
        except BaseException:
            os.close(self._fd)
            raise
        self.size = status.st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        return self._fd

    def read(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        self.bytes_read += len(data)
        return data


def read_small(path: Path) -> bytes:
    """All of a file that has to be small."""
    with ReadOnlyFile(path) as file:
        if file.size > LARGEST_SMALL_FILE:
            raise StorageError(f"{path}: has {file.size} bytes, more than a file of its kind can have")
        return file.read(file.size, 0)


def _open(path: Path) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_NOATIME)
    except PermissionError:  # O_NOATIME is for a file's owner
        return os.open(path, flags)
