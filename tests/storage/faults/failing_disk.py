"""A disk whose calls fail on request: the Nth call that can fail with a given error, and some calls after it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from stratalog.storage._mapping import Mapping
from stratalog.storage.disk import Disk

# Which calls can fail with which error. close() is left out: Linux releases the descriptor even if it fails.
_SPACE = "create write allocate preallocate truncate sync sync_directory rename"
_ALL = f"{_SPACE} open read map sync_mapping start_writeback remove make_directory"

FAULTS: dict[str, tuple[int, frozenset[str]]] = {
    "ENOSPC": (errno.ENOSPC, frozenset(_SPACE.split())),
    "short write": (errno.ENOSPC, frozenset({"write"})),
    "EIO": (errno.EIO, frozenset(_ALL.split())),
    "EMFILE": (errno.EMFILE, frozenset({"open", "create", "sync_directory"})),
}


class FailingDisk(Disk):
    """Nothing fails before `arm` and after `heal`. `calls` counts the calls since `arm` that could have failed."""

    waits_at_once = 1  # so that the Nth call is always the same

    def __init__(self) -> None:
        self.calls = 0
        self._errno = 0
        self._methods: frozenset[str] = frozenset()
        self._first = self._last = 0
        self._short = False
        self.struck: list[str] = []

    def arm(self, fault: str, nth: int, length: int = 1) -> None:
        """Let the nth call from now on that can fail with `fault` fail, and `length` calls in total."""
        self._errno, self._methods = FAULTS[fault]
        self._short = fault == "short write"
        self.calls = 0
        self.struck = []
        self._first, self._last = nth, nth + length - 1

    def heal(self) -> None:
        self._methods = frozenset()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let no call fail, and count none, within the block."""
        methods, self._methods = self._methods, frozenset()
        yield
        self._methods = methods

    def _fails(self, method: str) -> bool:
        if method not in self._methods:
            return False
        self.calls += 1
        if not self._first <= self.calls <= self._last:
            return False
        self.struck.append(method)
        return True

    def _may_fail(self, method: str, path: Path | None = None) -> None:
        if self._fails(method):
            raise OSError(self._errno, os.strerror(self._errno), None if path is None else str(path))

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        self._may_fail("create" if create else "open", path)
        return super().open(path, create=create, writable=writable)

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:  # type: ignore[override]
        if self._fails("write"):
            if self._short:
                # A part is written, sometimes several complete batches.
                super().write(fd, memoryview(data)[: len(data) * 2 // 3], position)
            raise OSError(self._errno, os.strerror(self._errno))
        super().write(fd, data, position)

    def read(self, fd: int, size: int, position: int) -> bytes:
        self._may_fail("read")
        return super().read(fd, size, position)

    def truncate(self, fd: int, size: int) -> None:
        self._may_fail("truncate")
        super().truncate(fd, size)

    def allocate(self, fd: int, position: int, size: int) -> None:
        self._may_fail("allocate")
        super().allocate(fd, position, size)

    def preallocate(self, fd: int, position: int, size: int) -> None:
        self._may_fail("preallocate")
        super().preallocate(fd, position, size)

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        self._may_fail("map")
        return super().map(fd, size, writable=writable)

    def sync(self, fd: int) -> None:
        self._may_fail("sync")  # without a real sync: there are no power cuts, and syncs are slow

    def sync_mapping(self, mapping: Mapping, path: Path) -> None:
        self._may_fail("sync_mapping")

    def start_writeback(self, fd: int, position: int, size: int) -> None:
        self._may_fail("start_writeback")

    def sync_directory(self, path: Path) -> None:
        self._may_fail("sync_directory")

    def make_directory(self, path: Path) -> None:
        self._may_fail("make_directory", path)
        super().make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._may_fail("rename", source)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._may_fail("remove", path)
        super().remove(path)
