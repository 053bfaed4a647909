from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from stratalog.clock import ManualClock
from stratalog.errors import (
    BatchLargerThanSegmentError,
    CorruptBatchError,
    DecompressedTooLargeError,
    FencedLeaderEpochError,
    InvalidRecordError,
    LogClosedError,
    MessageTooLargeError,
    StratalogError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from stratalog.records._records import Record
from stratalog.records.batch import batches
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType
from stratalog.records.legacy import build_message_set
from stratalog.storage import Appended, Log, LogConfig, LogDirectory, Origin
from tests.storage.hand_made import START_MS, batch_of, files_of, offsets_of, open_directory, timed
from tests.storage.log_builder import LogBuilder

SMALL: dict[str, Any] = {"segment_bytes": 8000, "segment_index_bytes": 1024}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with open_directory(tmp_path, clock=clock, max_message_bytes=4000, **SMALL) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(START_MS))
        yield log


def written(log: Log) -> bytes:
    return log.segments[-1].path(".log").read_bytes()


def test_offsets_continue_from_append_to_append(log: Log) -> None:
    assert log.append(batch_of(1, 2, 3)) == Appended(1, 3, 3)
    assert log.append(batch_of(9)) == Appended(4, 4, 9)
    assert (log.log_start_offset, log.log_end_offset) == (0, 5)
    assert offsets_of(log) == [0, 1, 2, 3, 4]


def test_batches_of_one_append_follow_each_other(log: Log) -> None:
    data = batch_of(5, 6) + batch_of(9, codec=Codec.LZ4) + batch_of(7, 8, 8)
    assert log.append(data) == Appended(1, 6, 9)
    headers = [batch.header for batch in batches(written(log))]
    assert [(header.base_offset, header.last_offset) for header in headers] == [(0, 0), (1, 2), (3, 3), (4, 6)]


def test_stored_bytes_differ_from_the_producers_only_in_offset_and_epoch(log: Log) -> None:
    data = batch_of(1, 2, codec=Codec.GZIP)
    sent = bytes(data)
    log.append(data, leader_epoch=5)
    stored = written(log)[-len(sent) :]
    assert stored == struct.pack(">q", 1) + sent[8:12] + struct.pack(">i", 5) + sent[16:]


def test_writable_buffer_is_stamped_in_place_and_read_only_ones_are_copied(log: Log) -> None:
    writable, read_only = batch_of(1), bytes(batch_of(2))
    before = bytes(read_only)
    log.append(writable)
    assert struct.unpack_from(">q", writable) == (1,)
    log.append(read_only)
    log.append(memoryview(before))
    assert read_only == before
    assert offsets_of(log) == [0, 1, 2, 3]


def test_any_kind_of_buffer_is_accepted(log: Log) -> None:
    padded = batch_of(1) + b"\0" * (-len(batch_of(1)) % 4)
    data = bytearray(build_batch(timed(1, size=8 + len(padded) - len(batch_of(1)))))
    assert len(data) % 4 == 0
    log.append(memoryview(data).cast("I"))
    assert offsets_of(log) == [0, 1]


def test_leader_epoch_is_stamped_and_remembered(log: Log, tmp_path: Path) -> None:
    log.append(batch_of(1))
    log.append(batch_of(2), leader_epoch=3)
    log.append(batch_of(3))
    assert [batch.header.leader_epoch for batch in batches(written(log))] == [0, 0, 3, 3]
    assert log.leader_epochs.entries == [(0, 0), (3, 2)]
    log.flush()
    assert (tmp_path / "orders-0" / "leader-epoch-checkpoint").read_bytes() == b"0\n2\n0 0\n3 2\n"


@pytest.mark.parametrize("epoch", [-1, 2])
def test_leader_of_an_older_epoch_is_fenced(log: Log, epoch: int) -> None:
    log.append(batch_of(1), leader_epoch=3)
    with pytest.raises(FencedLeaderEpochError, match=f"leader epoch is {epoch}; the log already has leader epoch 3"):
        log.append(batch_of(2), leader_epoch=epoch)
    assert log.log_end_offset == 2


def test_epoch_too_large_for_its_field_is_refused_and_not_recorded(log: Log, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2147483648"):
        log.append(batch_of(1), leader_epoch=2**31)
    assert log.leader_epochs.entries == [(0, 0)]
    assert log.append(batch_of(1)).base_offset == 1


def test_append_time_is_the_logs_clock_with_a_valid_checksum(tmp_path: Path, clock: ManualClock) -> None:
    with open_directory(tmp_path, clock=clock, message_timestamp_type="LogAppendTime") as directory:
        log = directory.log("orders", 0)
        clock.advance(77)
        assert log.append(batch_of(1, 2, 3, codec=Codec.ZSTD) + batch_of(4)) == Appended(0, 3, START_MS + 77)
        assert {(record.timestamp, record.timestamp_type) for record in log.records()} == {(START_MS + 77, 1)}
        for batch in batches(written(log)):
            assert batch.header.max_timestamp == START_MS + 77
            batch.check_crc()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_wrong_max_timestamp_is_corrected(log: Log, codec: Codec) -> None:
    data = batch_of(500, 900, 700, codec=codec)
    struct.pack_into(">q", data, 35, 2**60)
    assert log.append(sealed(data)) == Appended(1, 3, 900)
    *_, batch = batches(written(log))
    assert batch.header.max_timestamp == 900
    batch.check_crc()


def sealed(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return data


def with_field(position: int, kind: str, value: int, **fields: Any) -> bytearray:
    data = batch_of(1, 2, 3, **fields)
    struct.pack_into(f">{kind}", data, position, value)
    return sealed(data)


def with_payload(payload: bytes, codec: int) -> bytearray:
    data = batch_of(1)[:61] + payload
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, codec)
    return sealed(data)


def damaged(position: int) -> bytearray:
    data = batch_of(1, 2, 3)
    data[position] ^= 1
    return data


REFUSED: dict[str, tuple[Callable[[], bytes | bytearray], type[StratalogError], str]] = {
    "nothing": (lambda: b"", CorruptBatchError, "0 of 0 bytes"),
    "half a batch": (lambda: batch_of(1)[:-1], CorruptBatchError, "not a complete record batch"),
    "a batch and a half": (lambda: batch_of(1) + batch_of(1)[:-1], CorruptBatchError, "not a complete record batch"),
    "wrong checksum": (lambda: damaged(-1), CorruptBatchError, "checksum of the batch at offset 0"),
    "second checksum wrong": (lambda: batch_of(1) + damaged(-1), CorruptBatchError, "checksum"),
    "wrong count": (lambda: with_field(57, "i", 4), InvalidRecordError, "record count is 4"),
    "count and delta wrong": (lambda: with_field(23, "i", 5), InvalidRecordError, "last offset delta 5"),
    "delta of a record wrong": (lambda: two_first_records(), InvalidRecordError, "record 1 of 2: offset delta"),
    "control batch": (
        lambda: build_control_batch(ControlType.COMMIT, 1, 0, 0, 5), InvalidRecordError, "the control bit is set"
    ),
    "magic 1": (lambda: build_message_set(plain(), magic=1), UnsupportedMagicError, "magic is 1"),
    "codec 6": (lambda: with_field(21, "h", 6), UnsupportedCodecError, "codec is 6"),
    "garbage for gzip": (lambda: with_payload(b"not gzip", Codec.GZIP), CorruptBatchError, "gzip"),
    "too large": (lambda: batch_of(1, size=4000), MessageTooLargeError, r"max\.message\.bytes is 4000"),
    "larger than a segment": (
        lambda: batch_of(1, size=3000) * 3, BatchLargerThanSegmentError, r"more than segment\.bytes, 8000"
    ),
    "transactional without producer": (lambda: with_field(21, "h", 16), InvalidRecordError, "producer id is -1"),
}  # fmt: skip


def plain() -> list[Record]:
    return [Record(timestamp=1, key=b"k", value=b"v")]


def two_first_records() -> bytearray:
    """Return a batch of two records, both with offset delta 0."""
    data = with_payload(bytes(batch_of(1)[61:]) * 2, Codec.NONE)
    struct.pack_into(">i", data, 23, 1)
    struct.pack_into(">i", data, 57, 2)
    return sealed(data)


@pytest.mark.parametrize("case", REFUSED)
def test_batch_that_is_not_valid_is_refused_and_the_log_is_unchanged(log: Log, case: str) -> None:
    make, error, complaint = REFUSED[case]
    before, end = files_of(log.path), log.log_end_offset
    with pytest.raises(error, match=complaint):
        log.append(make())
    assert (log.log_end_offset, files_of(log.path)) == (end, before)
    assert log.append(batch_of(7)).base_offset == end
    assert offsets_of(log) == list(range(end + 1))


def test_decompression_bomb_is_refused_within_the_memory_limit(log: Log) -> None:
    bomb = build_batch([(None, bytes(2**28))], codec=Codec.GZIP)
    config = LogConfig(max_message_bytes=len(bomb))
    with LogDirectory.open(log.path.parent / "other", config, background=False) as directory:
        with pytest.raises(DecompressedTooLargeError):
            directory.log("bombs", 0).append(bomb)
        assert directory.log("bombs", 0).size == 0


def test_batch_larger_than_a_segment_is_refused_by_an_empty_log_too(tmp_path: Path) -> None:
    with open_directory(tmp_path, segment_bytes=256) as directory:
        log = directory.log("orders", 0)
        with pytest.raises(BatchLargerThanSegmentError, match=r"segment\.bytes, 256"):
            log.append(batch_of(1, size=256))
        fits = next(data for size in range(256, 0, -1) if len(data := batch_of(1, size=size)) <= 256)
        log.append(fits)
        assert log.size == len(fits) == 256


def test_control_batch_of_a_coordinator_is_appended(log: Log) -> None:
    marker = build_control_batch(ControlType.COMMIT, 1, 0, 0, START_MS)
    assert log.append(marker, origin=Origin.COORDINATOR) == Appended(1, 1, START_MS)
    assert offsets_of(log) == [0]


@pytest.mark.parametrize("key", [b"", b"\0\0", struct.pack(">hh", -1, 0), struct.pack(">hh", 0, 99)])
def test_unreadable_control_batch_leaves_the_log_unchanged(log: Log, key: bytes) -> None:
    marker = build_batch([(key, b"\0" * 6)], producer_id=1, producer_epoch=0, is_transactional=True, is_control=True)
    before = files_of(log.path)
    with pytest.raises(CorruptBatchError):
        log.append(marker, origin=Origin.COORDINATOR)
    assert (log.log_end_offset, files_of(log.path)) == (1, before)
    assert log.append(batch_of(7)).base_offset == 1


def test_closed_log_refuses_appends(tmp_path: Path) -> None:
    built = LogBuilder(tmp_path).append(3)
    built.close()
    with pytest.raises(LogClosedError):
        built.log.append(batch_of(1))
    with pytest.raises(LogClosedError):
        built.log.read(0, 100)
    assert built.log.is_closed
    built.log.close()
