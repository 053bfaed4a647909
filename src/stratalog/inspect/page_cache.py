"""Which parts of a file are in RAM: mincore(2) over a mapping that is never read, so that looking changes nothing.

A file is mapped and asked about a window at a time: memory is bounded whatever its size. Since Linux 5.2 the kernel
tells this only to who may write the file, and calls everything resident for others.
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
WINDOW_PAGES = 256 * 1024  # 1 GiB of file, 256 KiB of answer
_IS_RESIDENT = bytes(byte & 1 for byte in range(256))  # the other bits of an answer mean nothing yet
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
    """`parts` are equal stretches of the file: how much of each is in RAM, 0.0 to 1.0. Empty for an empty file."""

    path: Path
    size: int
    pages: int
    resident_pages: int
    parts: tuple[float, ...]

    @property
    def resident_bytes(self) -> int:
        """Pages, but no more than the file has bytes."""
        return min(self.resident_pages * PAGE, self.size)

    @property
    def share(self) -> float:
        return self.resident_pages / self.pages if self.pages else 0.0


def residency(path: Path, parts: int = 60) -> Residency:
    """Ask about one regular file. Raises OSError, and StorageError for what is no regular file."""
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
    """The files themselves, and those in the directories and below, sorted; links are not followed below."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, folders, files in os.walk(path):
            folders.sort()
            for name in sorted(files):
                found = Path(folder, name)
                # Closing a lock file drops the lock of the process that closes it: it might be this one.
                if name != names.LOCK and found.is_file() and not found.is_symlink():
                    yield found


def _resident(fd: int, first: int, pages: int) -> bytes:
    """A byte for each page: 1 where it is in RAM."""
    length = pages * PAGE
    address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, first * PAGE)
    if address == _MAP_FAILED:
        raise _os_error()
    try:
        answer = ctypes.create_string_buffer(pages)
        if _libc.mincore(address, length, answer) != 0:
            raise _os_error()
        return answer.raw.translate(_IS_RESIDENT)
    finally:
        _libc.munmap(address, length)


def _count(resident: bytes, first: int, pages: int, counts: list[int]) -> None:
    """Add the resident pages of a window to the parts of the file that they are in."""
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
