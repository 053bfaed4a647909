"""A follower's log is the leader's, byte for byte, and refuses what can't continue it."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest

from stratalog.clock import ManualClock
from stratalog.errors import (
    CorruptBatchError,
    FencedLeaderEpochError,
    LogClosedError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedMagicError,
)
from stratalog.records._records import Record
from stratalog.records.batch import batches
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType
from stratalog.records.legacy import build_message_set
from stratalog.storage import Log, Origin
from stratalog.storage.appending import WouldWaitError
from stratalog.storage.disk import Disk
from stratalog.storage.names import LEADER_EPOCH_CHECKPOINT
from tests.storage.faults.faulty_disk import FaultyDisk
from tests.storage.hand_made import batch_of, files_of, left_by_kill, offsets_of, timed
from tests.storage.log_builder import PARTITION, START_MS
from tests.storage.replicas import CallingDisk, Replicas, leaders_batch, open_follower

DATA_FILES = (".log", ".index", ".timeindex", ".txnindex")


def data_files(log: Log) -> dict[str, bytes]:
    return {name: content for suffix in DATA_FILES for name, content in files_of(log.path, suffix).items()}


def state(log: Log) -> tuple[Any, ...]:
    return log.log_start_offset, log.log_end_offset, list(log.records()), log.leader_epochs.entries, log.size


@pytest.mark.parametrize("max_bytes", [1, 700, 1_000_000])
def test_segments_of_leader_and_follower_are_equal_byte_for_byte(tmp_path: Path, max_bytes: int) -> None:
    with Replicas(tmp_path) as replicas:
        rng = random.Random(1)
        for _ in range(60):
            replicas.leader.append(rng.randint(1, 5), codec=rng.choice(list(Codec)))
            if rng.random() < 0.3:
                replicas.catch_up(max_bytes)
        replicas.catch_up(max_bytes)
        assert len(replicas.follower.segments) > 3
        assert list(replicas.follower.records()) == replicas.leader.expected
        leader, follower = replicas.leader.log, replicas.follower
    assert data_files(follower) == data_files(leader)


def test_segment_of_a_leader_that_rolled_elsewhere_is_copied_into_several(tmp_path: Path) -> None:
    """The follower has a smaller segment.bytes; also, one fetch may return more than it."""
    with Replicas(tmp_path, segment_bytes=100_000) as replicas:
        replicas.leader.append(5, batches=200)
        replicas.follower.reconfigure(replicas.leader.config.__class__(segment_bytes=1500, segment_index_bytes=1024))
        replicas.catch_up()
        assert max(segment.size for segment in replicas.follower.segments[1:]) <= 1500
        assert list(replicas.reopen_follower().records()) == replicas.leader.expected


def test_batch_larger_than_the_settings_allow_is_taken(tmp_path: Path) -> None:
    with open_follower(tmp_path, segment_bytes=300, max_message_bytes=100) as directory:
        log = directory.log(*PARTITION)
        data = leaders_batch(0) + leaders_batch(1, 100) + leaders_batch(101)
        assert log.append_from_leader(data) == 102
        assert [segment.base_offset for segment in log.segments] == [0, 1, 101]
        assert offsets_of(log) == list(range(102))


@pytest.mark.parametrize("wrap", [bytes, bytearray, lambda data: memoryview(bytearray(data))])
def test_incomplete_batch_at_the_end_is_left_out(tmp_path: Path, wrap: Any) -> None:
    with open_follower(tmp_path) as directory:
        log = directory.log(*PARTITION)
        first, second = leaders_batch(0, 3), leaders_batch(3, 2)
        for cut in (0, 1, 16, 60, 61, len(first) - 1):
            assert log.append_from_leader(wrap(first[:cut])) == 0
        for cut in (1, 16, 61, len(second) - 1):
            log.truncate(0)
            assert log.append_from_leader(wrap(first + second[:cut])) == 3
            assert log.size == len(first)
        assert log.append_from_leader(wrap(second)) == 5


def test_offsets_before_the_log_end_are_refused_with_both_offsets(tmp_path: Path) -> None:
    with open_follower(tmp_path) as directory:
        log = directory.log(*PARTITION)
        log.append_from_leader(leaders_batch(0, 5))
        before = state(log)
        for data in (leaders_batch(4, 3), leaders_batch(1, 2), leaders_batch(4) + leaders_batch(5)):
            with pytest.raises(OffsetOutOfRangeError, match=r"offsets [14] to [642], and the log ends at offset 5"):
                log.append_from_leader(data)
        assert state(log) == before


def test_gaps_of_a_compacted_leader_stay(tmp_path: Path) -> None:
    with open_follower(tmp_path) as directory:
        log = directory.log(*PARTITION)
        sparse = bytes(build_batch(timed(1, 2), base_offset=30, offset_deltas=[0, 7], leader_epoch=0))
        assert log.append_from_leader(leaders_batch(3) + leaders_batch(10, 2)) == 12
        assert log.append_from_leader(leaders_batch(12) + sparse) == 38
        assert log.append_from_leader(leaders_batch(100)) == 101
        assert offsets_of(log) == [3, 10, 11, 12, 30, 37, 100]
    with open_follower(tmp_path) as directory:
        assert offsets_of(directory.log(*PARTITION)) == [3, 10, 11, 12, 30, 37, 100]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_last_batch_after_a_gap_survives_a_kill(tmp_path: Path, count: int) -> None:
    """Recovery removes a last batch whose base offset seems to be corrupt, because no other batch follows a gap."""
    with open_follower(tmp_path / "data") as directory:
        log = directory.log(*PARTITION)
        log.append_from_leader(b"".join(leaders_batch(offset) for offset in range(3)))
        expected = [0, 1, 2]
        for gap in range(count):
            offset = 10 * (gap + 1)
            log.append_from_leader(leaders_batch(offset))
            expected.append(offset)
            with open_follower(left_by_kill(tmp_path / "data", tmp_path / f"copy-{gap}")) as crashed:
                assert offsets_of(crashed.log(*PARTITION)) == expected
        log.append_from_leader(leaders_batch(offset + 1) + leaders_batch(offset + 2))
        with open_follower(left_by_kill(tmp_path / "data", tmp_path / "copy")) as crashed:
            assert offsets_of(crashed.log(*PARTITION)) == [*expected, offset + 1, offset + 2]


def test_log_truncated_to_a_batch_after_a_gap_survives_a_kill(tmp_path: Path) -> None:
    disk = CallingDisk()
    images: list[Path] = []
    with open_follower(tmp_path / "data", disk=disk) as directory:
        log = directory.log(*PARTITION)
        log.append_from_leader(b"".join(leaders_batch(offset) for offset in (0, 1, 2, 10, 11)))
        disk.before = lambda: images.append(left_by_kill(tmp_path / "data", tmp_path / f"copy-{len(images)}"))
        assert log.truncate(11) == 11
        disk.before()
        disk.before = None
    for image in images:
        with open_follower(image) as crashed:
            assert offsets_of(crashed.log(*PARTITION)) in ([0, 1, 2, 10, 11], [0, 1, 2, 10])
    assert len(images) > 2


class TestCorruptBytes:
    def test_any_flipped_bit_under_the_checksum_is_refused(self, tmp_path: Path) -> None:
        good = leaders_batch(0, 2) + leaders_batch(2, 2)
        size = len(good) // 2
        with open_follower(tmp_path) as directory:
            log = directory.log(*PARTITION)
            before = state(log)
            for position in [*range(16, size), *range(size + 16, 2 * size)]:
                data = bytearray(good)
                data[position] ^= 0x40
                with pytest.raises((CorruptBatchError, UnsupportedMagicError)) as raised:
                    log.append_from_leader(data)
                if isinstance(raised.value, CorruptBatchError):
                    assert raised.value.position == position // size * size
                    assert "offset" in str(raised.value)
            assert state(log) == before
            assert log.append_from_leader(good) == 4

    @pytest.mark.parametrize("offset", [0, 2**62, 2**63 - 1])
    def test_offset_that_the_next_batch_contradicts_is_refused(self, tmp_path: Path, offset: int) -> None:
        data = leaders_batch(0, 2) + offset.to_bytes(8, "big") + leaders_batch(2)[8:] + leaders_batch(3)
        with open_follower(tmp_path) as directory:
            log = directory.log(*PARTITION)
            with pytest.raises(CorruptBatchError, match=rf"{offset}.* at position {len(leaders_batch(0, 2))}"):
                log.append_from_leader(data)
            assert state(log) == (0, 0, [], [], 0)

    def test_length_that_is_not_valid_is_refused(self, tmp_path: Path) -> None:
        data = leaders_batch(0, 2) + bytes(8) + b"\xff\xff\xff\xff" + bytes(60)
        with open_follower(tmp_path) as directory:
            log = directory.log(*PARTITION)
            with pytest.raises(CorruptBatchError, match="for offset 2 are not a record batch"):
                log.append_from_leader(data)
            assert log.log_end_offset == 0

    @pytest.mark.parametrize("magic", [0, 1])
    def test_old_formats_are_refused(self, tmp_path: Path, magic: int) -> None:
        data = build_message_set([Record(timestamp=1, key=b"key", value=b"value")], magic=magic)
        with open_follower(tmp_path) as directory:
            log = directory.log(*PARTITION)
            with pytest.raises(UnsupportedMagicError, match=f"has magic {magic}; a follower can only take magic 2"):
                log.append_from_leader(leaders_batch(0) + bytes(data))
            assert log.log_end_offset == 0

    def test_marker_that_can_not_be_read_is_refused(self, tmp_path: Path) -> None:
        data = build_batch(timed(1), is_control=True, producer_id=1, producer_epoch=0, leader_epoch=0)
        with open_follower(tmp_path) as directory:
            log = directory.log(*PARTITION)
            with pytest.raises(CorruptBatchError):
                log.append_from_leader(data)
            assert log.log_end_offset == 0


class TestLeaderEpochs:
    def test_epochs_of_the_batches_are_kept(self, tmp_path: Path) -> None:
        with open_follower(tmp_path) as directory:
            log = directory.log(*PARTITION)
            log.append_from_leader(leaders_batch(0, leader_epoch=3))
            log.append_from_leader(
                b"".join(leaders_batch(at, leader_epoch=epoch) for at, epoch in [(1, 3), (2, 5), (3, 5), (4, 9)])
            )
            assert log.leader_epochs.entries == [(3, 0), (5, 2), (9, 4)]
            stored = [batch.header.leader_epoch for batch in batches(log.segments[0].path(".log").read_bytes())]
            assert stored == [3, 3, 5, 5, 9]

    def test_epoch_is_durable_before_its_first_batch_is_written(self, tmp_path: Path) -> None:
        disk = FaultyDisk(tmp_path / "live")
        durable: list[str] = []

        class Watching(FaultyDisk):
            def write(self, fd: int, data: Any, position: int) -> None:
                if len(data) == len(leaders_batch(0)):
                    image = tmp_path / f"image-{len(durable)}"
                    self.durable_image(image)
                    durable.append((image / "orders-0" / LEADER_EPOCH_CHECKPOINT).read_text())
                super().write(fd, data, position)

        disk = Watching(tmp_path / "live")
        with open_follower(tmp_path / "live", disk=disk) as directory:
            log = directory.log(*PARTITION)
            disk.sync_directory(tmp_path / "live")
            log.append_from_leader(leaders_batch(0, leader_epoch=2))
            log.append_from_leader(leaders_batch(1, leader_epoch=2))
            log.append_from_leader(leaders_batch(2, leader_epoch=7))
        assert durable == ["0\n1\n2 0\n", "0\n1\n2 0\n", "0\n2\n2 0\n7 2\n"]
        disk.forget()

    def test_epochs_never_go_down(self, tmp_path: Path) -> None:
        with open_follower(tmp_path) as directory:
            log = directory.log(*PARTITION)
            log.append_from_leader(leaders_batch(0, leader_epoch=3))
            before = state(log)
            with pytest.raises(FencedLeaderEpochError, match=r"offset 1 has leader epoch 2, but .* has 3"):
                log.append_from_leader(leaders_batch(1, leader_epoch=2))
            mixed = b"".join(leaders_batch(at, leader_epoch=epoch) for at, epoch in [(1, 3), (2, 6), (3, 3)])
            with pytest.raises(FencedLeaderEpochError, match=r"offset 3 has leader epoch 3, but .* has 6"):
                log.append_from_leader(mixed)
            assert state(log) == before

    def test_new_leader_begins_its_epoch_durably(self, tmp_path: Path) -> None:
        disk = FaultyDisk(tmp_path / "live")
        with open_follower(tmp_path / "live", disk=disk) as directory:
            log = directory.log(*PARTITION)
            disk.sync_directory(tmp_path / "live")
            log.append_from_leader(leaders_batch(0, 3, leader_epoch=1))
            for _ in range(2):
                log.begin_epoch(4)
            disk.durable_image(tmp_path / "image")
            assert log.leader_epochs.entries == [(1, 0), (4, 3)]
            syncs = disk.syncs
            log.append(batch_of(START_MS), leader_epoch=4)
            log.begin_epoch(4)
            assert disk.syncs == syncs
            assert log.leader_epochs.entries == [(1, 0), (4, 3)]
            with pytest.raises(FencedLeaderEpochError, match="leader epoch is 3; the log already has leader epoch 4"):
                log.begin_epoch(3)
        checkpoint = tmp_path / "image" / "orders-0" / LEADER_EPOCH_CHECKPOINT
        assert checkpoint.read_text() == "0\n2\n1 0\n4 3\n"
        disk.forget()

    def test_epoch_without_batches_stays_after_a_restart(self, tmp_path: Path) -> None:
        with open_follower(tmp_path) as directory:
            directory.log(*PARTITION).append_from_leader(leaders_batch(0, 3, leader_epoch=1))
            directory.log(*PARTITION).begin_epoch(4)
        for _ in range(2):
            with open_follower(tmp_path) as directory:
                assert directory.log(*PARTITION).leader_epochs.entries == [(1, 0), (4, 3)]

    def test_epoch_without_batches_is_forgotten_by_a_truncation(self, tmp_path: Path) -> None:
        """Its leader wrote nothing, and the next leader knows nothing of it: the logs would never agree."""
        with open_follower(tmp_path) as directory:
            log = directory.log(*PARTITION)
            log.append_from_leader(leaders_batch(0, 3, leader_epoch=1))
            log.begin_epoch(4)
            assert log.truncate(3) == 3
            assert log.leader_epochs.entries == [(1, 0)]
            log.append_from_leader(leaders_batch(3, leader_epoch=2))
        with open_follower(tmp_path) as directory:
            assert directory.log(*PARTITION).leader_epochs.entries == [(1, 0), (2, 3)]


def test_producers_and_transactions_are_the_leaders(tmp_path: Path) -> None:
    producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    with Replicas(tmp_path) as replicas:
        leader = replicas.leader.log
        for sequence in range(8):
            leader.append(batch_of(START_MS, base_sequence=sequence, **producer))
        for number, kind in enumerate([ControlType.COMMIT, ControlType.ABORT, ControlType.ABORT]):
            transaction: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0, "is_transactional": True}
            leader.append(batch_of(START_MS, base_sequence=number, **transaction))
            leader.append(build_control_batch(kind, 9, 0, 1, START_MS), origin=Origin.COORDINATOR)
        replicas.catch_up(300)
        for log in (replicas.follower, replicas.reopen_follower()):
            assert log.producers.to_snapshot() == leader.producers.to_snapshot()
            assert log.aborted_transactions(0, 100) == leader.aborted_transactions(0, 100)
            assert len(log.aborted_transactions(0, 100)) == 2
        again = replicas.follower.append(batch_of(START_MS, base_sequence=7, **producer))
        assert (again.duplicate, again.base_offset) == (True, 7)


def test_sequences_are_not_checked(tmp_path: Path) -> None:
    """The leader may have forgotten a producer that the follower still knows, and taken any sequence."""
    with open_follower(tmp_path) as directory:
        log = directory.log(*PARTITION)
        for offset, sequence in [(0, 0), (1, 50), (2, 7), (3, 7)]:
            log.append_from_leader(leaders_batch(offset, producer_id=1, producer_epoch=0, base_sequence=sequence))
        assert log.last_batches() == {1: (3, 0)}


def test_times_that_the_leader_has_set_are_kept(tmp_path: Path) -> None:
    with Replicas(tmp_path, message_timestamp_type="LogAppendTime") as replicas:
        replicas.leader.append(3)
        replicas.leader.clock.advance(1000)
        replicas.catch_up()
        [batch] = replicas.follower.read(0, 1000).batches()
        assert (batch.header.timestamp_type, batch.header.max_timestamp) == (1, START_MS)


class HalfWritingDisk(Disk):
    fails = False

    def write(self, fd: int, data: Any, position: int) -> None:
        if self.fails:
            super().write(fd, bytes(data[: len(data) // 2]), position)
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, data, position)


def test_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    disk = HalfWritingDisk()
    with open_follower(tmp_path, disk=disk) as directory:
        log = directory.log(*PARTITION)
        log.append_from_leader(leaders_batch(0, 3))
        before = state(log)
        disk.fails = True
        with pytest.raises(StorageError, match="can't append the leader's batches"):
            log.append_from_leader(leaders_batch(3, 3))
        assert state(log) == before
        disk.fails = False
        assert log.append_from_leader(leaders_batch(3, 3)) == 6
        assert offsets_of(log) == list(range(6))


def test_batches_that_failed_can_be_appended_again(tmp_path: Path) -> None:
    """Their epochs must not stay: the first of them would be lower than the last one."""
    disk = HalfWritingDisk()
    data = b"".join(leaders_batch(at, leader_epoch=at // 2) for at in range(2, 8))
    with open_follower(tmp_path, disk=disk) as directory:
        log = directory.log(*PARTITION)
        log.append_from_leader(leaders_batch(0, 2))
        log.begin_epoch(1)
        before = state(log)
        disk.fails = True
        for _ in range(2):
            with pytest.raises(StorageError):
                log.append_from_leader(data)
            assert state(log) == before
        disk.fails = False
        assert log.append_from_leader(data) == 8
        assert log.leader_epochs.entries == [(0, 0), (1, 2), (2, 4), (3, 6)]


def test_epochs_of_a_partly_appended_fetch_end_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = HalfWritingDisk()
    with open_follower(tmp_path, disk=disk, segment_bytes=300) as directory:
        log = directory.log(*PARTITION)
        data = b"".join(leaders_batch(at, 3, leader_epoch=at // 3) for at in range(0, 18, 3))
        write, log_writes = disk.write, 0

        def fail_late(fd: int, content: Any, position: int) -> None:
            nonlocal log_writes
            log_writes += content[:8] == leaders_batch(0)[:8] or len(content) > 100
            disk.fails = log_writes > 2
            write(fd, content, position)

        monkeypatch.setattr(disk, "write", fail_late)
        with pytest.raises(StorageError):
            log.append_from_leader(data)
        end = log.log_end_offset
        assert 0 < end < 18
        assert log.leader_epochs.entries == [(epoch, epoch * 3) for epoch in range(end // 3)]
        monkeypatch.undo()
        disk.fails = False
        rest = b"".join(leaders_batch(at, 3, leader_epoch=at // 3) for at in range(end, 18, 3))
        assert log.append_from_leader(rest) == 18
        assert log.leader_epochs.entries == [(epoch, epoch * 3) for epoch in range(6)]


def test_batches_are_flushed_as_the_settings_require(tmp_path: Path) -> None:
    with open_follower(tmp_path, flush_messages=4) as directory:
        log = directory.log(*PARTITION)
        log.append_from_leader(leaders_batch(0, 3))
        assert log.recovery_point == 0
        log.append_from_leader(leaders_batch(3, 1))
        assert log.recovery_point == 4


def test_quiet_segment_of_a_follower_rolls_by_the_records_time(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_follower(tmp_path, segment_ms=100) as directory:
        log = directory.log(*PARTITION)
        clock.advance(10)
        log.append_from_leader(b"".join(leaders_batch(offset) for offset in (0, 5, 9, 11, 15, 25)))
        assert [segment.base_offset for segment in log.segments] == [0, 10, 16]
        assert offsets_of(log) == [0, 5, 9, 11, 15, 25]


def test_closed_log_takes_no_batches(tmp_path: Path) -> None:
    directory = open_follower(tmp_path)
    log = directory.log(*PARTITION)
    directory.close()
    for call in (
        lambda: log.append_from_leader(leaders_batch(0)),
        lambda: log.begin_epoch(1),
        lambda: log.restart_at(1),
    ):
        with pytest.raises(LogClosedError):
            call()


class TestAtOnce:
    """What the event loop appends itself, and what it leaves to a thread."""

    def test_log_differs_from_one_that_a_thread_appends_to(self, tmp_path: Path) -> None:
        logs = []
        for name in ("waits", "at-once"):
            with open_follower(tmp_path / name) as directory:
                log = directory.log(*PARTITION)
                log.append_from_leader(leaders_batch(0))
                append = log.append_from_leader if name == "waits" else log.append_from_leader_at_once
                assert append(leaders_batch(1, 3) + leaders_batch(4) + leaders_batch(5)[:-1]) == 5
                logs.append((state(log), data_files(log)))
        assert logs[0] == logs[1]

    @pytest.mark.parametrize(
        ("data", "settings"),
        [
            (leaders_batch(0), {}),
            (leaders_batch(1, leader_epoch=9), {}),
            (leaders_batch(7), {}),
            (leaders_batch(1, 100), {"segment_bytes": 300}),
            (leaders_batch(1), {"flush_messages": 2}),
        ],
        ids=["first batch", "new epoch", "gap", "roll", "flush"],
    )
    def test_event_loop_would_wait_for_the_disk(
        self, tmp_path: Path, data: bytes, settings: dict[str, Any], request: pytest.FixtureRequest
    ) -> None:
        with open_follower(tmp_path, **settings) as directory:
            log = directory.log(*PARTITION)
            if "first" not in request.node.callspec.id:
                log.append_from_leader(leaders_batch(0))
            before = state(log)
            with pytest.raises(WouldWaitError):
                log.append_from_leader_at_once(data)
            assert state(log) == before
            log.append_from_leader(data)

    def test_corrupt_batch_is_left_to_a_thread(self, tmp_path: Path) -> None:
        with open_follower(tmp_path) as directory:
            log = directory.log(*PARTITION)
            log.append_from_leader(leaders_batch(0))
            corrupt = bytearray(leaders_batch(1))
            corrupt[-1] ^= 1
            with pytest.raises(CorruptBatchError):
                log.append_from_leader_at_once(corrupt)
            assert log.log_end_offset == 1
