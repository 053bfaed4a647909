"""Bytes that a fault leaves on the disk do not come back as records: each kind of leftover on its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import StorageError
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import ControlType
from stratalog.storage import LogDirectory, Origin, names
from stratalog.storage.disk import Disk
from tests.storage.faults.failing_disk import FailingDisk
from tests.storage.faults.faulty_disk import FaultyDisk
from tests.storage.log_builder import PARTITION, LogBuilder, batch_from, record_at, records_from

_TRANSACTIONAL: dict[str, Any] = {
    "producer_id": 7,
    "producer_epoch": 0,
    "base_sequence": 0,
    "is_transactional": True,
}


def found_after_kill(built: LogBuilder, scratch: Path) -> list[object]:
    with LogBuilder(built.left_by_kill(scratch / "killed"), segment_bytes=built.config.segment_bytes) as again:
        return list(again.log.records())


def test_complete_batches_of_a_failed_append_are_missing_after_a_kill(scratch: Path) -> None:
    """A short write may end after a complete batch, which looks valid."""
    disk = FailingDisk()
    with LogBuilder(scratch / "live", disk=disk) as built:
        built.append(2)
        disk.arm("short write", 1)
        with pytest.raises(StorageError, match="nothing was appended"):
            built.log.append(built.next_batch(1) * 6)
        disk.heal()
        assert found_after_kill(built, scratch) == built.expected
        built.reopen()
        assert list(built.log.records()) == built.expected


def test_torn_append_that_was_not_truncated_is_removed_by_the_close(scratch: Path) -> None:
    class NeitherWritesNorCuts(FailingDisk):
        def truncate(self, fd: int, size: int) -> None:
            self._may_fail("write")
            super().truncate(fd, size)

    disk = NeitherWritesNorCuts()
    with LogBuilder(scratch / "live", disk=disk) as built:
        built.append(2)
        disk.arm("short write", 1, length=2)
        with pytest.raises(StorageError, match="nothing was appended"):
            built.log.append(built.next_batch(1) * 6)
        assert disk.struck == ["write", "write"]
        disk.heal()
        built.reopen()
        assert list(built.log.records()) == built.expected


def test_segment_of_a_failed_roll_does_not_hide_later_records(scratch: Path) -> None:
    """Its files could not be removed either, so later records must not be in the old segment after its base offset."""

    class NeitherMapsNorRemoves(Disk):
        fails = False

        def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
            if self.fails and path.name.endswith(names.TIME_INDEX):
                raise OSError(28, "no room")
            return super().open(path, create=create, writable=writable)

        def remove(self, path: Path) -> None:
            if self.fails:
                raise OSError(5, "no")
            super().remove(path)

    disk = NeitherMapsNorRemoves()
    with LogBuilder(scratch / "live", disk=disk, segment_bytes=4000) as built:
        built.append(4)
        disk.fails = True
        with pytest.raises(StorageError, match="roll"):
            built.roll()
        disk.fails = False
        built.append(1).append(1)
        assert list(built.log.records()) == built.expected
        assert found_after_kill(built, scratch) == built.expected
        built.reopen()
        assert list(built.log.records()) == built.expected


def test_marker_whose_index_entry_failed_is_undone(scratch: Path) -> None:
    disk = FailingDisk()
    with LogBuilder(scratch / "live", disk=disk) as built:
        built.log.append(build_batch(records_from(0, 3), **_TRANSACTIONAL))
        marker = bytes(build_control_batch(ControlType.ABORT, 7, 0, 0, 1_700_000_000_000))
        disk.arm("EMFILE", 1)
        with pytest.raises(StorageError, match="nothing was appended"):
            built.log.append(marker, origin=Origin.COORDINATOR)
        disk.heal()
        assert built.log.log_end_offset == 3
        assert built.log.append(marker, origin=Origin.COORDINATOR).base_offset == 3
        assert built.log.append(batch_from(4)).base_offset == 4
        assert list(built.log.records()) == [*records_from(0, 3), record_at(4)]
        assert found_after_kill(built, scratch) == [*records_from(0, 3), record_at(4)]
        [aborted] = built.log.segments[0].transaction_index.entries()
        assert (aborted.first_offset, aborted.last_offset) == (0, 3)


def test_batches_after_a_corrupt_one_do_not_follow_newly_appended_ones(scratch: Path) -> None:
    """The new batch is as long as the corrupt one, so the batches after that must be gone from the file."""
    built = LogBuilder(scratch / "live").append(1, value_size=50).append(1, value_size=50).append(1, value_size=50)
    killed = built.left_by_kill(scratch / "killed")
    built.close()
    log_file = next(killed.rglob(f"*{names.LOG}"))
    content = bytearray(log_file.read_bytes())
    content[len(content) // 2] ^= 1
    log_file.write_bytes(content)
    length = len(build_batch([built.history[1]]))
    others = (record_at(1, seed=seed, value_size=50) for seed in range(1, 100))
    new = next(record for record in others if len(build_batch([record])) == length)
    with LogBuilder(killed) as recovered:
        assert recovered.log.log_end_offset == 1
        recovered.log.append(build_batch([new]))
        assert found_after_kill(recovered, scratch / "again") == [built.history[0], new]
        recovered.reopen()
        assert list(recovered.log.records()) == [built.history[0], new]


def test_aborted_transactions_of_a_lost_tail_are_not_listed(scratch: Path) -> None:
    """The log lost its last batches, but not its transaction index: new records would count as aborted."""
    with LogBuilder(scratch / "live") as built:
        built.append(2).roll()
        built.log.append(build_batch(records_from(2, 3), **_TRANSACTIONAL))
        built.log.append(build_control_batch(ControlType.ABORT, 7, 0, 0, 1), origin=Origin.COORDINATOR)
        killed = built.left_by_kill(scratch / "killed")
    names.segment_file(killed / str(PARTITION), 2, names.LOG).write_bytes(b"")
    with LogDirectory.open(killed, background=False) as directory:
        log = directory.log(*PARTITION)
        assert log.log_end_offset == 2
        assert [segment.transaction_index.entries() for segment in log.segments] == [[], []]


@pytest.mark.parametrize("offset", [3, 10, 25])
def test_truncation_is_durable_when_it_returns(scratch: Path, offset: int) -> None:
    _durably(scratch, lambda built: built.truncate(offset))


@pytest.mark.parametrize("offset", [3, 10, 25])
def test_advanced_start_is_durable_when_it_returns(scratch: Path, offset: int) -> None:
    _durably(scratch, lambda built: built.advance_start(offset))


def _durably(scratch: Path, change: Callable[[LogBuilder], object]) -> None:
    disk = FaultyDisk(scratch / "live")
    with LogBuilder(scratch / "live", disk=disk, segment_bytes=900) as built:
        while built.next_offset < 30:
            built.append(1, value_size=60)
        built.flush()
        change(built)
        disk.durable_image(scratch / "image")
        with LogBuilder(scratch / "image", segment_bytes=900) as again:
            assert again.log.log_start_offset == built.log.log_start_offset
            assert list(again.log.records()) == built.expected
    disk.forget()
