"""A file with one offset a partition (recovery points, log start offsets, high watermarks), kept in step in memory.

Writes are whole and durable. A file that can't be read is an error for whoever asks `damage`, and empty otherwise:
the logs find the truth in their own bytes.
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
    """Threads: any; one write at a time."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._lock = threading.Lock()
        self.damage: str | None = None
        try:
            self._offsets = checkpoints.read_offsets(path)
        except CorruptCheckpointError as error:
            logger.warning("checkpoint is damaged and not used: %s", error)
            self.damage = str(error)
            self._offsets = {}

    def get(self, partition: TopicPartition, default: int = 0) -> int:
        with self._lock:
            return self._offsets.get(partition, default)

    def raise_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set offsets that are higher than those that are there; the others stay. Raises OSError."""

        def higher() -> Changes:
            return {key: offset for key, offset in offsets.items() if offset > self._offsets.get(key, 0)}

        self.update(higher)

    def update(self, changes: Changes | Callable[[], Changes]) -> None:
        """Set offsets, or with None forget them. Nothing is written where nothing changes. Raises OSError.

        A callable is called when it is its turn: what it finds is not older than what was written before it.
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
