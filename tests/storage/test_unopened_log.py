"""A partition directory in which a log's file is not a regular file: a clear error, and no blocking on a named pipe."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.errors import StorageError, UnusablePartitionError
from stratalog.storage.unopened_log import UnopenedLog
from tests.storage.hand_made import START_MS, batch_of, open_directory

NAMES = [
    "00000000000000000000.log",
    "00000000000000000000.index",
    "00000000000000000000.timeindex",
    "00000000000000000000.txnindex",
    "00000000000000000001.snapshot",
    "00000000000000000009.log",
    "00000000000000000000.log.deleted",
    "00000000000000000000.log.swap",
    "leader-epoch-checkpoint",
    "partition.metadata",
]


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


KINDS: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a broken symbolic link": lambda path: path.symlink_to("nowhere"),
}


def made(data: Path) -> Path:
    with open_directory(data, segment_index_bytes=1024) as directory:
        directory.log("orders", 0).append(batch_of(START_MS))
    return data / "orders-0"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_entry_that_is_not_a_file_is_refused_with_its_kind_and_advice(tmp_path: Path, name: str, kind: str) -> None:
    path = made(tmp_path) / name
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    with open_directory(tmp_path, segment_index_bytes=1024) as directory:
        with pytest.raises(UnusablePartitionError) as caught:
            directory.log("orders", 0)
        assert str(caught.value).startswith(
            f"{path}: is {kind}, but the log of orders-0 has a file with this name; move it away"
        )
        directory.log("others", 0).append(batch_of(START_MS))


def test_socket_is_refused_with_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made(tmp_path))  # a socket's path may have at most 107 characters
    make_socket(Path("00000000000000000009.log"))
    with (
        open_directory(tmp_path, segment_index_bytes=1024) as directory,
        pytest.raises(UnusablePartitionError, match="is a socket"),
    ):
        directory.log("orders", 0)


def test_entry_with_another_name_is_ignored(tmp_path: Path) -> None:
    path = made(tmp_path)
    os.mkfifo(path / "notes")
    (path / "backup").mkdir()
    with open_directory(tmp_path, segment_index_bytes=1024) as directory:
        assert directory.log("orders", 0).log_end_offset == 1


def test_segment_may_be_a_symbolic_link_to_a_file(tmp_path: Path) -> None:
    path = made(tmp_path / "data") / NAMES[0]
    path.rename(tmp_path / "elsewhere.log")
    path.symlink_to(tmp_path / "elsewhere.log")
    with open_directory(tmp_path / "data", segment_index_bytes=1024) as directory:
        assert directory.log("orders", 0).log_end_offset == 1


def test_every_operation_on_an_unopened_log_fails_with_the_reason(tmp_path: Path) -> None:
    with open_directory(tmp_path, segment_index_bytes=1024) as directory:
        log = directory.unopened_log("orders", 0, None, StorageError("the reason"))
        assert isinstance(log, UnopenedLog)
        for ask in (
            lambda: log.append(batch_of(START_MS)),
            lambda: log.read(0, 1000),
            lambda: log.find_timestamp(0),
            log.flush,
            log.roll,
            lambda: log.truncate(0),
            lambda: log.advance_start(0),
            log.apply_retention,
        ):
            with pytest.raises(StorageError, match="the reason"):
                ask()
        log.reconfigure(log.config)
        log.close()
        assert (log.size, log.log_end_offset, log.closed_in_order) == (0, 0, False)
