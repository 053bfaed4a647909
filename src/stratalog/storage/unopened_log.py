"""A log that can't be opened, in the place of the one that it should be: whatever is asked of it fails with why.

A broker has one such partition and serves all others. Nothing of its directory is touched: it can be mended, and is
opened by the next start.
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
    """Empty, closed, and never opened."""

    def __init__(
        self, partition: TopicPartition, path: Path, config: LogConfig, home: LogHome, reason: StorageError
    ) -> None:
        super().__init__(partition, path, config, home)
        self.reason = reason

    def _check_open(self) -> None:
        raise StorageError(str(self.reason))


def check_entries(path: Path) -> None:
    """Raise UnusablePartitionError where something in a partition's directory has the name of one of a log's files and
    is none: it is found before it is opened, as to open a pipe is to wait for whoever writes to it."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_file() or not names.is_of_a_log(entry.name):
                continue
            if entry.is_symlink() and not Path(entry.path).exists():
                raise _unusable(path, entry.path, "a link to nothing")
            mode = entry.stat().st_mode
            kind = next((kind for is_one, kind in _KINDS if is_one(mode)), "something else")
            raise _unusable(path, entry.path, kind)


def _unusable(path: Path, entry: str, kind: str) -> UnusablePartitionError:
    return UnusablePartitionError(
        f"{entry}: is {kind}, where the log of {path.name} has a file; move it away, put the file back if there was "
        "one, and start again"
    )
