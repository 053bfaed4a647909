"""A file with one offset per partition, such as the recovery points, and a copy of it in memory.

Writes are atomic and durable. A corrupt file counts as empty, because the logs find the offsets in their own bytes.
`damage` holds the error, for callers that can't do without the file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from stratalog.errors import CorruptCheckpointError
from stratalog.storage import checkpoints
from stratalog.storage.disk import Disk
from stratalog.storage.names import TopicPartition

logger = logging.getLogger(__name__)


Changes = Mapping[TopicPartition, int | None]


class OffsetCheckpoint:
    """The offsets by partition, in memory and in the file. Any thread may call any method."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._lock = threading.Lock()
        self.damage: str | None = None
        try:
            self._offsets = checkpoints.read_offsets(path)
        except CorruptCheckpointError as error:
            logger.warning("ignoring a corrupt checkpoint: %s", error)
            self.damage = str(error)
            self._offsets = {}

    def get(self, partition: TopicPartition, default: int = 0) -> int:
        with self._lock:
            return self._offsets.get(partition, default)

    def raise_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets that are higher than the stored ones. Raises OSError."""

        def higher() -> Changes:
            return {key: offset for key, offset in offsets.items() if offset > self._offsets.get(key, 0)}

        self.update(higher)

    def update(self, changes: Changes | Callable[[], Changes]) -> None:
        """Set offsets; None removes the partition. Writes the file only if something changes. Raises OSError.

        If `changes` is a function, it is called with the lock held, so its result is not older than what other threads
        have written.
        """
        with self._lock:
            if callable(changes):
                changes = changes()
            offsets = dict(self._offsets)
            for partition, offset in changes.items():
                if offset is None:
                    offsets.pop(partition, None)
                else:
                    offsets[partition] = offset
            if offsets != self._offsets:
                self._disk.replace(self._path, checkpoints.format_offsets(offsets))
                self._offsets = offsets
