"""Opening directories with leftovers, foreign files and corrupt checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stratalog.storage import Log
from stratalog.storage.names import CLEAN_SHUTDOWN, LOG_START_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from tests.storage.hand_made import batch_of, open_directory
from tests.storage.log_builder import PARTITION, LogBuilder

SMALL: dict[str, Any] = {"segment_index_bytes": 4096, "index_interval_bytes": 100, "retention_ms": -1}


@pytest.fixture
def closed(tmp_path: Path) -> LogBuilder:
    """A log of three segments with ten batches of two records each, closed in order."""
    built = LogBuilder(tmp_path, **SMALL)
    for segment in range(3):
        if segment:
            built.roll()
        for _ in range(10):
            built.append(2, value_size=40)
    return built.close()


def forget_clean_stop(data: Path, recovery_point: int = 0) -> None:
    (data / CLEAN_SHUTDOWN).unlink()
    (data / RECOVERY_POINT_CHECKPOINT).write_text(f"0\n1\norders 0 {recovery_point}\n")


class TestOtherFiles:
    def test_leftovers_are_removed(self, closed: LogBuilder) -> None:
        names = [
            f"{0:020d}.log.deleted",
            f"{7:020d}.timeindex.deleted",
            f"{7:020d}.snapshot.deleted",
            f"{0:020d}.log.cleaned",
            f"{0:020d}.index.tmp",
            f"{60:020d}.snapshot.tmp",
            "leader-epoch-checkpoint.tmp",
            "partition.metadata.tmp",
        ]
        for name in names:
            (closed.log_path / name).write_bytes(b"left over")
        closed._open()
        with closed:
            assert not [name for name in names if (closed.log_path / name).exists()]
            assert list(closed.log.records()) == closed.expected

    @pytest.mark.parametrize(
        "name",
        ["notes.txt", "notes.tmp", "report.deleted", "essay.swap", "42.log", "foo.index", ".hidden", "x.cleaned"],
    )
    def test_foreign_files_are_not_touched(self, closed: LogBuilder, name: str) -> None:
        (closed.log_path / name).write_bytes(b"mine")
        closed._open()
        with closed:
            assert list(closed.log.records()) == closed.expected
        assert (closed.log_path / name).read_bytes() == b"mine"

    @pytest.mark.parametrize("name", ["sub", "sub.deleted", "sub.tmp"])
    def test_foreign_directories_are_not_touched(self, closed: LogBuilder, name: str) -> None:
        (closed.log_path / name).mkdir()
        (closed.log_path / name / "file").write_bytes(b"mine")
        closed._open()
        with closed:
            assert list(closed.log.records()) == closed.expected
        assert (closed.log_path / name / "file").exists()

    def test_index_without_a_log_is_removed_and_reported(self, closed: LogBuilder) -> None:
        orphans = [closed.log_path / f"{5:020d}{suffix}" for suffix in (".index", ".timeindex", ".txnindex")]
        for path in orphans:
            path.write_bytes(bytes(8))
        closed._open()
        with closed:
            assert not [path for path in orphans if path.exists()]
            assert len([problem for problem in closed.log.recovery.problems if "without a log" in problem]) == 3

    def test_interrupted_compaction_is_finished(self, closed: LogBuilder) -> None:
        swap = closed.log_path / f"{0:020d}.log.swap"
        shutil.copy(closed.files(".log")[0], swap)
        with open_directory(closed.path, **SMALL) as directory:
            log = directory.log(*PARTITION)
            assert any("interrupted compaction" in problem for problem in log.recovery.problems)
            assert list(log.records()) == closed.expected
        assert not swap.exists()

    def test_corrupt_leader_epochs_are_rebuilt_from_the_batches(self, tmp_path: Path) -> None:
        self.with_epochs(tmp_path)
        (tmp_path / "orders-0" / "leader-epoch-checkpoint").write_bytes(b"0\n7\n")
        with open_directory(tmp_path, **SMALL) as directory:
            log = directory.log("orders", 0)
            assert log.leader_epochs.entries == [(0, 0), (4, 2), (9, 3)]
            assert any("leader-epoch-checkpoint" in problem for problem in log.recovery.problems)

    def test_missing_leader_epochs_are_rebuilt_from_the_batches(self, tmp_path: Path) -> None:
        self.with_epochs(tmp_path)
        (tmp_path / "orders-0" / "leader-epoch-checkpoint").unlink()
        with open_directory(tmp_path, **SMALL) as directory:
            log = directory.log("orders", 0)
            assert log.leader_epochs.entries == [(0, 0), (4, 2), (9, 3)]
            assert log.append(batch_of(1)).base_offset == 4

    def with_epochs(self, data: Path) -> None:
        with open_directory(data, **SMALL) as directory:
            log = directory.log("orders", 0)
            for epoch, count in ((0, 2), (4, 1), (9, 1)):
                log.append(batch_of(*[1] * count), leader_epoch=epoch)
                log.roll()


class TestCheckpoints:
    @pytest.mark.parametrize("content", [b"", b"garbage", b"0\n5\n", b"0\n1\norders 0 99999999999999999999\n"])
    @pytest.mark.parametrize("name", [RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT])
    @pytest.mark.parametrize("stop", ["clean", "crash"])
    def test_corrupt_checkpoint_loses_no_record(self, closed: LogBuilder, content: bytes, name: str, stop: str) -> None:
        (closed.path / name).write_bytes(content)
        if stop == "crash":
            (closed.path / CLEAN_SHUTDOWN).unlink()
        closed._open()
        with closed:
            assert list(closed.log.records()) == closed.history
            assert (closed.log.log_start_offset, closed.log.recovery.cut) == (0, None)

    def test_recovery_point_after_the_log_end_is_corrected(self, closed: LogBuilder) -> None:
        forget_clean_stop(closed.path, 10**9)
        closed._open()
        with closed:
            assert list(closed.log.records()) == closed.history
            assert closed.log.recovery_point == 60
            assert (closed.path / RECOVERY_POINT_CHECKPOINT).read_text() == "0\n1\norders 0 60\n"

    def test_start_after_the_log_end_is_removed_from_the_checkpoint(self, closed: LogBuilder) -> None:
        (closed.path / LOG_START_OFFSET_CHECKPOINT).write_text("0\n1\norders 0 65\n")
        closed._open()
        with closed:
            assert closed.log.log_start_offset == 0
            assert any("65" in problem for problem in closed.log.recovery.problems)
            for _ in range(5):
                closed.append(2)
            closed.reopen()
            assert closed.log.log_start_offset == 0
            assert list(closed.log.records()) == closed.history

    def test_empty_partition_starts_where_the_checkpoint_says(self, tmp_path: Path) -> None:
        (tmp_path / LOG_START_OFFSET_CHECKPOINT).write_text("0\n1\norders 0 65\n")
        with open_directory(tmp_path, **SMALL) as directory:
            log: Log = directory.log("orders", 0)
            assert (log.log_start_offset, log.log_end_offset) == (65, 65)
            assert log.append(batch_of(1)).base_offset == 65
