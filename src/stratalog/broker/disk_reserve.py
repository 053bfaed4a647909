"""Room that is kept for what makes room: on a full disk, a deletion has to write a few bytes before it frees any.

The reserve is a file of the data directory with real blocks. When a small file that a deletion or a start needs can't
be written for want of space, the reserve is removed and the write tried again; it is made anew as soon as there is
room. Appends never get it: they would eat it up.
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
_LEFT_FOR_OTHERS = 8 * RESERVE_BYTES  # it is made only where so much more is free
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NEEDED = frozenset((METADATA_FILE, names.LOG_START_OFFSET_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT))


class DiskWithReserve(Disk):
    """Threads: any."""

    def __init__(self, data_dir: Path) -> None:
        self._reserve = data_dir / RESERVE_FILE
        self._lock = threading.Lock()
        self.is_starting = True  # what a start allocates may come out of the reserve; it is ended by the broker

    def keep_reserve(self) -> None:
        """Make the reserve where it is missing and there is room. Never raises: it is only a help."""
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
            if error.errno not in _NO_SPACE or not self._give_up():
                raise
            call()

    def _give_up(self) -> bool:
        """Whether there was a reserve."""
        with self._lock:
            try:
                self._reserve.unlink()
            except OSError:
                return False
        logger.error("the disk is full: %s is given up; delete topics, or give the disk more room", self._reserve)
        return True
