"""The cleaner of a data directory: which log it compacts, how it treats a log that fails, and how it is stopped."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.clock import ManualClock
from stratalog.errors import ConfigError
from stratalog.records.builder import build_batch
from stratalog.storage.compaction.cleaner import LogCleaner
from stratalog.storage.compaction.compactor import Cleaned
from stratalog.storage.compaction.config import CleanerConfig
from stratalog.storage.compaction.throttle import Throttle
from stratalog.storage.names import CLEANER_OFFSET_CHECKPOINT, TopicPartition
from tests.storage.compaction.keyed_log import TOPIC, KeyedLog
from tests.storage.faults.failing_disk import FailingDisk
from tests.storage.hand_made import START_MS, flip

OURS = TopicPartition(TOPIC, 0)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("stratalog")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def test_dirtiest_log_is_compacted_first(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1").roll().clean()
        keyed.put("a=2").roll()
        other = keyed.directory.log("other", 0)
        other.append(build_batch([(b"a", b"1")]))
        other.roll()
        cleaner = keyed.directory.cleaner
        assert cleaner.dirt_of(other).ratio > cleaner.dirt_of(keyed.log).ratio > 0
        cleaner.turn()
        assert cleaner.status(other).last_run is not None
        assert cleaner.status(keyed.log).dirt.is_due
        cleaner.turn()
        assert cleaner.turn() is None
        assert cleaner.counters.runs == 3


def test_log_with_a_corrupt_batch_is_set_aside_and_the_others_are_compacted(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1").put("a=2").roll().put("b=1").roll()
        other = keyed.directory.log("other", 0)
        for value in (b"1", b"2"):
            other.append(build_batch([(b"a", value)]))
        other.roll()
        flip(keyed.log_path / f"{0:020}.log", 70)
        before = keyed.files()
        while keyed.directory.cleaner.turn() is not None:
            pass
        aside = keyed.directory.cleaner.set_aside()
        assert list(aside) == [OURS]
        assert "checksum of the batch at offset 0" in aside[OURS].reason
        assert f"{0:020}.log" in aside[OURS].reason
        assert aside[OURS].since_ms == START_MS
        assert keyed.files() == before, "nothing may be lost"
        assert [record.value for record in other.records()] == [b"2"]
        status = keyed.directory.cleaner.status(keyed.log)
        assert (status.set_aside, status.last_run, status.is_running) == (aside[OURS], None, False)


def test_failed_log_is_tried_again_after_growing_delays(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1").put("a=2").roll()
        path = keyed.log_path / f"{0:020}.log"
        flip(path, 70)
        cleaner = keyed.directory.cleaner
        pauses = []
        for failures in (1, 2, 3):
            assert cleaner.turn() is None
            aside = cleaner.set_aside()[OURS]
            assert aside.failures == failures
            assert cleaner.turn() is None
            assert cleaner.set_aside()[OURS] == aside, "tried again at once"
            pauses.append(aside.until - keyed.clock.monotonic())
            keyed.clock.advance(int(pauses[-1] * 1000) + 1)
        assert pauses == sorted(set(pauses))
        flip(path, 70)
        assert cleaner.turn() is not None
        assert cleaner.set_aside() == {}
        assert keyed.pairs() == ["a=2"]


def test_thousands_of_failures_do_not_end_the_cleaner(tmp_path: Path) -> None:
    with KeyedLog(tmp_path, cleaner=CleanerConfig(log_cleaner_backoff_ms=0)) as keyed:
        keyed.put("a=1").put("a=2").roll()
        flip(keyed.log_path / f"{0:020}.log", 70)
        cleaner = keyed.directory.cleaner
        for _ in range(1100):
            keyed.clock.advance(3_600_001)
            cleaner.turn()
        assert cleaner.set_aside()[OURS].failures == 1100


@pytest.mark.parametrize("fault", ["ENOSPC", "short write"])
def test_log_is_set_aside_while_the_disk_is_full(tmp_path: Path, fault: str) -> None:
    disk = FailingDisk()
    with KeyedLog(tmp_path, disk=disk) as keyed:
        keyed.put("a=1").put("a=2").roll()
        disk.arm(fault, 1, 10**6)
        assert keyed.directory.cleaner.turn() is None
        disk.heal()
        assert "No space left" in keyed.directory.cleaner.set_aside()[OURS].reason
        assert keyed.pairs() == ["a=1", "a=2"]
        assert keyed.files(".cleaned") == [], "half a segment takes room that others need"
        keyed.clock.advance(10**6)
        keyed.directory.cleaner.turn()
        assert keyed.pairs() == ["a=2"]


def test_map_too_small_for_all_keys_takes_several_runs(tmp_path: Path) -> None:
    """A map of 1 MiB has room for 39,000 keys, and the log has more."""
    config = CleanerConfig(log_cleaner_dedupe_buffer_size=1024**2)
    with KeyedLog(tmp_path, cleaner=config, segment_bytes=10**6) as keyed:
        for value in (b"1", b"2"):
            for first in range(0, 60_000, 3_000):
                keyed.log.append(build_batch([(b"%d" % key, value) for key in range(first, first + 3_000)]))
        keyed.roll()
        runs = keyed.clean()
        assert len(runs) >= 3
        assert [run.is_complete for run in runs] == [False] * (len(runs) - 1) + [True]
        assert [run.first_dirty_offset for run in runs] == sorted({run.first_dirty_offset for run in runs})
        records = list(keyed.log.records())
        assert [record.offset for record in records] == list(range(60_000, 120_000))
        assert {record.value for record in records} == {b"2"}


def test_cleaner_offset_survives_a_restart(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1").put("a=2").roll().clean()
        assert (tmp_path / CLEANER_OFFSET_CHECKPOINT).read_text() == f"0\n1\n{TOPIC} 0 2\n"
        keyed.reopen()
        dirt = keyed.directory.cleaner.dirt_of(keyed.log)
        assert (dirt.first_dirty_offset, dirt.is_due) == (2, False)
        keyed.put("b=1").roll()
        assert keyed.directory.cleaner.dirt_of(keyed.log).is_due


def test_cleaner_offset_after_the_log_end_does_not_hide_new_records(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1").directory.close()
    (tmp_path / CLEANER_OFFSET_CHECKPOINT).write_text(f"0\n1\n{TOPIC} 0 100\n")
    with KeyedLog(tmp_path) as keyed:
        for number in range(120):
            keyed.put(f"a={number}")
        keyed.roll().clean()
        assert keyed.pairs() == ["a=119"]


def test_deleted_topic_is_forgotten(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1").put("a=2").roll()
        flip(keyed.log_path / f"{0:020}.log", 70)
        cleaner = keyed.directory.cleaner
        cleaner.turn()
        keyed.directory.delete(TOPIC, 0)
        cleaner.turn()
        assert cleaner.set_aside() == {}
        assert (tmp_path / CLEANER_OFFSET_CHECKPOINT).exists() is False or TOPIC not in (
            tmp_path / CLEANER_OFFSET_CHECKPOINT
        ).read_text()


def test_disabled_cleaner_has_no_threads(tmp_path: Path) -> None:
    off = CleanerConfig(log_cleaner_enable=False)
    with KeyedLog(tmp_path, cleaner=off, background=True):
        assert not [thread for thread in threading.enumerate() if "cleaner" in thread.name]


def test_cleaner_in_the_background_compacts_a_log_that_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: queue.Queue[Cleaned] = queue.Queue()
    turn = LogCleaner.turn

    def report_run(cleaner: LogCleaner) -> Cleaned | None:
        cleaned = turn(cleaner)
        if cleaned is not None:
            runs.put(cleaned)
        return cleaned

    monkeypatch.setattr(LogCleaner, "turn", report_run)
    config = CleanerConfig(log_cleaner_backoff_ms=5, log_cleaner_threads=2)
    with KeyedLog(tmp_path, cleaner=config, background=True) as keyed:
        keyed.put("a=1").put("a=2").roll()
        runs.get(timeout=60)
        assert keyed.pairs() == ["a=2"]
        keyed.directory.cleaner.reconfigure(replace(config, log_cleaner_threads=1))
        keyed.put("a=3").roll()
        runs.get(timeout=60)
        assert keyed.pairs() == ["a=3"]
        assert len([thread for thread in threading.enumerate() if "cleaner" in thread.name]) == 1
    assert not [thread for thread in threading.enumerate() if "cleaner" in thread.name]


def test_stop_ends_a_run_that_is_throttled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At one byte per second, the run would take minutes."""
    reading = threading.Event()
    account = Throttle.account

    def report_reading(throttle: Throttle, size: int) -> None:
        reading.set()
        account(throttle, size)

    monkeypatch.setattr(Throttle, "account", report_reading)
    config = CleanerConfig(log_cleaner_backoff_ms=5, log_cleaner_io_max_bytes_per_second=1.0)
    with KeyedLog(tmp_path, cleaner=config, background=True) as keyed:
        keyed.put("a=1").put("a=2").roll()
        assert reading.wait(60)
        keyed.directory.close()
    with KeyedLog(tmp_path) as keyed:
        assert keyed.pairs() == ["a=1", "a=2"]
        keyed.clean()
        assert keyed.pairs() == ["a=2"]


def test_throttle_waits_until_the_rate_is_within_the_limit() -> None:
    waited: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0)
            clock.advance(int((timeout or 0) * 1000))
            return False

    clock = ManualClock(START_MS)
    throttle = Throttle(1000.0, clock, Stop())
    throttle.account(500)
    throttle.account(1500)
    clock.advance(10_000)  # unused time does not accumulate
    throttle.account(1000)
    assert waited == pytest.approx([0.5, 1.5, 1.0])
    throttle.rate = 1e308
    throttle.account(10**12)
    assert len(waited) == 3


def test_reads_and_writes_count_for_the_throttle(tmp_path: Path) -> None:
    counted: list[int] = []
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1").put("a=2").roll()
        size = keyed.log.size
        keyed.tell_of_bytes(counted.append)
        [cleaned] = keyed.clean()
        assert counted == [size, size, cleaned.bytes_after]
        assert keyed.directory.cleaner.counters.bytes_read == 2 * size
        assert keyed.directory.cleaner.counters.bytes_saved == size - cleaned.bytes_after


@pytest.mark.parametrize(
    "settings",
    [{"log_cleaner_threads": 0}, {"log_cleaner_dedupe_buffer_size": 1000}, {"log_cleaner_io_buffer_load_factor": 1.5}],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="cleaner"):
        CleanerConfig(**settings)  # type: ignore[arg-type]
