"""Every system call of the storage engine that touches a file, in one place.

Two reasons: what is durable when is decided here and nowhere else, and a test can put a disk that fails or forgets
in the place of this one. Calls raise OSError as the system does; the log turns that into StorageError.

Durable means: survives a power cut. `sync` makes a file's bytes durable, `sync_directory` its name. A rename or a
new file that was not followed by `sync_directory` may be gone after a power cut (never after kill -9).
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
    """The real one."""

    waits_at_once = 16
    """Threads that may wait for it together, where many files are to be made durable: it serves them as one."""

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
        """Up to `size` bytes; fewer only at the end of the file."""
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
        """When the file was last changed, as it shall be said."""
        os.utime(fd, ns=(time_ns, time_ns))

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, position: int, size: int) -> None:
        """Give a stretch of the file real blocks, so that storing into its mapping can't fail."""
        os.posix_fallocate(fd, position, size)

    def preallocate(self, fd: int, position: int, size: int) -> None:
        """Give a stretch behind the end of a file blocks, and leave its size as it is: appends there are cheaper."""
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
        """What is in a directory, by name."""
        with os.scandir(path) as entries:
            return {entry.name: entry for entry in entries}

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is fine."""
        path.unlink(missing_ok=True)

    def replace(self, path: Path, content: bytes, *, durable: bool = True) -> None:
        """Put `content` in the place of a whole file: after kill -9 at any point the old or the new is there, and
        after a power cut too if `durable`."""
        temporary = path.with_name(path.name + names.TEMPORARY)
        fd = self.open(temporary, create=True)
        try:
            self.truncate(fd, 0)
            self.write(fd, content, 0)
            if durable:
                self.sync(fd)
        except OSError:
            # What can't be removed either is overwritten the next time.
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        finally:
            self.close(fd)
        self.rename(temporary, path)
        if durable:
            self.sync_directory(path.parent)
