"""Transactions and idempotent producers in a compacted log: aborted records and unneeded markers are removed, and a
producer continues its sequence after a run and a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from stratalog.records.batch import Batch
from stratalog.records.builder import build_batch
from stratalog.records.format import ControlType
from stratalog.storage.names import CLEAN_SHUTDOWN
from tests.storage.compaction.keyed_log import DELETE_RETENTION_MS, KeyedLog

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


def of(producer: int, sequence: int, *, transactional: bool = True, epoch: int = 0) -> dict[str, Any]:
    return {
        "producer_id": producer,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "is_transactional": transactional,
    }


def markers(keyed: KeyedLog) -> list[int]:
    return [header.base_offset for header in keyed.headers() if header.is_control]


def aborted(keyed: KeyedLog) -> list[tuple[int, int, int]]:
    transactions = keyed.log.aborted_transactions(0, keyed.log.log_end_offset)
    return [
        (transaction.producer_id, transaction.first_offset, transaction.last_offset) for transaction in transactions
    ]


def test_aborted_records_are_removed_and_never_supersede_others(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1").put("a=aborted", "b=aborted", **of(1, 0)).end_transaction(ABORT, 1)
        keyed.put("b=2", **of(2, 0)).end_transaction(COMMIT, 2).put("c=1").roll()
        keyed.clean()
        assert keyed.pairs() == ["a=1", "b=2", "c=1"]


def test_interleaved_transactions_end_by_their_own_markers(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1", **of(1, 0)).put("b=1", **of(2, 0)).put("a=2", **of(1, 1))
        keyed.end_transaction(ABORT, 2).end_transaction(COMMIT, 1)
        keyed.put("b=2", **of(2, 1)).end_transaction(COMMIT, 2).put("a=3", **of(1, 2)).roll()
        keyed.put("c=1").end_transaction(ABORT, 1).roll()
        keyed.clean()
        assert keyed.pairs() == ["a=2", "b=2", "c=1"]
        assert aborted(keyed) == [(2, 1, 3), (1, 7, 9)]


def test_marker_of_an_aborted_transaction_outlives_its_records_by_delete_retention_ms(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1", **of(1, 0)).end_transaction(ABORT, 1)  # the marker has offset 1
        keyed.put("x=1", **of(1, 1, transactional=False)).roll()  # so that the batch above is not the producer's last
        keyed.clean()
        assert (markers(keyed), aborted(keyed)) == ([1], [(1, 0, 1)]), "the records go first"
        keyed.clean_again()
        assert (markers(keyed), aborted(keyed)) == ([1], []), "now it has a horizon"
        keyed.clock.advance(DELETE_RETENTION_MS - 1)
        keyed.clean_again()
        assert markers(keyed) == [1]
        keyed.clock.advance(1)
        keyed.clean_again()
        assert markers(keyed) == []
        assert keyed.pairs()[0] == "x=1"


def test_marker_of_a_committed_transaction_stays_while_one_record_of_it_does(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1", "b=1", **of(1, 0)).end_transaction(COMMIT, 1).put("a=2").roll()
        for _ in range(3):
            keyed.clean_again()
            keyed.clock.advance(2 * DELETE_RETENTION_MS)
        assert markers(keyed) == [2]
        keyed.put("b=2").put("y=1", **of(1, 2, transactional=False)).roll()
        for _ in range(3):
            keyed.clean_again()
            keyed.clock.advance(2 * DELETE_RETENTION_MS)
        assert markers(keyed) == []


def test_records_of_an_open_transaction_block_the_clean(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1").roll().put("a=2", **of(1, 0)).roll().put("a=3").roll()
        [cleaned] = keyed.clean()
        assert cleaned.first_dirty_offset == 1
        assert keyed.pairs() == ["a=1", "a=2", "a=3"]
        assert "transaction has been open since offset 1" in keyed.directory.cleaner.dirt_of(keyed.log).blocked_by
        keyed.end_transaction(ABORT, 1).roll().clean()
        assert keyed.pairs() == ["a=3"]


def test_aborted_transaction_is_removed_from_all_its_segments(tmp_path: Path) -> None:
    with KeyedLog(tmp_path, segment_bytes=400) as keyed:
        keyed.put("keep=1")
        for number in range(6):
            keyed.put(f"k{number}={'x' * 100}", **of(1, number)).roll()
        keyed.end_transaction(ABORT, 1).put("k3=late").roll()
        keyed.clean()
        assert keyed.pairs() == ["keep=1", "k3=late"]
        keyed.reopen()
        assert keyed.pairs() == ["keep=1", "k3=late"]
        assert aborted(keyed) == [(1, 1, 7)]


@pytest.mark.parametrize("lost", ["", "*.snapshot"])
def test_idempotent_producer_continues_after_a_run_and_a_restart(tmp_path: Path, lost: str) -> None:
    """All its records are superseded. Its last batch stays, without records."""
    with KeyedLog(tmp_path / "live") as keyed:
        keyed.put("a=1", **of(7, 0, transactional=False)).put("a=2", "b=2", **of(7, 1, transactional=False))
        keyed.put("a=3", "b=3").roll().clean()
        assert keyed.pairs() == ["a=3", "b=3"]
        [left] = [header for header in keyed.headers() if header.producer_id == 7]
        assert (left.record_count, left.base_offset, left.last_offset, left.last_sequence) == (0, 1, 2, 2)
        killed = keyed.left_by_kill(tmp_path / "killed")
    for path in (tmp_path / "live", killed):
        for snapshot in path.glob(f"*/{lost}") if lost else ():
            snapshot.unlink()
        with KeyedLog(path) as keyed:
            assert keyed.log.recovery.problems == []
            again = keyed.log.append(build_batch([(b"a", b"2"), (b"b", b"2")], **of(7, 1, transactional=False)))
            assert (again.duplicate, again.base_offset) == (True, 1)
            with pytest.raises(OutOfOrderSequenceError):
                keyed.put("a=9", **of(7, 7, transactional=False))
            keyed.put("a=4", **of(7, 3, transactional=False)).roll()
            keyed.clean()
            assert keyed.pairs() == ["b=3", "a=4"]
            assert [h.record_count for h in keyed.headers() if h.producer_id == 7] == [1], "the empty one is of no use"


def test_empty_batch_is_copied_unchanged_by_the_next_run(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1", **of(7, 0, transactional=False)).put("a=2").roll().clean()
        before = (keyed.log_path / f"{0:020}.log").read_bytes()
        keyed.clean_again()
        assert (keyed.log_path / f"{0:020}.log").read_bytes().startswith(before)


def test_empty_transactional_batch_keeps_its_marker(tmp_path: Path) -> None:
    for kind in (ABORT, COMMIT):
        with KeyedLog(tmp_path / kind.name) as keyed:
            keyed.put("a=1", **of(5, 0)).end_transaction(kind, 5).put("a=2").roll()
            for _ in range(4):
                keyed.clean_again()
                keyed.clock.advance(2 * DELETE_RETENTION_MS)
            assert [h.record_count for h in keyed.headers() if h.producer_id == 5] == [0, 1]
            for path in keyed.path.glob("*/*.snapshot"):
                path.unlink()
            killed = keyed.left_by_kill(tmp_path / f"{kind.name}-killed")
        with KeyedLog(killed) as keyed:
            assert keyed.log.producers.first_open_transaction is None
            keyed.put("b=1", **of(5, 1))


def test_marker_that_is_the_last_batch_of_a_producer_stays_empty(tmp_path: Path) -> None:
    """The marker has a new producer epoch, which fences the previous one."""
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1", **of(5, 0)).end_transaction(ABORT, 5, epoch=1).put("b=1").roll()
        for _ in range(3):
            keyed.clean_again()
            keyed.clock.advance(2 * DELETE_RETENTION_MS)
        left = [header for header in keyed.headers() if header.producer_id == 5]
        assert [(header.is_control, header.record_count, header.producer_epoch) for header in left] == [(True, 0, 1)]
        (keyed.reopen().path / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        assert keyed.log.recovery.problems == [], "an empty marker is no damage"
        with pytest.raises(InvalidProducerEpochError):
            keyed.put("a=9", **of(5, 1))
        keyed.put("a=2", **of(5, 0, epoch=1)).end_transaction(COMMIT, 5, epoch=1).roll()
        keyed.clean_again()
        assert [h.record_count for h in keyed.headers() if h.producer_id == 5] == [1, 1], (
            "the empty marker is of no use"
        )


def test_empty_marker_is_read_without_snapshots(tmp_path: Path) -> None:
    with KeyedLog(tmp_path / "live") as keyed:
        keyed.put("a=1", **of(5, 0)).end_transaction(ABORT, 5, epoch=1).put(
            "b=1", **of(6, 0, transactional=False)
        ).roll()
        for _ in range(3):
            keyed.clean_again()
            keyed.clock.advance(2 * DELETE_RETENTION_MS)
        killed = keyed.left_by_kill(tmp_path / "killed")
    for snapshot in killed.glob("*/*.snapshot"):
        snapshot.unlink()
    with KeyedLog(killed) as keyed:
        assert keyed.log.recovery.problems == []
        assert [producer.producer_id for producer in keyed.log.producers] == [6]


def test_all_batches_of_a_compacted_log_have_valid_checksums(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1", "b", **of(1, 0)).end_transaction(COMMIT, 1)
        keyed.put("a=2", "c", **of(2, 0)).end_transaction(ABORT, 2).put("b=3", codec=3).roll()
        for _ in range(3):
            keyed.clean_again()
            keyed.clock.advance(DELETE_RETENTION_MS)
        for segment in keyed.log.segments:
            for chunk in segment.scan():
                assert all(Batch(chunk.buffer, header).crc_matches() for header in chunk.headers)
