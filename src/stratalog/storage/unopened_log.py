"""A replacement for a log that can't be opened. Every operation on it fails with the reason.

It lets a broker serve all other partitions. The partition directory is not touched, so that an operator can fix it and
start the broker again.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from stratalog.errors import StorageError, UnusablePartitionError
from stratalog.storage import names
from stratalog.storage.config import LogConfig
from stratalog.storage.home import LogHome
from stratalog.storage.log import Log
from stratalog.storage.names import TopicPartition

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UnopenedLog(Log):
    """An empty log that is never opened. Its operations raise StorageError with `reason`."""

    def __init__(
        self, partition: TopicPartition, path: Path, config: LogConfig, home: LogHome, reason: StorageError
    ) -> None:
        super().__init__(partition, path, config, home)
        self.reason = reason

    def _check_open(self) -> None:
        raise StorageError(str(self.reason))


def check_entries(path: Path) -> None:
    """Raise UnusablePartitionError if an entry of a partition directory has the name of a log's file but is not a file.

    Checked before any file is opened, because opening a named pipe blocks until another process writes to it.
    """
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_file() or not names.is_log_file(entry.name):
                continue
            if entry.is_symlink() and not Path(entry.path).exists():
                raise _unusable(path, entry.path, "a broken symbolic link")
            mode = entry.stat().st_mode
            kind = next((kind for has_kind, kind in _KINDS if has_kind(mode)), "not a regular file")
            raise _unusable(path, entry.path, kind)


def _unusable(path: Path, entry: str, kind: str) -> UnusablePartitionError:
    return UnusablePartitionError(
        f"{entry}: is {kind}, but the log of {path.name} has a file with this name; move it away, restore the file if "
        "there was one, and start again"
    )
