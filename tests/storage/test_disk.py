"""The real disk: what it does when a system call does only a part of its work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stratalog.storage.disk import Disk


@pytest.mark.parametrize("most", [1, 3, 7])
def test_write_that_takes_several_calls_is_complete(tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: real(fd, memoryview(data)[:most], position))
    disk = Disk()
    fd = disk.open(tmp_path / "file", create=True)
    disk.write(fd, b"0123456789", 4)
    disk.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(4) + b"0123456789"


@pytest.mark.parametrize("most", [1, 3, 7])
def test_read_that_takes_several_calls_is_complete(tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: real(fd, min(size, most), position))
    disk = Disk()
    fd = disk.open(tmp_path / "file")
    assert disk.read(fd, 8, 1) == b"12345678"
    assert disk.read(fd, 100, 1) == b"123456789"
    disk.close(fd)
