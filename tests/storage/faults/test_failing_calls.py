"""Any call of the disk may fail: the result is an error or success, never a torn log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.errors import StorageError
from stratalog.records._records import Record
from stratalog.storage import LogDirectory
from stratalog.storage.names import CLEAN_SHUTDOWN
from tests.campaigns import quick_and_full, slow
from tests.storage.faults.failing_calls import FailingCalls, open_descriptors
from tests.storage.faults.failing_disk import FAULTS, FailingDisk
from tests.storage.faults.faulty_disk import FaultyDisk
from tests.storage.faults.replica_workload import ReplicaWorkload
from tests.storage.log_builder import PARTITION, LogBuilder

# Seeds, and the distance between the calls that fail. bench.faults lets every call fail.
SAMPLES = [
    ("ENOSPC", 397, 1),
    ("short write", 97, 1),
    ("EIO", 397, 4),
    slow("ENOSPC", 47, 1),
    slow("short write", 19, 1),
    slow("EIO", 59, 1),
    slow("EMFILE", 29, 1),
    slow("EIO", 73, 4),
    slow("ENOSPC", 83, 9),
]


@pytest.fixture(autouse=True)
def no_log_records() -> Iterator[None]:
    """pytest keeps log records, and the errors in them keep files open."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("fault", "apart", "length"), SAMPLES)
def test_failing_call_leaves_no_torn_state(scratch: Path, fault: str, apart: int, length: int) -> None:
    before = open_descriptors()
    nth = 1
    while FailingCalls(scratch / str(nth), len(fault) + length, fault, nth, length).run():
        assert open_descriptors() == before, f"{fault} at call {nth} leaves descriptors open"
        nth += apart
    assert nth > apart, "the fault never struck"


@pytest.mark.parametrize(("fault", "apart", "length"), SAMPLES)
def test_failing_call_leaves_no_torn_state_of_a_replica(scratch: Path, fault: str, apart: int, length: int) -> None:
    nth = 1
    while FailingCalls(scratch / str(nth), len(fault) + length, fault, nth, length, ReplicaWorkload).run():
        nth += apart
    assert nth > apart, "the fault never struck"


@pytest.mark.parametrize("apart", quick_and_full(13, 3))
@pytest.mark.parametrize("fault", list(FAULTS))
def test_directory_that_failed_to_open_can_be_opened(tmp_path: Path, fault: str, apart: int) -> None:
    """No lock, no open descriptor and no incomplete file remains, whichever call of opening fails."""
    expected = LogBuilder(tmp_path / "data", segment_bytes=1024).append_until(4000).close().expected
    before = open_descriptors()
    disk = FailingDisk()
    for nth in range(1, 200, apart):
        disk.arm(fault, nth)
        try:
            _read_all(tmp_path / "data", disk)
        except StorageError:
            assert disk.struck
        if not disk.struck:
            break
        assert open_descriptors() == before, f"call {nth}, {disk.struck}, leaves descriptors open"
        disk.heal()
        assert _read_all(tmp_path / "data", disk) == expected


def _read_all(path: Path, disk: FailingDisk) -> list[Record]:
    with LogDirectory.open(path, disk=disk, background=False) as directory:
        return list(directory.log(*PARTITION).records())


def test_log_whose_close_failed_is_not_marked_as_closed_in_order(tmp_path: Path) -> None:
    disk = FailingDisk()
    built = LogBuilder(tmp_path, disk=disk).append(3)
    disk.arm("EIO", 1, 3)
    with pytest.raises(StorageError):
        built.log.close()
    disk.heal()
    built.directory.close()
    assert not (tmp_path / CLEAN_SHUTDOWN).exists(), "the marker says that all logs were closed in order"


def test_log_whose_close_failed_is_not_durable_when_opened_again(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    with LogBuilder(tmp_path, disk=disk) as built:
        built.reopen().append(3)
        disk.fail_syncs = 1
        with pytest.raises(StorageError):
            built.log.close()
        again = built.directory.log(*PARTITION)
        assert list(again.records()) == built.expected
        assert again.recovery_point == 0, "records that no sync has covered count as durable"
    disk.forget()
