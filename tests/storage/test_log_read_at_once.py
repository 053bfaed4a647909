"""Reads by a thread that must not wait for a disk: they return what is in memory, and refuse the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stratalog.clock import ManualClock
from stratalog.errors import LogClosedError, OffsetOutOfRangeError
from stratalog.inspect.page_cache import residency
from stratalog.storage import Log, durable_log, segment
from stratalog.storage._mapping import Mapping
from stratalog.storage._page_cache import is_cached
from stratalog.storage.appending import WouldWaitError
from stratalog.storage.log_directory import LogDirectory
from tests.storage.hand_made import START_MS, batch_of, open_directory

MB = 1024 * 1024


def drop_from_cache(path: Path) -> bool:
    """Have the kernel forget a file's pages; return False on a file system that lives in memory."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return residency(path).resident_pages == 0


def test_bytes_that_are_not_in_the_page_cache_pass_for_cached(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(MB))
    with path.open("rb+") as file:
        fd = file.fileno()
        assert is_cached(fd, 0, MB)
        assert is_cached(fd, 0, 0)
        if drop_from_cache(path):
            assert not is_cached(fd, 0, MB)
            assert not is_cached(fd, MB - 1, 1)
            os.pread(fd, 4096, 0)
            assert is_cached(fd, 0, 4096)
            os.pread(fd, MB, 0)
        assert is_cached(fd, 0, MB)
        assert is_cached(fd, 1, MB - 2)


def test_a_mapping_that_is_not_in_memory_passes_for_resident(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(MB))
    with path.open("rb") as file:
        assert Mapping(file.fileno(), MB, False).is_resident(MB)
        if drop_from_cache(path):
            mapping = Mapping(file.fileno(), MB, False)
            assert not mapping.is_resident(MB)
            assert mapping.is_resident(0)
            assert path.read_bytes() == bytes(MB)
            assert mapping.is_resident(MB)


def filled(directory: LogDirectory, batches: int = 40) -> Log:
    log = directory.log("orders", 0, {"segment.bytes": 4096, "index.interval.bytes": 100})
    for _ in range(batches):
        log.append(batch_of(size=200))
    assert len(log.segments) > 2
    return log


def read(log: Log, offset: int) -> bytes:
    return log.read_at_once(offset, 4096).slice.read()


def test_batches_that_were_just_appended_are_refused(tmp_path: Path) -> None:
    with open_directory(tmp_path) as directory:
        log = filled(directory)
        for offset in (0, 20, 39, 40):
            assert read(log, offset) == log.read(offset, 4096).slice.read()


def test_a_log_that_was_just_opened_makes_the_caller_wait(tmp_path: Path) -> None:
    with open_directory(tmp_path) as directory:
        filled(directory)
    with open_directory(tmp_path) as directory:
        log = directory.log("orders", 0)
        for offset in (0, 20):
            with pytest.raises(WouldWaitError, match="may have to be read from the disk"):
                read(log, offset)
            log.warm_up(offset, 4096)
            assert read(log, offset) == log.read(offset, 4096).slice.read()
        assert read(log, log.log_end_offset) == b""
        log.append(batch_of())
        assert read(log, 40)


def test_segments_that_were_closed_to_save_descriptors_make_the_caller_wait(tmp_path: Path) -> None:
    with open_directory(tmp_path) as directory:
        filled(directory)
    with open_directory(tmp_path) as directory:
        log = directory.log("orders", 0)
        log.warm_up(0, 4096)
        assert read(log, 0)
        log.segments[0].release()
        with pytest.raises(WouldWaitError):
            read(log, 0)


def test_pages_that_the_kernel_dropped_make_the_caller_wait(tmp_path: Path) -> None:
    with open_directory(tmp_path) as directory:
        filled(directory)
    with open_directory(tmp_path) as directory:
        log = directory.log("orders", 0)
        log.warm_up(0, 4096)
        for suffix in (".log", ".index"):
            log.warm_up(0, 4096)
            assert read(log, 0)
            path = log.segments[0].path(suffix)
            if not drop_from_cache(path) and suffix == ".log":
                pytest.skip("the temporary directory is in memory: the kernel can't drop its pages")
            if residency(path).resident_pages == 0:  # the kernel keeps pages that are mapped
                with pytest.raises(WouldWaitError):
                    read(log, 0)


def test_many_unverified_checksums_are_verified_on_the_callers_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_directory(tmp_path) as directory:
        filled(directory)
    with open_directory(tmp_path) as directory:
        log = directory.log("orders", 0)
        part = log.segments[1]
        assert part.file.fd >= 0
        assert part.offset_index.count  # opened, and all of it was written a moment ago: it is in memory
        monkeypatch.setattr(segment, "_CHECKED_AT_ONCE", 0)
        with pytest.raises(WouldWaitError):
            read(log, part.base_offset)
        log.warm_up(part.base_offset, 4096)
        assert read(log, part.base_offset)


def test_errors_of_a_read_are_hidden_by_the_wait(tmp_path: Path) -> None:
    with open_directory(tmp_path) as directory:
        log = filled(directory)
        log.advance_start(10)
        with pytest.raises(OffsetOutOfRangeError):
            read(log, 9)
        log.warm_up(9, 4096)  # leaves the error to the read
        with pytest.raises(OffsetOutOfRangeError):
            read(log, 41)
        log.close()
        with pytest.raises(LogClosedError):
            read(log, 10)


def test_everything_since_the_start_passes_for_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that grows for weeks is not in memory as a whole."""
    monkeypatch.setattr(durable_log, "_WARM_BYTES", 1000)
    with open_directory(tmp_path) as directory:
        log = directory.log("orders", 0, {"index.interval.bytes": 100})
        for _ in range(40):
            log.append(batch_of(size=200))
        assert log._warm_from == 0
        log.flush_if_due()
        assert 30 < log._warm_from < 40
        assert read(log, 0)  # it is in memory nevertheless


def test_small_segments_pass_for_warm_whatever_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_log, "_WARM_BYTES", 10_000)
    with open_directory(tmp_path) as directory:
        log = filled(directory, 80)
        log.flush_if_due()
        assert 0 < log._warm_from < 80


def test_a_lost_index_keeps_a_log_from_being_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_log, "_WARM_BYTES", 5_000)
    with open_directory(tmp_path) as directory:
        log = directory.log("orders", 0, {"segment.bytes": 4096, "flush.ms": 0})
        for _ in range(40):
            log.append(batch_of(size=200))
        for sealed in log.segments[:-1]:
            sealed.release()
            sealed.path(".index").unlink()
        log.flush_if_due()
        assert log.recovery_point == log.log_end_offset


def test_a_log_that_no_one_writes_to_stays_warm(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_directory(tmp_path, clock=clock) as directory:
        log = filled(directory)
        log.flush_if_due()
        assert log._warm_from == 0
        clock.advance(10 * 60_000)
        log.flush_if_due()
        assert log._warm_from == log.log_end_offset
