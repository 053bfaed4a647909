from __future__ import annotations

import os
from pathlib import Path

import pytest

from stratalog.errors import CorruptCheckpointError, StorageError
from stratalog.inspect import checkpoint_files
from stratalog.inspect.read_only_file import LARGEST_SMALL_FILE, ReadOnlyFile, read_small


def test_named_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        ReadOnlyFile(tmp_path / "pipe")


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises((StorageError, IsADirectoryError)):
        ReadOnlyFile(tmp_path)


def test_access_time_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    os.utime(path, ns=(1, 1))
    assert read_small(path) == b"content"
    assert path.stat().st_atime_ns == 1


def test_huge_checkpoint_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    with path.open("wb") as file:
        file.truncate(LARGEST_SMALL_FILE + 1)
    with pytest.raises(StorageError, match="the limit of such a file is"):
        checkpoint_files.read_epochs(path)


def test_empty_checkpoint_has_no_entries(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.touch()
    assert checkpoint_files.read_offsets(path) == {}
    assert checkpoint_files.read_epochs(path) == []


@pytest.mark.parametrize("line", ["orders 0 " + "9" * 5000, "orders x 1", "orders 0", "ordérs 0 1"])
def test_garbage_in_a_checkpoint_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text(f"0\n1\n{line}\n")
    with pytest.raises(CorruptCheckpointError):
        checkpoint_files.read_offsets(path)


def test_empty_partition_metadata_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    path.touch()
    with pytest.raises(CorruptCheckpointError):
        checkpoint_files.read_topic_id(path)
