"""Every system call of the storage engine that touches a file.

They are in one module so that only this module decides when something is durable, and so that a test can use a disk
that fails or loses writes. Methods raise OSError like the system calls; the log turns it into StorageError.

Durable means that it survives a power cut. `sync` makes a file's bytes durable, `sync_directory` its name. Without a
`sync_directory`, a rename or a new file may be undone by a power cut, but never by kill -9.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.storage import names
from stratalog.storage._mapping import Mapping, preallocate, start_writeback

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Disk:
    """The real disk. Any thread may call any method."""

    waits_at_once = 16
    """How many threads to use when many files are made durable. The disk serves their requests together."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        return os.open(path, flags, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`, however many calls it takes."""
        written = os.pwrite(fd, data, position)
        total = memoryview(data).nbytes
        while written < total:
            written += os.pwrite(fd, memoryview(data)[written:], position + written)

    def read(self, fd: int, size: int, position: int) -> bytes:
        """Return up to `size` bytes from `position`, fewer only at the end of the file."""
        data = os.pread(fd, size, position)
        while len(data) < size:
            more = os.pread(fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def set_modified(self, fd: int, time_ns: int) -> None:
        """Set the file's modification time."""
        os.utime(fd, ns=(time_ns, time_ns))

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, position: int, size: int) -> None:
        """Allocate blocks for a range of the file, so that a store into its mapping can't fail."""
        os.posix_fallocate(fd, position, size)

    def preallocate(self, fd: int, position: int, size: int) -> None:
        """Allocate blocks after the end of a file without changing its size, so that appends are cheaper."""
        preallocate(fd, position, size)

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        return Mapping(fd, size, writable)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_mapping(self, mapping: Mapping, path: Path) -> None:  # noqa: ARG002 - a recording disk needs the path
        mapping.sync()

    def start_writeback(self, fd: int, position: int, size: int) -> None:
        start_writeback(fd, position, size)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def list(self, path: Path) -> dict[str, os.DirEntry[str]]:
        """Return the entries of a directory by name."""
        with os.scandir(path) as entries:
            return {entry.name: entry for entry in entries}

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        path.unlink(missing_ok=True)

    def replace(self, path: Path, content: bytes, *, durable: bool = True) -> None:
        """Replace the content of a file, or create it. Atomic: after kill -9 at any point, the file has the old or the
        new content. If `durable`, the same holds after a power cut, and the new content is durable on return."""
        temporary = path.with_name(path.name + names.TEMPORARY)
        fd = self.open(temporary, create=True)
        try:
            self.truncate(fd, 0)
            self.write(fd, content, 0)
            if durable:
                self.sync(fd)
        except OSError:
            # If it can't be removed, the next replace() overwrites it.
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        finally:
            self.close(fd)
        self.rename(temporary, path)
        if durable:
            self.sync_directory(path.parent)
