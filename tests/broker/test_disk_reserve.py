"""The disk reserve: which operations get it on a full disk, and which don't."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stratalog.broker.disk_reserve import RESERVE_BYTES, RESERVE_FILE, DiskWithReserve
from stratalog.broker.metadata.store import METADATA_FILE
from stratalog.storage.disk import Disk


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskWithReserve:
    """Return a disk that is full while the reserve exists."""
    disk = DiskWithReserve(tmp_path)
    disk.keep_reserve()
    disk.is_starting = False
    write = Disk.write

    def fails_while_full(self: Disk, fd: int, data: bytes, position: int) -> None:
        if (tmp_path / RESERVE_FILE).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, fd, data, position)

    monkeypatch.setattr(Disk, "write", fails_while_full)
    return disk


def test_the_reserve_has_allocated_blocks(tmp_path: Path) -> None:
    DiskWithReserve(tmp_path).keep_reserve()
    assert (tmp_path / RESERVE_FILE).stat().st_blocks * 512 >= RESERVE_BYTES


@pytest.mark.parametrize("name", [METADATA_FILE, "log-start-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_writes_of_a_deletion_get_the_reserve(disk: DiskWithReserve, tmp_path: Path, name: str) -> None:
    disk.replace(tmp_path / name, b"smaller now")
    assert (tmp_path / name).read_bytes() == b"smaller now"
    assert not (tmp_path / RESERVE_FILE).exists()


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "partition.metadata"])
def test_appends_do_not_get_the_reserve(disk: DiskWithReserve, tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="No space left"):
        disk.replace(tmp_path / name, b"larger now")
    assert (tmp_path / RESERVE_FILE).exists()


def test_a_start_gets_the_reserve_and_later_allocations_do_not(
    disk: DiskWithReserve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_while_full(self: Disk, fd: int, position: int, size: int) -> None:
        if (tmp_path / RESERVE_FILE).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Disk, "allocate", fails_while_full)
    with pytest.raises(OSError, match="No space left"):
        disk.allocate(0, 0, 1)
    disk.is_starting = True
    disk.allocate(0, 0, 1)
    assert not (tmp_path / RESERVE_FILE).exists()


def test_without_a_reserve_the_error_is_raised(disk: DiskWithReserve, tmp_path: Path) -> None:
    disk.replace(tmp_path / METADATA_FILE, b"1")
    (tmp_path / RESERVE_FILE).mkdir()  # so that it can be neither removed nor made
    with pytest.raises(OSError, match="No space left"):
        disk.replace(tmp_path / METADATA_FILE, b"2")
    disk.keep_reserve()
    assert (tmp_path / METADATA_FILE).read_bytes() == b"1"
