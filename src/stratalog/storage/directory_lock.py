"""One process at a time in a data directory: a lock on its .lock file, the one that Apache Kafka takes too.

The lock is the operating system's, so it goes with the process, however that ends. A lock of this kind (fcntl) does
not exclude a second holder in the same process; a table here does.
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
    """In the child of a fork: the locks are the parent's."""
    global _held_lock
    _held_lock = threading.Lock()
    _held.clear()


class DirectoryLock:
    def __init__(self, directory: Path) -> None:
        """Raises DirectoryLockedError where somebody has it."""
        self._directory = directory.resolve()
        with _held_lock:
            if self._directory in _held:
                raise DirectoryLockedError(f"{directory}: is open in this process already")
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
        """Let go of all but the file's first byte, so that other processes can have bytes of their own. Who wants the
        directory wants all of them, and waits for the last."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 0, 1)

    def release(self) -> None:
        with _held_lock:
            if self._directory in _held:
                _held.discard(self._directory)
                os.close(self._fd)
