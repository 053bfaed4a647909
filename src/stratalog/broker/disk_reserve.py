"""Disk space that is reserved for operations that free space: on a full disk, a deletion has to write a few bytes
before it can free any.

The reserve is a file in the data directory with allocated blocks. If there is no space for a small file that a deletion
or a start needs, the broker removes the reserve and retries the write. It creates the reserve again once there is room.
Appends never get the reserve: they would use it up.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from stratalog.broker.metadata.store import METADATA_FILE
from stratalog.storage import names
from stratalog.storage.disk import Disk

logger = logging.getLogger(__name__)

RESERVE_FILE = "stratalog-reserve"
RESERVE_BYTES = 4 * 1024 * 1024
_LEFT_FOR_OTHERS = 8 * RESERVE_BYTES  # free space that has to remain when the reserve is created
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NEEDED = frozenset((METADATA_FILE, names.LOG_START_OFFSET_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT))


class DiskWithReserve(Disk):
    """A disk whose reserve serves the writes that free space. Safe in any thread."""

    def __init__(self, data_dir: Path) -> None:
        self._reserve = data_dir / RESERVE_FILE
        self._lock = threading.Lock()
        self.is_starting = True  # a start may allocate from the reserve; the broker clears this

    def keep_reserve(self) -> None:
        """Create the reserve if it is missing and there is room. Never raises, because the broker can run without
        it."""
        with self._lock, contextlib.suppress(OSError):
            if self._reserve.exists():
                return
            room = os.statvfs(self._reserve.parent)
            if room.f_bavail * room.f_frsize < RESERVE_BYTES + _LEFT_FOR_OTHERS:
                return
            fd = self.open(self._reserve, create=True)
            try:
                super().allocate(fd, 0, RESERVE_BYTES)
            finally:
                self.close(fd)

    def replace(self, path: Path, content: bytes, *, durable: bool = True) -> None:
        replace = super().replace
        if path.name in _NEEDED or (path.suffix == names.SNAPSHOT and durable):
            self._with_reserve(lambda: replace(path, content, durable=durable))
        else:
            replace(path, content, durable=durable)

    def allocate(self, fd: int, position: int, size: int) -> None:
        allocate = super().allocate
        if self.is_starting:
            self._with_reserve(lambda: allocate(fd, position, size))
        else:
            allocate(fd, position, size)

    def _with_reserve(self, call: Callable[[], None]) -> None:
        try:
            call()
        except OSError as error:
            if error.errno not in _NO_SPACE or not self._remove_reserve():
                raise
            call()

    def _remove_reserve(self) -> bool:
        """Remove the reserve, and return whether there was one."""
        with self._lock:
            try:
                self._reserve.unlink()
            except OSError:
                return False
        logger.error("the disk is full: %s was removed to make room; delete topics, or enlarge the disk", self._reserve)
        return True
