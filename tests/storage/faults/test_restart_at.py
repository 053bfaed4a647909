"""A log that restarts at another offset is empty there, or, after a crash in between, is as it was or empty."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import OffsetOutOfRangeError
from stratalog.storage import Log, LogDirectory
from stratalog.storage.names import segment_file
from tests.storage.faults.checks import check_goes_on
from tests.storage.faults.faulty_disk import FaultyDisk
from tests.storage.hand_made import left_by_kill, offsets_of
from tests.storage.log_builder import PARTITION
from tests.storage.replicas import CallingDisk, leaders_batch, open_follower

OFFSETS = [0, 3, 12, 24, 25, 1000]
PRODUCER: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0}


def fill(directory: LogDirectory) -> Log:
    """Fill a log: 24 records in 3 segments, a log start offset within the second one, epochs, a producer."""
    log = directory.log(*PARTITION)
    for offset in range(0, 24, 2):
        log.append_from_leader(leaders_batch(offset, 2, leader_epoch=offset // 5, base_sequence=offset, **PRODUCER))
        if offset in (6, 14):
            log.roll()
    log.advance_start(11)
    directory.high_watermarks.update({PARTITION: 22})
    log.save_recovery_point()
    assert [segment.base_offset for segment in log.segments] == [0, 8, 16]
    return log


def check_restarted(log: Log, offset: int) -> None:
    assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
    assert (list(log.records()), log.leader_epochs.entries, len(log.producers)) == ([], [], 0)
    assert [segment.base_offset for segment in log.segments] == [offset]


@pytest.mark.parametrize("offset", OFFSETS)
def test_restarted_log_is_empty_and_takes_batches(tmp_path: Path, offset: int) -> None:
    with open_follower(tmp_path / "data") as directory:
        log = fill(directory)
        read = log.read(11, 1000)
        log.restart_at(offset)
        assert read.slice.length
        check_restarted(log, offset)
        assert {path.name[:20] for path in log.path.glob("0*")} == {f"{offset:020d}"}
        with open_follower(left_by_kill(tmp_path / "data", tmp_path / "empty")) as crashed:
            check_restarted(crashed.log(*PARTITION), offset)
        assert directory.high_watermarks.get(PARTITION, -1) == -1
        log.append_from_leader(leaders_batch(offset, 3, leader_epoch=2))
        log.append_from_leader(leaders_batch(offset + 3, 1, leader_epoch=2))
        with open_follower(left_by_kill(tmp_path / "data", tmp_path / "copy")) as crashed:
            assert offsets_of(crashed.log(*PARTITION)) == list(range(offset, offset + 4))
    with open_follower(tmp_path / "data") as directory:
        log = directory.log(*PARTITION)
        assert (log.log_start_offset, log.leader_epochs.entries) == (offset, [(2, offset)])
        assert (log.recovery.clean, log.recovery.problems) == (True, [])
        check_goes_on(log)


def test_restart_of_an_empty_log(tmp_path: Path) -> None:
    with open_follower(tmp_path) as directory:
        log = directory.log(*PARTITION)
        for offset in (0, 50, 50, 7):
            log.restart_at(offset)
            check_restarted(log, offset)


@pytest.mark.parametrize("offset", [-1, 2**63 - 1])
def test_offset_that_is_not_valid_is_refused(tmp_path: Path, offset: int) -> None:
    with open_follower(tmp_path) as directory:
        log = fill(directory)
        with pytest.raises(OffsetOutOfRangeError, match=str(offset)):
            log.restart_at(offset)
        assert offsets_of(log) == list(range(11, 24))


def check_crashed(path: Path, offset: int) -> str:
    """Check a log that a crash left in the middle of restart_at(), and return which state it is in."""
    for _ in range(2):
        with open_follower(path) as directory:
            log = directory.log(*PARTITION)
            bounds, records = (log.log_start_offset, log.log_end_offset), offsets_of(log)
            assert bounds in ((11, 24), (24, 24), (offset, offset)), bounds
            assert records == list(range(*bounds))
    with open_follower(path) as directory:
        log = directory.log(*PARTITION)
        end = log.log_end_offset
        log.append_from_leader(leaders_batch(end, leader_epoch=9))
        log.apply_retention()
        assert offsets_of(log) == [*records, end]
    return "old" if records else "empty"


@pytest.mark.parametrize("offset", OFFSETS)
def test_kill_in_the_middle_brings_no_deleted_record_back(tmp_path: Path, offset: int) -> None:
    disk = CallingDisk()
    images: list[Path] = []
    with open_follower(tmp_path / "data", disk=disk) as directory:
        log = fill(directory)
        disk.before = lambda: images.append(left_by_kill(tmp_path / "data", tmp_path / f"image-{len(images)}"))
        log.restart_at(offset)
        disk.before = None
    states = [check_crashed(image, offset) for image in images]
    assert len(states) > 10
    assert states == sorted(states, reverse=True), "a later crash brought records back"


@pytest.mark.parametrize("offset", OFFSETS)
def test_power_cut_in_the_middle_brings_no_deleted_record_back(scratch: Path, offset: int) -> None:
    disk = FaultyDisk(scratch / "live")
    rng = random.Random(offset)
    images: list[Path] = []

    def cut_power() -> None:
        for _ in range(4):
            images.append(scratch / f"image-{len(images)}")
            disk.crash_image(rng, images[-1])

    with open_follower(scratch / "live", disk=disk) as directory:
        disk.sync_directory(scratch / "live")
        log = fill(directory)
        log.flush()
        disk.on_call = cut_power
        log.restart_at(offset)
        disk.on_call = None
        disk.durable_image(scratch / "durable")
    for image in images:
        check_crashed(image, offset)
    with open_follower(scratch / "durable") as directory:
        check_restarted(directory.log(*PARTITION), offset)
    disk.forget()


def test_leftover_files_of_an_interrupted_restart_are_not_served(tmp_path: Path) -> None:
    """The last segment had the log end offset, so it was to be removed after the others."""
    with open_follower(tmp_path / "data") as directory:
        log = fill(directory)
        log.flush()
        image = left_by_kill(tmp_path / "data", tmp_path / "image")
    checkpoint = image / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\norders 0 24\n")
    for suffix in (".log", ".index", ".timeindex"):
        segment_file(image / "orders-0", 8, suffix).unlink()
    with open_follower(image) as directory:
        log = directory.log(*PARTITION)
        assert (log.log_start_offset, log.log_end_offset, list(log.records())) == (24, 24, [])
        log.apply_retention()
        assert len(log.segments) == 1
