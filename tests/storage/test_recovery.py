"""What a crash, a bad disk or another program left, and what opening the log makes of it."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import CorruptBatchError, StorageError
from stratalog.records._records import Record
from stratalog.records.batch import batches
from stratalog.storage import Log
from stratalog.storage.names import CLEAN_SHUTDOWN, LOG_START_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from tests.storage.hand_made import batch_of, files_of, flip, offsets_of, open_directory, say_clean, write_segment
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
    def test_torn_last_batch_is_cut_off(self, closed: LogBuilder, how: str, marker: str) -> None:
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

    def test_damaged_batch_behind_a_clean_stop_is_never_served(self, closed: LogBuilder) -> None:
        last = closed.files(".log")[-1]
        flip(last, positions(last)[-1] + 70)
        closed._open()
        with closed:
            assert offsets_of(closed.log, end=58) == list(range(58))
            with pytest.raises(CorruptBatchError) as caught:
                closed.log.read(58, 1000)
            assert (caught.value.file, caught.value.position) == (str(last), positions(last)[-1])

    @pytest.mark.parametrize("batch", [0, 4, 9])
    def test_log_ends_at_the_first_unsound_batch_behind_the_recovery_point(
        self, closed: LogBuilder, batch: int
    ) -> None:
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

    def test_segment_whose_batches_reach_into_the_next_is_cut(self, tmp_path: Path) -> None:
        partition = tmp_path / "orders-0"
        write_segment(partition, 0, batch_of(1), batch_of(2, 3, 4, base_offset=1))
        write_segment(partition, 2, batch_of(5, base_offset=2))
        with open_directory(tmp_path, **SMALL) as directory:
            log = directory.log("orders", 0)
            assert offsets_of(log) == [0]
            assert log.recovery.segments_removed == [2]


class TestDamageInTheMiddle:
    """What was flushed is not scanned when the log is opened; it is checked when it is first read."""

    @pytest.mark.parametrize("stop", ["clean", "crash"])
    def test_damaged_batch_is_named_and_the_rest_is_readable(self, closed: LogBuilder, stop: str) -> None:
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
            found: list[Record] = []
            with pytest.raises(CorruptBatchError):
                found.extend(log.records())
            assert log.read(12, 10**6).slice.length == first.stat().st_size - positions(first)[6]
            closed.append(2)
            assert log.append(batch_of(1)).base_offset == 62

    @pytest.mark.parametrize("field", [8, 11, 16], ids=["length high", "length low", "magic"])
    def test_damaged_frame_is_an_error_and_later_batches_are_found_by_the_index(
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

    def test_damaged_base_offset_is_an_error(self, closed: LogBuilder) -> None:
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
    def test_damaged_index_is_made_again(
        self, closed: LogBuilder, damage: bytes | None, suffix: str, stop: str
    ) -> None:
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
            # One with too few entries is no lie, and stays; so does the one of the growing segment.
            few = damage is not None and len(damage) < 8
            may_stay = suffix == ".index" and (few or name >= f"{40:020d}")
            assert again[name] == content or (may_stay and not scanned), name

    def test_index_of_another_segment_is_not_believed(self, closed: LogBuilder) -> None:
        first, second, third = (path.read_bytes() for path in closed.files(".index"))
        for path, content in zip(closed.files(".index"), (second[8:], first[16:], first), strict=True):
            path.write_bytes(content)
        assert first
        assert third is not None
        self.served(closed)

    def test_stale_index_that_ends_early_is_fine(self, closed: LogBuilder) -> None:
        for path in closed.files("index"):
            entry = 8 if path.suffix == ".index" else 12
            path.write_bytes(path.read_bytes()[: entry * 2])
        self.served(closed)

    def test_every_single_wrong_byte_of_an_index_is_harmless(self, closed: LogBuilder) -> None:
        files = {path: path.read_bytes() for path in closed.files("index")[:2]}
        logs = files_of(closed.log_path)
        for path, good in files.items():
            for position in range(0, len(good), 5):
                for name, content in logs.items():
                    (closed.log_path / name).write_bytes(content)
                flip(path, position, 0x11)
                say_clean(closed.path)
                with open_directory(closed.path, **SMALL) as directory:
                    log = directory.log(*PARTITION)
                    for offset in (0, 5, 9, 13, 18, 19):
                        assert next(log.records(offset)) == closed.history[offset]
                        timestamp = closed.history[offset].timestamp
                        assert log.find_timestamp(timestamp) == (offset, timestamp)


class TestOtherFiles:
    def test_leftovers_are_removed(self, closed: LogBuilder) -> None:
        names = [
            f"{0:020d}.log.deleted",
            f"{7:020d}.timeindex.deleted",
            f"{7:020d}.snapshot.deleted",
            f"{0:020d}.log.cleaned",
            f"{0:020d}.index.tmp",
            f"{60:020d}.snapshot.tmp",
            "leader-epoch-checkpoint.tmp",
            "partition.metadata.tmp",
        ]
        for name in names:
            (closed.log_path / name).write_bytes(b"left over")
        closed._open()
        with closed:
            assert not [name for name in names if (closed.log_path / name).exists()]
            assert list(closed.log.records()) == closed.expected

    @pytest.mark.parametrize(
        "name",
        ["notes.txt", "notes.tmp", "report.deleted", "essay.swap", "42.log", "foo.index", ".hidden", "x.cleaned"],
    )
    def test_files_of_others_are_left_alone(self, closed: LogBuilder, name: str) -> None:
        (closed.log_path / name).write_bytes(b"mine")
        closed._open()
        with closed:
            assert list(closed.log.records()) == closed.expected
        assert (closed.log_path / name).read_bytes() == b"mine"

    @pytest.mark.parametrize("name", ["sub", "sub.deleted", "sub.tmp"])
    def test_directories_of_others_are_left_alone(self, closed: LogBuilder, name: str) -> None:
        (closed.log_path / name).mkdir()
        (closed.log_path / name / "file").write_bytes(b"mine")
        closed._open()
        with closed:
            assert list(closed.log.records()) == closed.expected
        assert (closed.log_path / name / "file").exists()

    def test_index_without_a_log_is_removed_and_said(self, closed: LogBuilder) -> None:
        orphans = [closed.log_path / f"{5:020d}{suffix}" for suffix in (".index", ".timeindex", ".txnindex")]
        for path in orphans:
            path.write_bytes(bytes(8))
        closed._open()
        with closed:
            assert not [path for path in orphans if path.exists()]
            assert len([problem for problem in closed.log.recovery.problems if "without a log" in problem]) == 3

    def test_interrupted_compaction_is_refused_with_what_to_do(self, closed: LogBuilder) -> None:
        swap = closed.log_path / f"{0:020d}.log.swap"
        shutil.copy(closed.files(".log")[0], swap)
        with open_directory(closed.path, **SMALL) as directory:
            with pytest.raises(StorageError, match="start and stop that broker once") as caught:
                directory.log(*PARTITION)
            assert str(swap) in str(caught.value)
        assert swap.exists()

    def test_damaged_leader_epochs_are_read_from_the_batches(self, tmp_path: Path) -> None:
        self.with_epochs(tmp_path)
        (tmp_path / "orders-0" / "leader-epoch-checkpoint").write_bytes(b"0\n7\n")
        with open_directory(tmp_path, **SMALL) as directory:
            log = directory.log("orders", 0)
            assert log.leader_epochs.entries == [(0, 0), (4, 2), (9, 3)]
            assert any("leader-epoch-checkpoint" in problem for problem in log.recovery.problems)

    def test_lost_leader_epochs_are_read_from_the_batches(self, tmp_path: Path) -> None:
        self.with_epochs(tmp_path)
        (tmp_path / "orders-0" / "leader-epoch-checkpoint").unlink()
        with open_directory(tmp_path, **SMALL) as directory:
            log = directory.log("orders", 0)
            assert log.leader_epochs.entries == [(0, 0), (4, 2), (9, 3)]
            assert log.append(batch_of(1)).base_offset == 4

    def with_epochs(self, data: Path) -> None:
        with open_directory(data, **SMALL) as directory:
            log = directory.log("orders", 0)
            for epoch, count in ((0, 2), (4, 1), (9, 1)):
                log.append(batch_of(*[1] * count), leader_epoch=epoch)
                log.roll()


class TestCheckpoints:
    @pytest.mark.parametrize("content", [b"", b"garbage", b"0\n5\n", b"0\n1\norders 0 99999999999999999999\n"])
    @pytest.mark.parametrize("name", [RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT])
    @pytest.mark.parametrize("stop", ["clean", "crash"])
    def test_damaged_checkpoint_costs_nothing_but_time(
        self, closed: LogBuilder, content: bytes, name: str, stop: str
    ) -> None:
        (closed.path / name).write_bytes(content)
        if stop == "crash":
            (closed.path / CLEAN_SHUTDOWN).unlink()
        closed._open()
        with closed:
            assert list(closed.log.records()) == closed.history
            assert (closed.log.log_start_offset, closed.log.recovery.cut) == (0, None)

    def test_recovery_point_past_the_end_is_corrected(self, closed: LogBuilder) -> None:
        forget_clean_stop(closed.path, 10**9)
        closed._open()
        with closed:
            assert list(closed.log.records()) == closed.history
            assert closed.log.recovery_point == 60
            assert (closed.path / RECOVERY_POINT_CHECKPOINT).read_text() == "0\n1\norders 0 60\n"

    def test_start_past_the_end_is_not_used_now_or_later(self, closed: LogBuilder) -> None:
        (closed.path / LOG_START_OFFSET_CHECKPOINT).write_text("0\n1\norders 0 65\n")
        closed._open()
        with closed:
            assert closed.log.log_start_offset == 0
            assert any("65" in problem for problem in closed.log.recovery.problems)
            for _ in range(5):
                closed.append(2)
            closed.reopen()
            assert closed.log.log_start_offset == 0
            assert list(closed.log.records()) == closed.history

    def test_empty_partition_starts_where_the_checkpoint_says(self, tmp_path: Path) -> None:
        (tmp_path / LOG_START_OFFSET_CHECKPOINT).write_text("0\n1\norders 0 65\n")
        with open_directory(tmp_path, **SMALL) as directory:
            log: Log = directory.log("orders", 0)
            assert (log.log_start_offset, log.log_end_offset) == (65, 65)
            assert log.append(batch_of(1)).base_offset == 65
