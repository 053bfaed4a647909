"""Leader epochs are saved before the recovery point passes their first batch, not by the append that begins them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.records.builder import build_batch
from stratalog.storage import Log, LogDirectory
from stratalog.storage.disk import Disk
from stratalog.storage.leader_epochs import LeaderEpochs
from stratalog.storage.names import LEADER_EPOCH_CHECKPOINT
from tests.storage.faults.faulty_disk import FaultyDisk
from tests.storage.log_builder import PARTITION, LogBuilder

Entries = list[tuple[int, int]]


class WatchedDisk(Disk):
    """Counts syncs and renames, and calls a test's function in the middle of a flush or a save."""

    def __init__(self) -> None:
        self.waits = 0
        self.before_sync: Callable[[], None] | None = None
        self.before_rename: Callable[[], None] | None = None

    def sync(self, fd: int) -> None:
        self._call("before_sync")
        self.waits += 1

    def sync_directory(self, path: Path) -> None:
        self.waits += 1

    def rename(self, source: Path, target: Path) -> None:
        self.waits += 1
        if source.name.startswith(LEADER_EPOCH_CHECKPOINT):
            self._call("before_rename")
        super().rename(source, target)

    def _call(self, name: str) -> None:
        call = getattr(self, name)
        setattr(self, name, None)
        if call is not None:
            call()


def append(log: Log, epoch: int, count: int = 2) -> None:
    log.append(build_batch([(None, b"value")] * count), leader_epoch=epoch)


def epochs_in(path: Path) -> Entries:
    with LogDirectory.open(path, background=False) as directory:
        return directory.log(*PARTITION).leader_epochs.entries


def saved(built: LogBuilder) -> str:
    file = built.log_path / LEADER_EPOCH_CHECKPOINT
    return file.read_text() if file.exists() else ""


def test_append_that_begins_an_epoch_does_not_touch_the_disk(tmp_path: Path) -> None:
    disk = WatchedDisk()
    with LogBuilder(tmp_path, disk=disk) as built:
        before = disk.waits
        for epoch in (0, 3):
            append(built.log, epoch)
        assert disk.waits == before
        assert built.log.leader_epochs.entries == [(0, 0), (3, 2)]


@pytest.mark.parametrize("make_durable", [Log.flush, Log.roll, Log.close])
def test_epochs_are_saved_before_the_recovery_point_passes_their_batches(
    tmp_path: Path, make_durable: Callable[[Log], None]
) -> None:
    with LogBuilder(tmp_path) as built:
        append(built.log, 0)
        append(built.log, 3)
        assert saved(built) == ""
        make_durable(built.log)
        assert saved(built) == "0\n2\n0 0\n3 2\n"


def test_unsaved_epochs_survive_a_kill(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "live") as built:
        append(built.log, 0)
        built.log.flush()
        built.log.save_recovery_point()
        for epoch in (3, 7):
            append(built.log, epoch)
        assert saved(built) == "0\n1\n0 0\n"
        left = built.left_by_kill(tmp_path / "left")
    with LogDirectory.open(left, background=False) as directory:
        log = directory.log(*PARTITION)
        assert log.leader_epochs.entries == [(0, 0), (3, 2), (7, 4)]
        append(log, 7)  # the same epoch does not begin again
        assert log.leader_epochs.entries == [(0, 0), (3, 2), (7, 4)]
    assert epochs_in(left) == [(0, 0), (3, 2), (7, 4)]


def test_unsaved_epochs_survive_two_kills(tmp_path: Path) -> None:
    """The first start reads epochs from the batches and does not save them."""
    with LogBuilder(tmp_path / "live") as built:
        append(built.log, 4)
        left = built.left_by_kill(tmp_path / "left")
    with LogBuilder(left) as again:
        append(again.log, 5)
        left_again = again.left_by_kill(tmp_path / "again")
    assert epochs_in(left_again) == [(4, 0), (5, 2)]


def test_flushed_epochs_survive_a_power_cut(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "live")
    with LogBuilder(tmp_path / "live", disk=disk) as built:
        for epoch in (2, 6):
            append(built.log, epoch)
        built.log.flush()
        built.log.save_recovery_point()
        append(built.log, 9)  # lost in the power cut
        disk.durable_image(tmp_path / "image")
        assert epochs_in(tmp_path / "image") == [(2, 0), (6, 2)]
    disk.forget()


def test_epoch_that_begins_while_a_flush_runs_survives_a_kill(tmp_path: Path) -> None:
    disk = WatchedDisk()
    with LogBuilder(tmp_path / "live", disk=disk) as built:
        append(built.log, 0)
        disk.before_sync = lambda: append(built.log, 3)
        built.log.flush()
        built.log.save_recovery_point()
        assert built.log.recovery_point == 2
        assert epochs_in(built.left_by_kill(tmp_path / "left")) == [(0, 0), (3, 2)]


def test_epoch_that_begins_while_epochs_are_saved_is_saved_by_the_next_flush(tmp_path: Path) -> None:
    disk = WatchedDisk()
    with LogBuilder(tmp_path / "live", disk=disk) as built:
        append(built.log, 0)
        disk.before_rename = lambda: append(built.log, 3)
        built.log.flush()
        assert (saved(built), built.log.recovery_point) == ("0\n1\n0 0\n", 2)
        built.log.flush()
        assert (saved(built), built.log.recovery_point) == ("0\n2\n0 0\n3 2\n", 4)


def test_failed_save_does_not_move_the_recovery_point(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "live")
    with LogBuilder(tmp_path / "live", disk=disk) as built:
        append(built.log, 0)
        built.log.flush()
        append(built.log, 3)
        (built.log_path / f"{LEADER_EPOCH_CHECKPOINT}.tmp").mkdir()
        with pytest.raises(Exception, match="can't flush the log"):
            built.log.flush()
        assert built.log.recovery_point == 2
        (built.log_path / f"{LEADER_EPOCH_CHECKPOINT}.tmp").rmdir()
        built.log.flush()
        assert built.log.recovery_point == 4
        disk.durable_image(tmp_path / "image")
        assert epochs_in(tmp_path / "image") == [(0, 0), (3, 2)]
    disk.forget()


def test_truncation_forgets_an_unsaved_epoch(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "live") as built:
        append(built.log, 0)
        append(built.log, 3)
        built.log.truncate(2)
        append(built.log, 2)
        assert epochs_in(built.left_by_kill(tmp_path / "left")) == [(0, 0), (2, 2)]


def test_epochs_after_the_log_end_offset_are_removed_durably(tmp_path: Path) -> None:
    """Otherwise they would be valid again when the log has grown past them, as a later kill would show."""
    with LogBuilder(tmp_path / "live") as built:
        append(built.log, 0)
        left = built.left_by_kill(tmp_path / "left")
    (left / str(PARTITION) / LEADER_EPOCH_CHECKPOINT).write_text("0\n2\n0 0\n7 5\n")
    with LogBuilder(left) as again:
        assert again.log.leader_epochs.entries == [(0, 0)]
        append(again.log, 0, count=8)
        assert epochs_in(again.left_by_kill(tmp_path / "again")) == [(0, 0)]


@pytest.mark.parametrize("content", [None, b"garbage"])
def test_unsaved_epochs_are_rebuilt_without_the_file(tmp_path: Path, content: bytes | None) -> None:
    with LogBuilder(tmp_path / "live") as built:
        for epoch in (1, 2):
            append(built.log, epoch)
            built.log.roll()
        built.log.save_recovery_point()
        append(built.log, 5)
        left = built.left_by_kill(tmp_path / "left")
    file = left / str(PARTITION) / LEADER_EPOCH_CHECKPOINT
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert epochs_in(left) == [(1, 0), (2, 2), (5, 4)]
    assert file.read_text() == "0\n3\n1 0\n2 2\n5 4\n"  # closing saved it


def test_missing_file_of_a_cleanly_closed_log_is_saved_at_the_next_close(tmp_path: Path) -> None:
    with LogBuilder(tmp_path) as built:
        append(built.log, 4)
    (built.log_path / LEADER_EPOCH_CHECKPOINT).unlink()
    assert epochs_in(tmp_path) == [(4, 0)]
    assert saved(built) == "0\n1\n4 0\n"


def test_batch_of_an_older_epoch_in_between_changes_nothing() -> None:
    epochs = LeaderEpochs()
    assert [epochs.learn(*entry) for entry in ((5, 0), (3, 10), (5, 20), (6, 30), (-1, 40))] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert epochs.entries == [(5, 0), (6, 30)]
