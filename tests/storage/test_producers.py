"""Idempotent and transactional producers in a log, across reopening and crashes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import InvalidProducerEpochError, OutOfOrderSequenceError, StorageError
from stratalog.records.builder import build_control_batch
from stratalog.records.format import ControlType
from stratalog.storage import Appended, Log, LogConfig, LogDirectory, Origin
from stratalog.storage.disk import Disk
from stratalog.storage.transaction_index import AbortedTransaction
from tests.storage.hand_made import START_MS, batch_of, left_by_kill, offsets_of, open_directory, write_clean_marker

SETTINGS: dict[str, Any] = {"segment_index_bytes": 1024, "index_interval_bytes": 200, "segment_bytes": 2000}


def produced(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0, **fields: Any) -> bytearray:
    times = [START_MS + sequence + number for number in range(count)]
    return batch_of(*times, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **fields)


def transactional(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> bytearray:
    return produced(sequence, count, producer=producer, epoch=epoch, is_transactional=True)


def end(log: Log, kind: ControlType, *, producer: int = 7, epoch: int = 0) -> Appended:
    marker = build_control_batch(kind, producer, epoch, 3, START_MS)
    return log.append(marker, origin=Origin.COORDINATOR)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def directory(data: Path) -> Iterator[LogDirectory]:
    with open_directory(data, **SETTINGS) as directory:
        yield directory


@pytest.fixture
def log(directory: LogDirectory) -> Log:
    return directory.log("orders", 0)


def reopened(data: Path, directory: LogDirectory, how: str) -> LogDirectory:
    """Return the data directory as a new process would open it."""
    if how == "clean":
        directory.close()
        return open_directory(data, **SETTINGS)
    copy = left_by_kill(data, data.with_name("copy"))
    return open_directory(copy, **SETTINGS)


def test_repeated_batch_is_not_appended_again(log: Log) -> None:
    log.append(batch_of(1))
    first = log.append(produced(0, 3))
    again = log.append(produced(0, 3))
    assert first == Appended(1, 3, START_MS + 2)
    assert again == Appended(1, 3, START_MS + 2, duplicate=True)
    assert log.log_end_offset == 4


def test_last_five_batches_are_recognised_and_older_ones_refused(log: Log) -> None:
    for number in range(7):
        log.append(produced(number))
    for number in range(2, 7):
        assert log.append(produced(number)) == Appended(number, number, START_MS + number, duplicate=True)
    with pytest.raises(OutOfOrderSequenceError, match="sent sequence 1 where 7 was expected"):
        log.append(produced(1))
    assert log.log_end_offset == 7


def test_gap_is_refused_and_the_next_batch_accepted_afterwards(log: Log) -> None:
    log.append(produced(0, 2))
    with pytest.raises(OutOfOrderSequenceError, match="sent sequence 3 where 2 was expected"):
        log.append(produced(3))
    assert log.append(produced(2)).base_offset == 2


def test_sequence_wraps_in_and_between_batches(log: Log) -> None:
    log.append(produced(2**31 - 3, 2))
    log.append(produced(2**31 - 1, 3))
    assert log.append(produced(2)).base_offset == 5
    assert log.append(produced(2**31 - 1, 3)).duplicate


def test_new_epoch_replaces_the_old_one(log: Log) -> None:
    log.append(produced(0, 2))
    with pytest.raises(OutOfOrderSequenceError, match="starts producer epoch 1 with sequence 2 instead of 0"):
        log.append(produced(2, epoch=1))
    log.append(produced(0, epoch=1))
    with pytest.raises(InvalidProducerEpochError, match="has producer epoch 1 in this log"):
        log.append(produced(2))
    assert log.log_end_offset == 3


def test_batches_of_one_append_must_follow_each_other(log: Log) -> None:
    assert log.append(produced(0, 2) + produced(2) + produced(0, producer=8) + produced(3, 2)) == Appended(
        0, 5, START_MS + 4
    )
    with pytest.raises(OutOfOrderSequenceError, match="sent sequence 7 where 6 was expected"):
        log.append(produced(5) + produced(7))
    assert log.log_end_offset == 6


def test_old_epoch_after_a_new_one_in_one_append_is_refused(log: Log) -> None:
    with pytest.raises(InvalidProducerEpochError):
        log.append(produced(0, epoch=5) + produced(0, epoch=3))
    assert log.log_end_offset == 0


def test_new_epoch_in_one_append_starts_at_zero(log: Log) -> None:
    with pytest.raises(OutOfOrderSequenceError):
        log.append(produced(0, epoch=1) + produced(4, epoch=2))
    assert log.append(produced(0, epoch=1) + produced(0, epoch=2)).last_offset == 1


def test_append_of_duplicates_and_new_batches_is_refused(log: Log) -> None:
    log.append(produced(0) + produced(1))
    assert log.append(produced(0) + produced(1)) == Appended(0, 1, START_MS + 1, duplicate=True)
    for mixed in (produced(1) + produced(2), produced(1) + batch_of(5)):
        with pytest.raises(OutOfOrderSequenceError):
            log.append(mixed)
    assert log.append(produced(2)).base_offset == 2


@pytest.mark.parametrize("how", ["clean", "crash"])
def test_reopened_log_knows_the_last_sequences(data: Path, directory: LogDirectory, log: Log, how: str) -> None:
    for number in range(40):
        log.append(produced(number, size=60))
        log.append(produced(number * 2, 2, producer=8, size=60))
    assert len(log.segments) > 3
    with reopened(data, directory, how) as again:
        log = again.log("orders", 0)
        assert log.append(produced(39, size=60)).duplicate
        with pytest.raises(OutOfOrderSequenceError):
            log.append(produced(41))
        assert log.append(produced(40)) == Appended(120, 120, START_MS + 40)
        assert log.append(produced(80, 2, producer=8)).base_offset == 121


@pytest.mark.parametrize("how", ["clean", "crash"])
def test_producers_are_rebuilt_without_snapshots(data: Path, directory: LogDirectory, log: Log, how: str) -> None:
    for number in range(40):
        log.append(produced(number, size=60))
    directory.close()
    for snapshot in (data / "orders-0").glob("*.snapshot"):
        snapshot.unlink()
    if how == "crash":
        (data / ".kafka_cleanshutdown").unlink()
    with open_directory(data, **SETTINGS) as again:
        log = again.log("orders", 0)
        assert [log.append(produced(number, size=60)).duplicate for number in range(35, 40)] == [True] * 5
        assert log.append(produced(40)).base_offset == 40


@pytest.mark.parametrize("damage", [b"", b"\0" * 10, b"garbage" * 9])
def test_corrupt_snapshot_is_removed_and_reported(data: Path, directory: LogDirectory, log: Log, damage: bytes) -> None:
    for number in range(40):
        log.append(produced(number, size=60))
    directory.close()
    newest = max((data / "orders-0").glob("*.snapshot"))
    newest.write_bytes(damage)
    with open_directory(data, **SETTINGS) as again:
        log = again.log("orders", 0)
        assert log.append(produced(39, size=60)).duplicate
        assert any(newest.name in problem for problem in log.recovery.problems)


def test_snapshot_after_the_log_end_is_removed(data: Path) -> None:
    partition = data / "orders-0"
    with open_directory(data, **SETTINGS) as directory:
        directory.log("orders", 0).append(produced(0))
    (partition / "00000000000000000009.snapshot").write_bytes(
        (partition / "00000000000000000001.snapshot").read_bytes()
    )
    with open_directory(data, **SETTINGS) as directory:
        assert directory.log("orders", 0).append(produced(0)).duplicate
        assert not (partition / "00000000000000000009.snapshot").exists()


def test_snapshots_do_not_accumulate_from_close_to_close(data: Path) -> None:
    for number in range(4):
        with open_directory(data, **SETTINGS) as directory:
            log = directory.log("orders", 0)
            log.append(produced(number))
            if number == 1:
                log.roll()
    names = sorted(path.name for path in (data / "orders-0").glob("*.snapshot"))
    assert names == [f"{offset:020d}.snapshot" for offset in (2, 4)]  # the last base offset and the log end offset


class TestTransactions:
    def test_open_transaction_is_known_until_its_marker(self, log: Log) -> None:
        log.append(batch_of(1))
        log.append(transactional(0, 2))
        log.append(transactional(0, producer=8))
        seen = [log.producers.first_open_transaction]
        end(log, ControlType.COMMIT)
        seen.append(log.producers.first_open_transaction)
        end(log, ControlType.COMMIT, producer=8)
        assert [*seen, log.producers.first_open_transaction] == [1, 3, None]
        assert not log.segments[0].path(".txnindex").exists()
        assert offsets_of(log) == [0, 1, 2, 3]

    def test_abort_is_indexed_in_the_segment_of_its_marker(self, log: Log) -> None:
        log.append(transactional(0, 2))
        log.append(transactional(0, producer=8))
        log.roll()
        end(log, ControlType.ABORT)
        end(log, ControlType.ABORT, producer=8)
        first, second = log.segments
        assert first.transaction_index.entries() == []
        assert second.transaction_index.entries() == [AbortedTransaction(7, 0, 3, 2), AbortedTransaction(8, 2, 4, 5)]

    def test_reader_gets_all_aborted_transactions_of_its_range_and_few_after_it(self, log: Log) -> None:
        """Over many segments and index entries. The transactions of producer 8 span some of producer 7's."""
        for number in range(60):
            if number % 6 == 0:
                log.append(transactional(number // 6, producer=8))
            log.append(transactional(number))
            end(log, ControlType.COMMIT if number % 3 == 0 else ControlType.ABORT)
            if number % 6 == 4:
                end(log, ControlType.ABORT, producer=8)
        every = [entry for segment in log.segments for entry in segment.transaction_index.entries()]
        assert len(log.segments) > 2
        most = 0
        for offset in range(log.log_end_offset):
            read = log.read(offset, 300)
            last = list(read.batches())[-1].header.last_offset
            listed = log.aborted_in(read, offset, log.log_end_offset)
            needed = [
                transaction
                for transaction in every
                if transaction.first_offset <= last and transaction.last_offset >= offset
            ]
            assert [transaction for transaction in every if transaction in listed] == listed
            assert set(needed) <= set(listed)
            most = max(most, len(listed))
        assert most < len(every) // 3

    def test_marker_without_a_transaction_is_not_indexed(self, log: Log) -> None:
        end(log, ControlType.ABORT)
        assert log.segments[0].transaction_index.entries() == []

    @pytest.mark.parametrize("how", ["clean", "crash"])
    @pytest.mark.parametrize("rolled", [False, True])
    def test_reopened_log_knows_open_and_aborted_transactions(
        self, data: Path, directory: LogDirectory, log: Log, how: str, rolled: bool
    ) -> None:
        log.append(transactional(0, 2))
        end(log, ControlType.ABORT)
        if rolled:
            log.roll()
        log.append(transactional(2))
        log.append(transactional(0, producer=8))
        end(log, ControlType.ABORT, producer=8)
        aborted = [AbortedTransaction(7, 0, 2, 3), AbortedTransaction(8, 4, 5, 3)]
        with reopened(data, directory, how) as again:
            log = again.log("orders", 0)
            entries = [entry for segment in log.segments for entry in segment.transaction_index.entries()]
            assert entries == aborted
            opened = [log.producers.first_open_transaction]
            end(log, ControlType.ABORT)
            opened.append(log.producers.first_open_transaction)
            assert opened == [3, None]
            assert log.segments[-1].transaction_index.entries()[-1] == AbortedTransaction(7, 3, 6, 7)

    @pytest.mark.parametrize("damage", [b"", b"torn"])
    def test_transaction_index_is_rebuilt_after_a_crash(
        self, data: Path, directory: LogDirectory, log: Log, damage: bytes
    ) -> None:
        log.append(transactional(0, 2))
        end(log, ControlType.ABORT)
        copy = left_by_kill(data, data.with_name("copy"))
        (copy / "orders-0" / "00000000000000000000.txnindex").write_bytes(damage)
        with open_directory(copy, **SETTINGS) as again:
            entries = again.log("orders", 0).segments[0].transaction_index.entries()
            assert entries == [AbortedTransaction(7, 0, 2, 3)]

    @pytest.mark.parametrize(("offset", "opened", "aborted"), [(2, 0, 0), (3, None, 1), (4, 3, 1), (5, 3, 1)])
    def test_truncated_log_forgets_truncated_markers(
        self, log: Log, offset: int, opened: int | None, aborted: int
    ) -> None:
        log.append(transactional(0, 2))
        end(log, ControlType.ABORT)
        log.append(transactional(2))
        log.append(transactional(3))
        end(log, ControlType.ABORT)
        log.truncate(offset)
        assert log.producers.first_open_transaction == opened
        assert len(log.segments[0].transaction_index.entries()) == aborted

    def test_truncated_producer_may_send_the_batch_again(self, log: Log) -> None:
        for number in range(30):
            log.append(produced(number, size=100))
        log.truncate(12)
        assert log.append(produced(11, size=100)).duplicate
        assert log.append(produced(12, size=100)) == Appended(12, 12, START_MS + 12)

    def test_marker_whose_index_entry_fails_is_never_half_recorded(self, data: Path) -> None:
        disk = NoTransactionIndex()
        with LogDirectory.open(data, LogConfig(**SETTINGS), disk=disk, background=False) as directory:
            log = directory.log("orders", 0)
            log.append(transactional(0, 2))
            with pytest.raises(StorageError):
                end(log, ControlType.ABORT)
            disk.fails = False
            after = log.log_end_offset
            assert log.append(batch_of(1)).base_offset == after
            assert [batch.header.base_offset for batch in log.read(0, 10_000).batches()][-1] == after
            aborted = log.segments[0].transaction_index.entries()
            assert (len(aborted), log.producers.first_open_transaction) in [(1, None), (0, 0)]
            assert end(log, ControlType.ABORT).last_offset == after + 1
            assert len(log.segments[0].transaction_index.entries()) == 1


class NoTransactionIndex(Disk):
    """A disk that is full when a .txnindex is opened for writing."""

    fails = True

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if self.fails and path.suffix == ".txnindex":
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, create=create, writable=writable)


def test_foreign_clean_marker_without_snapshot_does_not_forget_producers(data: Path) -> None:
    with open_directory(data, **SETTINGS) as directory:
        directory.log("orders", 0).append(produced(0))
    (data / "orders-0" / "00000000000000000001.snapshot").unlink()
    write_clean_marker(data)
    with open_directory(data, **SETTINGS) as directory:
        assert directory.log("orders", 0).append(produced(0)).duplicate


def test_marker_of_an_instance_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """It would end the transaction of the newer instance and let the older instance write again."""
    with LogDirectory.open(tmp_path, background=False) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(START_MS, producer_id=7, producer_epoch=5, base_sequence=0, is_transactional=True))
        with pytest.raises(InvalidProducerEpochError, match="a marker with producer epoch 3"):
            log.append(build_control_batch(ControlType.COMMIT, 7, 3, 0, START_MS), origin=Origin.COORDINATOR)
        assert (log.log_end_offset, log.producers.first_open_transaction) == (1, 0)
        log.append(build_control_batch(ControlType.COMMIT, 7, 5, 0, START_MS), origin=Origin.COORDINATOR)
        assert log.producers.first_open_transaction is None
