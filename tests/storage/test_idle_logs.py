"""An idle log costs next to nothing: opening it reads and writes little, and it keeps no file open."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.inspect.page_cache import residency
from stratalog.storage import Log, LogDirectory, limits
from stratalog.storage.disk import Disk
from stratalog.storage.offset_index import OffsetIndex
from tests.storage.log_builder import PARTITION, LogBuilder, batch_from

MIB = 1024 * 1024
COUNT = 12


def states(path: Path) -> dict[str, tuple[int, int]]:
    return {str(file.relative_to(path)): (file.stat().st_size, file.stat().st_mtime_ns) for file in path.glob("*-*/*")}


def open_files(path: Path) -> int:
    links = (Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    return sum(link.is_symlink() and str(link.readlink()).startswith(f"{path}/t-") for link in links)


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f" {path}/")


def fill(directory: LogDirectory, count: int = COUNT, records: int = 1) -> list[Log]:
    logs = [directory.log("t", number) for number in range(count)]
    for log in logs:
        for offset in range(records):
            log.append(batch_from(offset, value_size=1000))
    return logs


@pytest.mark.parametrize("batches", [0, 1, 40])
def test_opening_after_a_kill_reads_no_unused_index_room_and_writes_nothing(tmp_path: Path, batches: int) -> None:
    """The indexes of an active segment have 10 MiB, mostly zeros. Reading both took 20 ms of CPU per partition."""
    with LogBuilder(tmp_path / "live") as built:
        for _ in range(batches):
            built.append(1, value_size=1000)
        left = built.left_by_kill(tmp_path / "left")
        indexes = [left / str(PARTITION) / f"{0:020d}{suffix}" for suffix in (".index", ".timeindex")]
        for index in indexes:
            os.truncate(index, 10 * MIB)  # a copy is not sparse
            os.posix_fadvise(fd := os.open(index, os.O_RDWR), 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        before = states(left)
        with LogDirectory.open(left, background=False) as directory:
            log = directory.log(*PARTITION)
            assert list(log.records()) == built.expected
            if batches < 40:  # a longer log is indexed again after the recovery point
                assert states(left) == before
        assert [index.stat().st_size % 4 for index in indexes] == [0, 0]
        assert max(index.stat().st_size for index in indexes) < 4096  # trimmed, as Kafka requires


def test_long_index_that_was_not_trimmed_is_not_read_past_its_entries(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "live") as built:
        for _ in range(60):
            built.append(1, value_size=1000)
        built.flush()
        built.log.save_recovery_point()
        index = built.files(".index")[0]
        with index.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert index.stat().st_size == 10 * MIB
        again = OffsetIndex.open_to_grow(Disk(), index, 0, 10 * MIB, keep=True)
        assert again.count == built.log.segments[0].offset_index.count > 5
        assert residency(index).resident_pages <= 4


@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_idle_logs_hold_no_mapping(tmp_path: Path, stop: str) -> None:
    left = tmp_path / "left"
    with LogDirectory.open(tmp_path / "data", background=False) as directory:
        fill(directory)
        if stop == "kill":
            shutil.copytree(tmp_path / "data", left)
    if stop == "clean":
        shutil.copytree(tmp_path / "data", left)
    with LogDirectory.open(left, background=False) as again:
        assert again.was_clean is (stop == "clean")
        assert len(again.open_all()) == COUNT
        assert mappings(left) == 0


@pytest.mark.parametrize("limit", [1, 3])
def test_logs_take_turns_when_few_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(limits, "active_segments", lambda: limit)
    data = tmp_path / "data"
    with LogDirectory.open(data, {"index.interval.bytes": 2000}, background=False) as directory:
        logs = fill(directory, records=10)
        assert open_files(data) <= limit
        assert mappings(data) <= 2 * limit
        for log in logs:
            assert [record.offset for record in log.records()] == list(range(10))
            assert log.find_timestamp(0) is not None
            log.append(batch_from(10, value_size=1000))
            log.flush()
        for log in logs:
            log.roll()
            log.append(batch_from(11))
        assert open_files(data) <= 2 * limit + 1
    with LogDirectory.open(data, background=False) as again:
        assert again.was_clean
        for log in again.open_all():
            assert [record.offset for record in log.records()] == list(range(12))
            assert log.recovery.problems == []


def test_logs_that_take_turns_lose_nothing_with_concurrent_readers_and_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "active_segments", lambda: 1)
    rounds, failures = 150, list[BaseException]()
    done = threading.Event()

    def repeat(act: Callable[[], None]) -> None:
        try:
            while not done.is_set():
                act()
        except BaseException as error:
            failures.append(error)

    settings = {"index.interval.bytes": 1000, "segment.bytes": 60_000}
    with LogDirectory.open(tmp_path / "data", settings, background=False) as directory:
        logs = fill(directory, 3)

        def read() -> None:
            for log in logs:
                end = log.log_end_offset
                assert [record.offset for record in log.records(end=end)] == list(range(end))

        def flush() -> None:
            for log in logs:
                log.flush()

        threads = [threading.Thread(target=repeat, args=(act,)) for act in (read, read, flush)]
        for thread in threads:
            thread.start()
        for _ in range(rounds):
            for log in logs:
                log.append(batch_from(log.log_end_offset, value_size=1000))
        done.set()
        for thread in threads:
            thread.join()
        assert failures == []
        for log in logs:
            assert log.log_end_offset == rounds + 1
            assert len(list(log.records())) == rounds + 1
