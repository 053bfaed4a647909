from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from stratalog.errors import StorageError
from stratalog.storage.disk import Disk
from stratalog.storage.transaction_index import AbortedTransaction, TransactionIndex
from tests.storage.hand_made import GOLDEN

GOLDEN_INDEXES = sorted(GOLDEN.glob("*/*.txnindex"))
ABORTED = [AbortedTransaction(7, 0, 5, 6), AbortedTransaction(8, 2, 9, 10), AbortedTransaction(7, 11, 14, 12)]


@pytest.fixture
def index(tmp_path: Path) -> TransactionIndex:
    index = TransactionIndex(Disk(), tmp_path / "00000000000000000000.txnindex")
    for aborted in ABORTED:
        index.append(aborted)
    return index


@pytest.mark.parametrize("path", GOLDEN_INDEXES, ids=lambda path: path.parent.name)
def test_kafkas_aborted_transactions_are_read_and_written_again(tmp_path: Path, path: Path) -> None:
    seen = json.loads((path.parent / "expected.json").read_text())["aborted"]
    expected = [AbortedTransaction(**aborted) for aborted in seen]
    assert expected
    assert TransactionIndex(Disk(), path).entries() == expected
    ours = TransactionIndex(Disk(), tmp_path / path.name)
    for aborted in expected:
        ours.append(aborted)
    assert ours.path.read_bytes() == path.read_bytes()


def test_file_does_not_exist_before_the_first_abort(tmp_path: Path) -> None:
    index = TransactionIndex(Disk(), tmp_path / "00000000000000000000.txnindex")
    assert index.entries() == []
    index.truncate(0)
    index.sync()
    index.reset()
    assert list(tmp_path.iterdir()) == []


def test_entries_stay_in_the_order_of_their_markers(index: TransactionIndex) -> None:
    index.sync()
    assert index.entries() == ABORTED
    assert index.path.stat().st_size == 3 * 34


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (5, 0), (6, 1), (9, 1), (10, 2), (14, 2), (15, 3)])
def test_truncation_drops_transactions_whose_marker_is_truncated(
    index: TransactionIndex, offset: int, left: int
) -> None:
    index.truncate(offset)
    assert index.entries() == ABORTED[:left]


def test_reset_removes_the_file(index: TransactionIndex) -> None:
    index.reset()
    assert not index.path.exists()
    assert index.entries() == []


def test_torn_entry_is_an_error_that_names_the_file(index: TransactionIndex) -> None:
    index.path.write_bytes(index.path.read_bytes()[:-1])
    with pytest.raises(StorageError, match=r"000\.txnindex: has 101 bytes, not a multiple of 34"):
        index.entries()


def test_unknown_version_is_an_error(index: TransactionIndex) -> None:
    index.path.write_bytes(struct.pack(">hqqqq", 1, 7, 0, 5, 6))
    with pytest.raises(StorageError, match="entry version is 1"):
        index.entries()
