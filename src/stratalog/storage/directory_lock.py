"""The lock that lets only one process use a data directory. It locks the .lock file, as Apache Kafka does.

It is a lock of the operating system (fcntl), so it is released when the process ends, however it ends. Such a lock does
not exclude a second holder in the same process. A table in this module does.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from stratalog.errors import DirectoryLockedError
from stratalog.storage import names

_held: set[Path] = set()
_held_lock = threading.Lock()


def forget_all() -> None:
    """Forget all locks in the child of a fork. They belong to the parent."""
    global _held_lock
    _held_lock = threading.Lock()
    _held.clear()


class DirectoryLock:
    """The lock of one data directory, held until release()."""

    def __init__(self, directory: Path) -> None:
        """Acquire the lock. Raises DirectoryLockedError if this or another process holds it."""
        self._directory = directory.resolve()
        with _held_lock:
            if self._directory in _held:
                raise DirectoryLockedError(f"{directory}: the data directory is already open in this process")
            self._fd = os.open(self._directory / names.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._fd)
                raise DirectoryLockedError(
                    f"{directory}: another process has this data directory open; stop it, or use another directory"
                ) from error
            _held.add(self._directory)

    def keep_first_byte(self) -> None:
        """Unlock all bytes of the .lock file except the first, so that other processes can lock other bytes. A process
        that opens the directory needs all bytes, so it is refused while one is locked."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 0, 1)

    def release(self) -> None:
        with _held_lock:
            if self._directory in _held:
                _held.discard(self._directory)
                os.close(self._fd)
