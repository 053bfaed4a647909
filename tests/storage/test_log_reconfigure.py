"""Settings that change while a log is open."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.clock import ManualClock
from stratalog.errors import MessageTooLargeError, StorageError
from stratalog.storage import Log, LogConfig
from stratalog.storage.config import COMPRESSION_TYPES
from tests.storage.faults.failing_disk import FailingDisk
from tests.storage.hand_made import START_MS, batch_of, open_directory
from tests.storage.log_builder import LogBuilder

WEEK = 7 * 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with open_directory(tmp_path, clock=clock) as directory:
        yield directory.log("orders", 0)


def change(log: Log, **settings: Any) -> None:
    log.reconfigure(LogConfig(**settings))


def test_new_max_message_bytes_applies_to_the_next_append(log: Log) -> None:
    log.append(batch_of(size=500))
    change(log, max_message_bytes=400)
    with pytest.raises(MessageTooLargeError):
        log.append(batch_of(size=500))
    change(log, max_message_bytes=4000)
    log.append(batch_of(size=500))


def test_active_segment_rolls_by_the_new_size_and_time(log: Log) -> None:
    log.append(batch_of(START_MS, size=500))
    log.append(batch_of(START_MS, size=500))
    change(log, segment_bytes=1000)
    log.append(batch_of(START_MS, size=500))
    assert len(log.segments) == 2
    change(log, segment_ms=10)
    log.append(batch_of(START_MS + 11, size=500))
    assert len(log.segments) == 3


def test_log_append_time_applies_to_the_next_append(log: Log, clock: ManualClock) -> None:
    log.append(batch_of(START_MS - 5))
    clock.advance(100)
    change(log, message_timestamp_type="LogAppendTime")
    log.append(batch_of(START_MS - 5))
    change(log)
    log.append(batch_of(START_MS - 3))
    assert [record.timestamp for record in log.records()] == [START_MS - 5, START_MS + 100, START_MS - 3]


def test_new_retention_applies_to_the_next_turn(log: Log, clock: ManualClock) -> None:
    log.append(batch_of(START_MS))
    log.roll()
    log.append(batch_of(START_MS))
    clock.advance(1000)
    assert log.apply_retention() == []
    change(log, retention_ms=10)
    assert len(log.apply_retention()) == 2
    assert log.log_start_offset == 2


def test_new_flush_messages_applies_to_the_next_append(log: Log) -> None:
    log.append(batch_of(START_MS))
    assert log.recovery_point == 0
    change(log, flush_messages=1)
    log.append(batch_of(START_MS))
    assert log.recovery_point == 2


def test_new_index_interval_applies_to_the_next_entries(log: Log) -> None:
    for _ in range(20):
        log.append(batch_of(size=100))
    assert log.segments[-1].offset_index.count == 0
    change(log, index_interval_bytes=0)
    for _ in range(20):
        log.append(batch_of(size=100))
    assert log.segments[-1].offset_index.count >= 19


def test_new_settings_apply_to_later_segments(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, segment_index_bytes=4096) as built:
        built.append(3)
        built.log.reconfigure(
            LogConfig(segment_bytes=2000, segment_index_bytes=1024, message_timestamp_after_max_ms=WEEK)
        )
        for _ in range(30):
            built.append(3)
        assert len(built.log.segments) > 2
        assert list(built.log.records()) == built.expected
        assert built.log.segments[-1].path(".index").stat().st_size == 1024


def test_settings_changes_during_appends_lose_no_record(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, segment_index_bytes=1024) as built:
        done = threading.Event()

        def keep_changing() -> None:
            for number in itertools.count():
                if done.is_set():
                    return
                built.log.reconfigure(
                    LogConfig(
                        compression_type=COMPRESSION_TYPES[number % len(COMPRESSION_TYPES)],
                        segment_bytes=2000 + number % 5000,
                        index_interval_bytes=number % 500,
                        segment_index_bytes=1024,
                        message_timestamp_after_max_ms=WEEK,
                    )
                )

        changer = threading.Thread(target=keep_changing)
        changer.start()
        try:
            for _ in range(300):
                built.append(3)
        finally:
            done.set()
            changer.join()
        assert list(built.log.records()) == built.expected
    with LogBuilder(tmp_path) as again:
        assert list(again.log.records()) == built.expected
        assert again.log.recovery.problems == []


def blocks_of(log: Log) -> int:
    return os.stat(log.segments[-1].path(".log")).st_blocks * 512


def test_preallocate_reserves_the_whole_segment_with_its_first_record(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, preallocate=True, segment_bytes=4_000_000) as built:
        assert blocks_of(built.log) == 0
        built.append(1)
        assert blocks_of(built.log) >= 4_000_000
        size = built.log.segments[-1].path(".log").stat().st_size
        assert size == built.log.segments[-1].size < 4000
        built.roll()
        assert os.stat(built.log.segments[0].path(".log")).st_blocks * 512 < 100_000


def test_preallocate_refuses_the_append_on_a_full_disk(tmp_path: Path) -> None:
    disk = FailingDisk()
    with LogBuilder(tmp_path, preallocate=True, disk=disk) as built:
        disk.arm("ENOSPC", 1)
        disk._methods = frozenset({"preallocate"})
        with pytest.raises(StorageError, match="nothing was appended"):
            built.append(1)
        disk.heal()
        built.append(2)
        assert list(built.log.records()) == built.expected
