"""A regular file that is opened for reading only, and read at positions. Only this module of the package opens files.

Opening never waits: a named pipe is an error. If the system allows it, opening does not change the file's access time.
`size` is the size when the file was opened: bytes that are added later are ignored.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from stratalog.errors import StorageError

LARGEST_SMALL_FILE = 64 * 1024 * 1024  # the limit of checkpoints and snapshots, which are read as a whole


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
        """Return `size` bytes, or fewer at the end of the file."""
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        self.bytes_read += len(data)
        return data


def read_small(path: Path) -> bytes:
    """Return the content of a small file. Raises StorageError if it is larger than LARGEST_SMALL_FILE."""
    with ReadOnlyFile(path) as file:
        if file.size > LARGEST_SMALL_FILE:
            raise StorageError(f"{path}: has {file.size} bytes; the limit of such a file is {LARGEST_SMALL_FILE}")
        return file.read(file.size, 0)


def _open(path: Path) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_NOATIME)
    except PermissionError:  # only the owner of a file may use O_NOATIME
        return os.open(path, flags)
