"""Removes the directories of deleted partitions, which are already renamed to `*-delete`.

A background thread removes them, one after the other, and ends when no directory is left, so that deleting a topic does
not wait for its files. The next opening of the data directory finds remaining directories by their names and removes
them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from stratalog.storage.disk import Disk

logger = logging.getLogger(__name__)

_MOST_WAITING = 20_000  # with more, add() removes directories itself, so that deletions can't outrun the removals


class DoomedDirectories:
    """A queue of directories and the thread that removes them. Any thread may call any method. Without `background`,
    add() removes directories at once."""

    def __init__(self, disk: Disk, *, background: bool) -> None:
        self._disk = disk
        self._background = background
        self._lock = threading.Lock()
        self._waiting: deque[Path] = deque()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def add(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if not self._hand_over(path):
                self._remove(path)

    def stop(self) -> None:
        """Stop removing files and wait for the thread. Directories that are left are removed by the next opening."""
        with self._lock:
            self._stopped = True
            thread = self._thread
        if thread is not None:
            thread.join()

    def _hand_over(self, path: Path) -> bool:
        if not self._background:
            return False
        with self._lock:
            if len(self._waiting) >= _MOST_WAITING:
                return False
            self._waiting.append(path)
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="stratalog-remove", daemon=True)
                self._thread.start()
        return True

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._stopped or not self._waiting:
                    self._thread = None
                    return
                path = self._waiting.popleft()
            self._remove(path)

    def _remove(self, path: Path) -> None:
        try:
            for entry in path.iterdir():
                if self._stopped:
                    return
                self._disk.remove(entry)
            path.rmdir()
        except OSError as error:
            logger.warning("%s: can't remove the directory; the next start tries again: %s", path, error)
