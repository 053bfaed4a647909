"""Builds logs for tests in one expression, together with the records that they must have.

    built = LogBuilder(tmp_path, segment_bytes=1024).append(5).append(3, codec=Codec.ZSTD).roll().append(1)
    assert list(built.log.records()) == built.expected

A record's content is a function of (seed, generation, offset), and each truncation starts a new generation. So a record
at the wrong offset, from another log or from before a truncation never equals the expected record.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stratalog.clock import ManualClock
from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from stratalog.records.format import Codec
from stratalog.storage import Appended, DirectoryConfig, Log, LogConfig, LogDirectory
from stratalog.storage.disk import Disk
from stratalog.storage.names import LOCK, TopicPartition
from tests.storage.hand_made import ANY_TIME

PARTITION = TopicPartition("orders", 0)
START_MS = 1_700_000_000_000
STEP_MS = 10  # between the timestamps of consecutive records


def record_at(
    offset: int, *, seed: int = 0, generation: int = 0, value_size: int | None = None, timestamp: int | None = None
) -> Record:
    """Return the only record that may be at `offset`. Without a value_size, its value has 0 to 120 bytes."""
    digest = hashlib.blake2b(f"{seed}/{generation}/{offset}".encode()).digest()
    size = digest[0] % 121 if value_size is None else value_size
    return Record(
        offset=offset,
        timestamp=START_MS + offset * STEP_MS if timestamp is None else timestamp,
        key=None if digest[1] < 64 else digest[2:10],
        value=None if value_size is None and digest[1] % 32 == 0 else (digest * (size // len(digest) + 1))[:size],
        headers=[("origin", digest[:4])] if digest[1] % 8 == 0 else (),
    )


def records_from(offset: int, count: int, **content: Any) -> list[Record]:
    return [record_at(at, **content) for at in range(offset, offset + count)]


def batch_from(offset: int, count: int = 1, *, codec: int = Codec.NONE, **content: Any) -> bytearray:
    """Return a client's batch (base offset 0) of the records that belong at `offset` and after it."""
    return build_batch(records_from(offset, count, **content), codec=codec)


class LogBuilder:
    """One log in a data directory, and in `expected` the records that it must have. Every step returns the builder.

    `settings` are those of LogConfig. Housekeeping runs only in `directory.turn()`, and time stands still unless
    `clock` is advanced. As a context manager, the builder closes the directory at the end.
    """

    def __init__(
        self,
        path: Path,
        *,
        seed: int = 0,
        disk: Disk | None = None,
        clock: ManualClock | None = None,
        directory_config: DirectoryConfig | None = None,
        background: bool = False,
        **settings: Any,
    ) -> None:
        self.path = path
        self.seed = seed
        self.generation = 0
        self.disk = disk or Disk()
        self.clock = clock or ManualClock(START_MS)
        self.config = LogConfig(**ANY_TIME | settings)
        self._directory_config = directory_config
        self._background = background
        self._records: list[Record] = []  # by offset, from 0, including those before the log start offset
        self.last: Appended | None = None
        self.directory: LogDirectory
        self.log: Log
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.directory.close()

    def _open(self) -> None:
        self.directory = LogDirectory.open(
            self.path,
            self.config,
            directory_config=self._directory_config,
            disk=self.disk,
            clock=self.clock,
            background=self._background,
        )
        self.log = self.directory.log(*PARTITION)

    @property
    def log_path(self) -> Path:
        return self.path / str(PARTITION)

    @property
    def next_offset(self) -> int:
        return len(self._records)

    @property
    def expected(self) -> list[Record]:
        """The records that log.records() must yield."""
        return self._records[self.log.log_start_offset :]

    @property
    def history(self) -> list[Record]:
        """The records of `expected` and those before the log start offset. The index is the offset."""
        return list(self._records)

    def files(self, suffix: str) -> list[Path]:
        """Return the log's files with this suffix, oldest segment first."""
        return sorted(path for path in self.log_path.iterdir() if path.name.endswith(suffix))

    def next_records(self, count: int, **content: Any) -> list[Record]:
        return records_from(self.next_offset, count, seed=self.seed, generation=self.generation, **content)

    def next_batch(self, count: int = 1, *, codec: int = Codec.NONE, **content: Any) -> bytearray:
        """Return the batch that append() would append now."""
        return build_batch(self.next_records(count, **content), codec=codec)

    def append(self, count: int = 1, *, codec: int = Codec.NONE, batches: int = 1, **content: Any) -> Self:
        """Append `batches` batches of `count` records in one call. `content` goes to record_at()."""
        records = self.next_records(count * batches, **content)
        data = bytearray()
        for first in range(0, len(records), count):
            data += build_batch(records[first : first + count], codec=codec)
        self.last = self.log.append(data)
        self._records += records
        return self

    def append_until(self, size: int, count: int = 3, **content: Any) -> Self:
        """Append batches until the log has at least `size` bytes."""
        while self.log.size < size:
            self.append(count, **content)
        return self

    def roll(self) -> Self:
        self.log.roll()
        return self

    def flush(self) -> Self:
        self.log.flush()
        return self

    def truncate(self, offset: int) -> Self:
        """Truncate the log. Later records differ from the truncated ones at the same offsets."""
        end = self.log.truncate(offset)
        if end < self.next_offset:
            del self._records[end:]
            self.generation += 1
        return self

    def advance_start(self, offset: int) -> Self:
        self.log.advance_start(offset)
        return self

    def apply_retention(self) -> Self:
        self.log.apply_retention()
        return self

    def close(self) -> Self:
        self.directory.close()
        return self

    def reopen(self) -> Self:
        """Close in order and open again."""
        self.directory.close()
        self._open()
        return self

    def left_by_kill(self, target: Path) -> Path:
        """Copy the data directory as kill -9 would leave it now, and return the copy."""
        shutil.copytree(self.path, target, ignore=shutil.ignore_patterns(LOCK))
        return target
