"""After a power cut, durable records are there, records that were never written are not, and appends work."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stratalog.errors import StorageError
from stratalog.storage import LogDirectory
from tests.campaigns import slow
from tests.storage.faults.checks import check_log
from tests.storage.faults.faulty_disk import FaultyDisk
from tests.storage.faults.model import AppendedBatch, Model
from tests.storage.faults.power_cut import PowerCuts
from tests.storage.faults.replica_workload import ReplicaWorkload
from tests.storage.faults.workload import Workload
from tests.storage.log_builder import PARTITION, LogBuilder, records_from


@pytest.mark.parametrize("seed", [0, 1, *(slow(seed) for seed in range(2, 6))])
def test_power_cut_loses_no_durable_record(scratch: Path, seed: int) -> None:
    PowerCuts(scratch, seed, images=20).run()


@pytest.mark.parametrize("seed", [0, 1, *(slow(seed) for seed in range(2, 6))])
def test_power_cut_loses_no_durable_record_of_a_replica(scratch: Path, seed: int) -> None:
    PowerCuts(scratch, seed, images=20, workload=ReplicaWorkload).run()


@pytest.mark.parametrize("failures", [1, 2, 3])
@pytest.mark.parametrize("reload", [False, True])
def test_flush_after_failed_flushes_writes_the_lost_pages_again(tmp_path: Path, failures: int, reload: bool) -> None:
    """The kernel reports a failed write once and drops the pages, so syncing again is not enough."""
    disk = FaultyDisk(tmp_path / "live")
    with LogBuilder(tmp_path / "live", disk=disk, segment_bytes=100_000) as built:
        built.append(5).flush().append(40, value_size=400)
        disk.fail_syncs = failures
        for _ in range(failures):
            with pytest.raises(StorageError, match="flush"):
                built.flush()
        if reload:
            _fail_a_truncation(built, disk)
        built.append(3).flush()
        disk.durable_image(tmp_path / "image")
        with LogDirectory.open(tmp_path / "image", built.config, background=False) as directory:
            assert list(directory.log(*PARTITION).records()) == built.expected
    disk.forget()


def _fail_a_truncation(built: LogBuilder, disk: FaultyDisk) -> None:
    """Fail in the middle, so that the log is loaded again from its files."""
    disk.fail_syncs = 1
    with pytest.raises(StorageError, match="truncate"):
        built.log.truncate(built.next_offset - 1)
    assert list(built.log.records()) == built.expected


def test_roll_after_a_failed_sync_writes_the_lost_pages_again(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "live")
    with LogBuilder(tmp_path / "live", disk=disk, segment_bytes=100_000) as built:
        built.append(40, value_size=400)
        disk.fail_syncs = 1
        with pytest.raises(StorageError, match="roll"):
            built.roll()
        built.roll()
        disk.durable_image(tmp_path / "image")
        with LogDirectory.open(tmp_path / "image", built.config, background=False) as directory:
            assert list(directory.log(*PARTITION).records()) == built.expected
    disk.forget()


def test_snapshot_after_a_truncation_is_removed_durably(tmp_path: Path) -> None:
    """The snapshot knows truncated batches, and new ones would count as their duplicates."""
    disk = FaultyDisk(tmp_path / "live")
    workload = Workload(tmp_path / "live", 0, disk, segment_bytes=100_000)
    first = _idempotent(0, 2, 0)
    workload.append_batches(first)
    workload.append_batches(_idempotent(2, 3, 2))
    workload.reopen()  # saves a snapshot for offset 5
    workload.flush()
    workload.log.truncate(2)
    workload.model = Model(first)
    workload.append_batches(_idempotent(2, 1, 2, generation=1))
    workload.append_batches(_idempotent(3, 4, 3, generation=1))
    workload.flush()
    disk.durable_image(tmp_path / "image")
    with LogDirectory.open(tmp_path / "image", workload.config, background=False) as directory:
        check_log(directory.log(*PARTITION), workload.model, random.Random(0))
    workload.directory.close()
    disk.forget()


def _idempotent(offset: int, count: int, sequence: int, generation: int = 0) -> list[AppendedBatch]:
    records = records_from(offset, count, generation=generation)
    return [AppendedBatch(records, 0, 1000, 0, sequence)]
