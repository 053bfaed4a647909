"""Opening a log after a crash, and with files that a bad disk or another program has changed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import CorruptBatchError
from stratalog.records._records import Record
from stratalog.records.batch import batches
from stratalog.storage.names import CLEAN_SHUTDOWN, RECOVERY_POINT_CHECKPOINT
from tests.storage.hand_made import (
    batch_of,
    files_of,
    flip,
    offsets_of,
    open_directory,
    write_clean_marker,
    write_segment,
)
from tests.storage.log_builder import PARTITION, LogBuilder

SMALL: dict[str, Any] = {"segment_index_bytes": 4096, "index_interval_bytes": 100, "retention_ms": -1}


@pytest.fixture
def closed(tmp_path: Path) -> LogBuilder:
    """A log of three segments with ten batches of two records each, closed in order."""
    built = LogBuilder(tmp_path, **SMALL)
    for segment in range(3):
        if segment:
            built.roll()
        for _ in range(10):
            built.append(2, value_size=40)
    return built.close()


def forget_clean_stop(data: Path, recovery_point: int = 0) -> None:
    (data / CLEAN_SHUTDOWN).unlink()
    (data / RECOVERY_POINT_CHECKPOINT).write_text(f"0\n1\norders 0 {recovery_point}\n")


def positions(log_file: Path) -> list[int]:
    return [batch.header.position for batch in batches(log_file.read_bytes())]


TORN: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda batch: bytes(len(batch)),
    "a few zeros": lambda batch: bytes(5),
    "half a header": lambda batch: batch[:30],
    "half a batch": lambda batch: batch[:-1],
    "wrong byte": lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]),
    "offset too low": lambda batch: struct.pack(">q", 3) + batch[8:],
    "length too long": lambda batch: batch[:8] + struct.pack(">i", 2**31 - 1) + batch[12:],
    "garbage": lambda batch: b"\xa5" * 200,
}


class TestTornTail:
    @pytest.mark.parametrize(
        ("how", "marker"),
        [(how, marker) for how in TORN for marker in ("crash", "clean") if (how, marker) != ("wrong byte", "clean")],
    )
    def test_torn_last_batch_is_truncated(self, closed: LogBuilder, how: str, marker: str) -> None:
        last = closed.files(".log")[-1]
        whole = last.read_bytes()
        last.write_bytes(whole + TORN[how](bytes(batch_of(1, base_offset=60))))
        if marker == "crash":
            forget_clean_stop(closed.path, 60)
        closed._open()
        with closed:
            assert list(closed.log.records()) == closed.expected
            cut = closed.log.recovery.cut
            assert cut is not None
            assert (cut.file, cut.position) == (str(last), len(whole))
            assert cut.bytes == len(TORN[how](bytes(batch_of(1, base_offset=60))))
            assert last.read_bytes()[: len(whole) + 1] == whole
            closed.append(2)
            assert list(closed.log.records()) == closed.expected

    def test_corrupt_batch_after_a_clean_shutdown_is_never_served(self, closed: LogBuilder) -> None:
        last = closed.files(".log")[-1]
        flip(last, positions(last)[-1] + 70)
        closed._open()
        with closed:
            assert offsets_of(closed.log, end=58) == list(range(58))
            with pytest.raises(CorruptBatchError) as caught:
                closed.log.read(58, 1000)
            assert (caught.value.file, caught.value.position) == (str(last), positions(last)[-1])

    @pytest.mark.parametrize("batch", [0, 4, 9])
    def test_log_ends_at_the_first_corrupt_batch_after_the_recovery_point(self, closed: LogBuilder, batch: int) -> None:
        middle = closed.files(".log")[1]
        flip(middle, positions(middle)[batch] + 65)
        forget_clean_stop(closed.path, 20)
        closed._open()
        with closed:
            end = 20 + batch * 2
            assert closed.log.log_end_offset == end
            assert list(closed.log.records()) == closed.history[:end]
            assert closed.log.recovery.segments_removed == [40]
            assert closed.log.recovery.cut is not None
            assert "checksum" in closed.log.recovery.cut.reason
            assert {path.name[:20] for path in closed.files(".log")} == {f"{0:020d}", f"{20:020d}"}
            assert closed.log.append(batch_of(1)).base_offset == end

    def test_segment_whose_batches_overlap_the_next_is_truncated(self, tmp_path: Path) -> None:
        partition = tmp_path / "orders-0"
        write_segment(partition, 0, batch_of(1), batch_of(2, 3, 4, base_offset=1))
        write_segment(partition, 2, batch_of(5, base_offset=2))
        with open_directory(tmp_path, **SMALL) as directory:
            log = directory.log("orders", 0)
            assert offsets_of(log) == [0]
            assert log.recovery.segments_removed == [2]


class TestDamageInTheMiddle:
    """Flushed batches are not scanned when the log is opened. They are checked when they are first read."""

    @pytest.mark.parametrize("stop", ["clean", "crash"])
    def test_corrupt_batch_is_named_and_the_rest_is_readable(self, closed: LogBuilder, stop: str) -> None:
        first = closed.files(".log")[0]
        damaged = positions(first)[5]
        flip(first, damaged + 70)
        if stop == "crash":
            forget_clean_stop(closed.path, 60)
        closed._open()
        with closed:
            log = closed.log
            assert closed.history[12:] == [record for at in range(12, 60) for record in log.records(at, at + 1)]
            assert closed.history[:10] == list(log.records(0, 10))
            for _ in range(2):
                with pytest.raises(CorruptBatchError) as caught:
                    log.read(10, 10)
                assert (caught.value.file, caught.value.position) == (str(first), damaged)
            sound = log.read(0, 10**6)
            assert (sound.slice.position, sound.slice.length) == (0, damaged)
            records: list[Record] = []
            with pytest.raises(CorruptBatchError):
                records.extend(log.records())
            assert log.read(12, 10**6).slice.length == first.stat().st_size - positions(first)[6]
            closed.append(2)
            assert log.append(batch_of(1)).base_offset == 62

    @pytest.mark.parametrize("field", [8, 11, 16], ids=["length high", "length low", "magic"])
    def test_corrupt_frame_is_an_error_and_later_batches_are_found_by_the_index(
        self, closed: LogBuilder, field: int
    ) -> None:
        first = closed.files(".log")[0]
        damaged = positions(first)[5]
        flip(first, damaged + field)
        closed._open()
        with closed:
            assert closed.history[14:] == list(closed.log.records(14))
            assert closed.history[:8] == list(closed.log.records(0, 8))
            with pytest.raises(CorruptBatchError) as caught:
                list(closed.log.records(10, 11))
            assert caught.value.file == str(first)

    def test_corrupt_base_offset_is_an_error(self, closed: LogBuilder) -> None:
        first = closed.files(".log")[0]
        flip(first, positions(first)[5] + 7, 0x20)
        closed._open()
        with closed:
            for offset in (10, 11):
                with pytest.raises(CorruptBatchError) as caught:
                    closed.log.read(offset, 10)
                assert caught.value.file == str(first)
            assert closed.history[:8] == list(closed.log.records(0, 8))
            assert closed.history[20:] == list(closed.log.records(20))


class TestIndexes:
    def served(self, built: LogBuilder) -> None:
        built._open()
        with built:
            for offset in (0, 7, 19, 20, 33, 45, 59):
                assert next(built.log.records(offset)) == built.history[offset]
                timestamp = built.history[offset].timestamp
                assert built.log.find_timestamp(timestamp) == (offset, timestamp)
            assert list(built.log.records()) == built.expected
            assert built.log.recovery.cut is None

    @pytest.mark.parametrize("stop", ["clean", "crash"])
    @pytest.mark.parametrize("suffix", [".index", ".timeindex"])
    @pytest.mark.parametrize(
        "damage",
        [None, b"", b"\0", bytes(16), bytes(4096), b"\xff" * 48, b"garbage of no use whatsoever"],
        ids=["missing", "empty", "one byte", "zeros", "many zeros", "ones", "garbage"],
    )
    def test_corrupt_index_is_rebuilt(self, closed: LogBuilder, damage: bytes | None, suffix: str, stop: str) -> None:
        good = files_of(closed.log_path, "index")
        for path in closed.files(suffix):
            path.unlink()
            if damage is not None:
                path.write_bytes(damage)
        if stop == "crash":
            forget_clean_stop(closed.path, 30)
        self.served(closed)
        again = files_of(closed.log_path, "index")
        for name, content in good.items():
            scanned = stop == "crash" and name >= f"{20:020d}"
            # An index with too few entries is correct and stays. So does the index of the active segment.
            few = damage is not None and len(damage) < 8
            may_stay = suffix == ".index" and (few or name >= f"{40:020d}")
            assert again[name] == content or (may_stay and not scanned), name

    def test_index_of_another_segment_is_not_used(self, closed: LogBuilder) -> None:
        first, second, third = (path.read_bytes() for path in closed.files(".index"))
        for path, content in zip(closed.files(".index"), (second[8:], first[16:], first), strict=True):
            path.write_bytes(content)
        assert first
        assert third is not None
        self.served(closed)

    def test_stale_index_that_ends_early_causes_no_error(self, closed: LogBuilder) -> None:
        for path in closed.files("index"):
            entry = 8 if path.suffix == ".index" else 12
            path.write_bytes(path.read_bytes()[: entry * 2])
        self.served(closed)

    def test_corrupt_byte_of_an_index_causes_no_wrong_result(self, closed: LogBuilder) -> None:
        files = {path: path.read_bytes() for path in closed.files("index")[:2]}
        logs = files_of(closed.log_path)
        for path, good in files.items():
            for position in range(0, len(good), 5):
                for name, content in logs.items():
                    (closed.log_path / name).write_bytes(content)
                flip(path, position, 0x91)  # including the sign bit
                write_clean_marker(closed.path)
                with open_directory(closed.path, **SMALL) as directory:
                    log = directory.log(*PARTITION)
                    for offset in (0, 5, 9, 13, 18, 19):
                        assert next(log.records(offset)) == closed.history[offset]
                        timestamp = closed.history[offset].timestamp
                        assert log.find_timestamp(timestamp) == (offset, timestamp)
