"""A registry over a data directory, which can be opened repeatedly, as by one broker after another."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from stratalog.broker.metadata.embedded import EmbeddedTopics
from stratalog.broker.metadata.store import MetadataStore
from stratalog.clock import ManualClock
from stratalog.storage import Log, LogConfig
from stratalog.storage._mapping import Mapping
from stratalog.storage.disk import Disk
from stratalog.storage.log_directory import LogDirectory
from stratalog.storage.names import LOCK
from tests.storage.hand_made import START_MS, batch_of

DEFAULTS = LogConfig(segment_index_bytes=1024)


class QuickDisk(Disk):
    """Never syncs, for tests without power cuts."""

    def sync(self, fd: int) -> None:
        pass

    def sync_mapping(self, mapping: Mapping, path: Path) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class CountingDisk(QuickDisk):
    """Counts the syncs that a real disk would make."""

    def __init__(self) -> None:
        self.syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1

    def sync_directory(self, path: Path) -> None:
        self.syncs += 1


class Broker:
    """One run of a broker: opened, used, closed."""

    def __init__(self, data: Path, *, disk: Disk | None = None, most_partitions: int = 1000) -> None:
        self.data = data
        disk = disk or QuickDisk()
        self.defaults = DEFAULTS
        self.directory = LogDirectory.open(data, disk=disk, clock=ManualClock(START_MS), background=False)
        try:
            self.store = MetadataStore(data, disk)
            self.topics = EmbeddedTopics(
                self.directory,
                self.store,
                lambda: self.defaults,
                most_partitions=most_partitions,
                on_loop=lambda call: call(),
            )
            self.topics.load()
        except BaseException:
            self.directory.close()
            raise

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.directory.close()

    def append(self, topic: str, partition: int = 0) -> None:
        self._log(topic, partition).append(batch_of(START_MS))

    def count(self, topic: str, partition: int = 0) -> int:
        return self._log(topic, partition).log_end_offset

    def _log(self, topic: str, partition: int) -> Log:
        found = self.topics.partition(topic, partition)
        assert found is not None
        return found.log

    @property
    def shape(self) -> dict[str, int]:
        """Return the number of partitions of each topic, after a check that all lookups agree."""
        shape = {}
        for topic in self.topics.all():
            partitions = self.topics.partitions(topic.name)
            assert [partition.index for partition in partitions] == list(range(topic.partition_count))
            assert all(not partition.log.is_closed for partition in partitions)
            assert self.topics.get(topic.name) is topic
            assert self.topics.by_id(topic.id) is self.topics.by_id_bytes(topic.id.bytes) is topic
            shape[topic.name] = topic.partition_count
        assert self.topics.partition_count == sum(shape.values()) == len(list(self.topics.all_partitions()))
        return shape

    @property
    def on_disk(self) -> dict[str, int]:
        """Return the number of directories of each topic."""
        counts: dict[str, int] = {}
        for partition in self.directory.partitions():
            counts[partition.topic] = counts.get(partition.topic, 0) + 1
        return counts


def killed(broker: Broker, target: Path) -> Path:
    return killed_copy(broker.data, target)


def killed_copy(data: Path, target: Path) -> Path:
    """Copy a data directory as kill -9 would leave it now, and return the copy."""
    shutil.copytree(data, target, ignore=shutil.ignore_patterns(LOCK))
    return target


class KilledError(BaseException):
    """The process is killed. No code handles this as an error."""


class DyingDisk(QuickDisk):
    """Kills the process before a call that changes something."""

    _CHANGES = ("open", "write", "truncate", "allocate", "sync", "sync_directory", "make_directory", "rename", "remove")

    def __init__(self) -> None:
        self.calls = 0
        self.dies_before: int | None = None

    def __getattribute__(self, name: str) -> object:
        if name not in DyingDisk._CHANGES:
            return super().__getattribute__(name)
        self.calls += 1
        if self.dies_before is not None and self.calls >= self.dies_before:
            raise KilledError
        return super().__getattribute__(name)


def die_at_each_call(data: Path, change: Callable[[Broker], object], look: Callable[[Broker, Path], None]) -> int:
    """Run `change` repeatedly, each time on a copy of `data`, and kill it one call later each time until it completes.
    Call `look` with the next broker each time. Return the number of calls that `change` makes."""
    for nth in range(1, 10_000):
        copy = data.with_name(f"{data.name}-killed-{nth}")
        shutil.copytree(data, copy, ignore=shutil.ignore_patterns(LOCK))
        disk = DyingDisk()
        broker = Broker(copy, disk=disk)
        disk.calls, disk.dies_before = 0, nth
        try:
            change(broker)
        except KilledError:
            survived = False
        else:
            survived = True
        disk.dies_before = None
        left = killed(broker, data.with_name(f"{data.name}-left-{nth}"))
        broker.directory.close()
        with Broker(left) as found:
            look(found, left)
        shutil.rmtree(copy)
        shutil.rmtree(left)
        if survived:
            return nth
    raise AssertionError("the change never ends")
