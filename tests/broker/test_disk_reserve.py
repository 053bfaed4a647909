"""Room for what makes room: who gets the reserve on a full disk, and who does not."""

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
    """One that is full as long as the reserve is there."""
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


def test_the_reserve_has_real_blocks(tmp_path: Path) -> None:
    DiskWithReserve(tmp_path).keep_reserve()
    assert (tmp_path / RESERVE_FILE).stat().st_blocks * 512 >= RESERVE_BYTES


@pytest.mark.parametrize("name", [METADATA_FILE, "log-start-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_what_a_deletion_writes_gets_it(disk: DiskWithReserve, tmp_path: Path, name: str) -> None:
    disk.replace(tmp_path / name, b"smaller now")
    assert (tmp_path / name).read_bytes() == b"smaller now"
    assert not (tmp_path / RESERVE_FILE).exists()


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "partition.metadata"])
def test_what_an_append_writes_does_not(disk: DiskWithReserve, tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="No space left"):
        disk.replace(tmp_path / name, b"larger now")
    assert (tmp_path / RESERVE_FILE).exists()


def test_a_start_gets_it_and_what_comes_later_does_not(
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


def test_without_a_reserve_the_error_is_as_it_was(disk: DiskWithReserve, tmp_path: Path) -> None:
    disk.replace(tmp_path / METADATA_FILE, b"1")
    (tmp_path / RESERVE_FILE).mkdir()  # so that it can be neither removed nor made
    with pytest.raises(OSError, match="No space left"):
        disk.replace(tmp_path / METADATA_FILE, b"2")
    disk.keep_reserve()
    assert (tmp_path / METADATA_FILE).read_bytes() == b"1"
