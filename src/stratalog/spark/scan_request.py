"""The parameters of a task: a range of offsets, and how to read it. Both are immutable, and sent to executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from stratalog.spark.predicate import EVERYTHING, Predicate

MIB = 1024 * 1024
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
DEFAULT_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class OffsetRange:
    """Offsets [start, end) of a partition. `topic_id` is that of the planned topic, if the broker supports ids."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: UUID | None = None

    @property
    def size(self) -> int:
        """The number of offsets. Some may have no record: compaction and transactions leave gaps."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True)
class ScanRequest:
    """`kafka` has the client's settings by Kafka's names. `data_dirs` are the directories to read files from; without
    any, the scan reads over the wire. `in_sync` are the node ids of the brokers whose files have every committed
    record; none means that any may be read. `patience_seconds` is how long a scan waits for a record before it fails.
    """

    columns: tuple[str, ...]
    kafka: Mapping[str, str]
    predicate: Predicate = EVERYTHING
    isolation: str = READ_UNCOMMITTED
    fail_on_data_loss: bool = True
    data_dirs: tuple[str, ...] = field(default=())
    in_sync: tuple[int, ...] = field(default=())
    rows_per_batch: int = 100_000
    bytes_per_batch: int = 16 * MIB
    patience_seconds: float = DEFAULT_PATIENCE_SECONDS
