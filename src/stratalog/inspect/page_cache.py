"""The parts of a file that are in RAM, by mincore(2) over a mapping. The mapping is never read, so nothing changes.

A file is mapped window by window, which limits the memory. Since Linux 5.2, the kernel reports the real state only to
processes that may write the file; to others it reports every page as resident.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stratalog.inspect.read_only_file import ReadOnlyFile
from stratalog.storage import names

PAGE = mmap.PAGESIZE
WINDOW_PAGES = 256 * 1024  # 1 GiB of the file, 256 KiB of result
_IS_RESIDENT = bytes(byte & 1 for byte in range(256))  # the other bits of a result are reserved
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


@dataclass(frozen=True, slots=True)
class Residency:
    """The result for a file. `parts` has the share of each of its equal parts that is in RAM, 0.0 to 1.0. An empty file
    has no parts."""

    path: Path
    size: int
    pages: int
    resident_pages: int
    parts: tuple[float, ...]

    @property
    def resident_bytes(self) -> int:
        """The size of the resident pages, at most the size of the file."""
        return min(self.resident_pages * PAGE, self.size)

    @property
    def share(self) -> float:
        return self.resident_pages / self.pages if self.pages else 0.0


def residency(path: Path, parts: int = 60) -> Residency:
    """Return the residency of a regular file. Raises OSError, and StorageError for other kinds of files."""
    with ReadOnlyFile(path) as file:
        pages = -(-file.size // PAGE)
        counts = [0] * min(parts, pages)
        first = 0
        while first < pages:
            window = min(WINDOW_PAGES, pages - first)
            _count(_resident(file.fileno(), first, window), first, pages, counts)
            first += window
    shares = tuple(
        count / (_start(part + 1, pages, counts) - _start(part, pages, counts)) for part, count in enumerate(counts)
    )
    return Residency(path, file.size, pages, sum(counts), shares)


def regular_files(paths: list[Path]) -> Iterator[Path]:
    """Yield the files of `paths`, and the files in its directories and below, sorted. Links in directories are not
    followed."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, folders, files in os.walk(path):
            folders.sort()
            for name in sorted(files):
                file = Path(folder, name)
                # Closing a lock file drops this process's lock on it.
                if name != names.LOCK and file.is_file() and not file.is_symlink():
                    yield file


def _resident(fd: int, first: int, pages: int) -> bytes:
    """Return a byte for each page, 1 if it is in RAM."""
    length = pages * PAGE
    address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, first * PAGE)
    if address == _MAP_FAILED:
        raise _os_error()
    try:
        states = ctypes.create_string_buffer(pages)
        if _libc.mincore(address, length, states) != 0:
            raise _os_error()
        return states.raw.translate(_IS_RESIDENT)
    finally:
        _libc.munmap(address, length)


def _count(resident: bytes, first: int, pages: int, counts: list[int]) -> None:
    """Add the resident pages of a window to the counts of their parts."""
    last = first + len(resident)
    part = first * len(counts) // pages
    while part < len(counts) and _start(part, pages, counts) < last:
        begin = max(_start(part, pages, counts), first)
        end = min(_start(part + 1, pages, counts), last)
        counts[part] += resident.count(1, begin - first, end - first)
        part += 1


def _start(part: int, pages: int, counts: list[int]) -> int:
    return part * pages // len(counts)


def _os_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
