"""A leader's log and a follower's log in two data directories, for tests of replication without a broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stratalog.records.builder import build_batch
from stratalog.storage import Log, LogConfig, LogDirectory
from stratalog.storage.disk import Disk
from tests.storage.hand_made import ANY_TIME, timed
from tests.storage.log_builder import PARTITION, LogBuilder

SMALL: dict[str, Any] = {
    "segment_bytes": 2000,
    "segment_index_bytes": 1024,
    "index_interval_bytes": 100,
    "retention_ms": -1,
}


class Replicas:
    """`leader` is a LogBuilder, and `follower` a log that copies it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.leader = LogBuilder(path / "leader", **SMALL | settings)
        self.path = path / "follower"
        self.directory = LogDirectory.open(self.path, self.leader.config, clock=self.leader.clock, background=False)
        self.follower = self.directory.log(*PARTITION)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.directory.close()
        self.leader.close()

    def fetch(self, max_bytes: int = 1_000_000) -> bytes:
        return self.leader.log.read(self.follower.log_end_offset, max_bytes).slice.read()

    def catch_up(self, max_bytes: int = 1_000_000) -> Self:
        while self.follower.log_end_offset < self.leader.log.log_end_offset:
            before = self.follower.log_end_offset
            assert self.follower.append_from_leader(self.fetch(max_bytes)) > before
        return self

    def reopen_follower(self) -> Log:
        self.directory.close()
        self.directory = LogDirectory.open(self.path, self.leader.config, clock=self.leader.clock, background=False)
        self.follower = self.directory.log(*PARTITION)
        return self.follower


def leaders_batch(base_offset: int, count: int = 1, *, leader_epoch: int = 0, **fields: Any) -> bytes:
    """Return a batch as a leader has it in its log."""
    start = 1_700_000_000_000 + base_offset * 10
    records = timed(*range(start, start + 10 * count, 10))
    return bytes(build_batch(records, base_offset=base_offset, leader_epoch=leader_epoch, **fields))


def open_follower(path: Path, *, disk: Disk | None = None, **settings: Any) -> LogDirectory:
    config = LogConfig(**ANY_TIME | SMALL | settings)
    return LogDirectory.open(path, config, disk=disk, background=False)


class CallingDisk(Disk):
    """Calls a test's function before each call that changes a file or a name."""

    def __init__(self) -> None:
        self.before: Callable[[], None] | None = None

    def _call(self) -> None:
        if self.before is not None:
            self.before()

    def write(self, fd: int, data: Any, position: int) -> None:
        self._call()
        super().write(fd, data, position)

    def truncate(self, fd: int, size: int) -> None:
        self._call()
        super().truncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        self._call()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._call()
        super().remove(path)
