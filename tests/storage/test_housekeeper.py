from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.clock import ManualClock
from stratalog.errors import StorageError
from stratalog.storage import DirectoryConfig, Log, LogConfig, LogDirectory
from stratalog.storage.disk import Disk
from stratalog.storage.home import Deletions
from stratalog.storage.housekeeper import Housekeeper
from tests.storage.hand_made import START_MS, batch_of, open_with
from tests.storage.log_builder import LogBuilder

SMALL: dict[str, Any] = {"segment_index_bytes": 1024}
INTERVALS = DirectoryConfig(
    log_retention_check_interval_ms=5000,
    log_flush_scheduler_interval_ms=1000,
    log_flush_offset_checkpoint_interval_ms=3000,
)


def test_each_task_has_its_own_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, str]] = []
    clock = ManualClock(START_MS)

    def noted(name: str) -> Callable[[object], object]:
        def call(_: object) -> list[Any]:
            calls.append((clock.now_ms() - START_MS, name))
            return []

        return call

    for name in ("flush_if_due", "roll_if_due", "apply_retention"):
        monkeypatch.setattr(Log, name, noted(name))
    monkeypatch.setattr(Housekeeper, "_save_recovery_points", noted("save_recovery_points"))
    with open_with(tmp_path, INTERVALS, clock, **SMALL) as directory:
        directory.log("orders", 0)
        for _ in range(13):
            directory.turn()
            clock.advance(500)
    times = {name: [at for at, called in calls if called == name] for _, name in calls}
    assert times == {
        "flush_if_due": [1000, 2000, 3000, 4000, 5000, 6000],
        "roll_if_due": [5000],
        "apply_retention": [5000],
        "save_recovery_points": [3000, 6000],
    }


def test_quiet_log_is_rolled_and_then_retained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(START_MS)
    settings = {"segment_ms": 1000, "retention_ms": 2000, "file_delete_delay_ms": 0, **SMALL}
    with open_with(tmp_path, INTERVALS, clock, **settings) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(START_MS))
        clock.advance(5000)
        with caplog.at_level(logging.INFO):
            directory.turn()
        assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (1, 1, 1)
        assert "deleted the segment at 0: its newest record is 5000 ms old" in caplog.text
        assert not list(log.path.glob("*.deleted"))


@pytest.mark.parametrize("error", [StorageError("disk is gone"), ZeroDivisionError("a bug")])
def test_failing_log_does_not_affect_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    clock = ManualClock(START_MS)
    flush = Log.flush_if_due

    def failing(log: Log) -> None:
        if log.partition.topic == "bad":
            raise error
        flush(log)

    with open_with(tmp_path, INTERVALS, clock, flush_ms=0, **SMALL) as directory:
        for topic in ("bad", "good"):
            directory.log(topic, 0).append(batch_of(1))
        monkeypatch.setattr(Log, "flush_if_due", failing)
        clock.advance(1000)
        directory.turn()
        assert directory.log("good", 0).recovery_point == 1
        assert "bad-0" in caplog.text
        monkeypatch.undo()
        clock.advance(1000)
        directory.turn()
        assert directory.log("bad", 0).recovery_point == 1


def test_closed_log_is_skipped_without_a_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(START_MS)
    with open_with(tmp_path, INTERVALS, clock, flush_ms=0, **SMALL) as directory:
        directory.log("orders", 0).close()
        clock.advance(60_000)
        with caplog.at_level(logging.WARNING):
            directory.turn()
        assert caplog.text == ""


def test_thread_runs_tasks_until_the_directory_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = threading.Event()
    flush_if_due = Log.flush_if_due

    def flush(log: Log) -> None:
        flush_if_due(log)
        if log.recovery_point == 1:
            flushed.set()

    monkeypatch.setattr(Log, "flush_if_due", flush)
    config = DirectoryConfig(log_flush_scheduler_interval_ms=1)
    directory = LogDirectory.open(tmp_path, LogConfig(flush_ms=0, **SMALL), directory_config=config)
    log = directory.log("orders", 0)
    log.append(batch_of(1))
    assert flushed.wait(60)
    directory.close()
    assert log.is_closed


def test_file_that_can_not_be_removed_is_logged_and_left_for_the_next_opening(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(START_MS)
    deletions = Deletions(Disk(), clock)
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    deletions.add([tmp_path / "directory", tmp_path / "file", tmp_path / "never was"], delay_ms=10)
    assert (deletions.run(), len(deletions)) == (0, 3)
    clock.advance(10)
    assert (deletions.run(), len(deletions)) == (3, 0)
    assert "directory: can't remove" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["directory"]


def test_without_background_nothing_runs_by_itself(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, flush_ms=0, segment_ms=1, retention_ms=0, **SMALL) as built:
        built.append(2)
        built.clock.advance(10**9)
        assert (built.log.recovery_point, len(built.log.segments)) == (0, 1)
