"""Swapping in a new segment: the files after each step, opening the log with them, and concurrent readers."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.errors import StorageError
from stratalog.records.builder import build_batch
from stratalog.storage import LogDirectory
from stratalog.storage.compaction import swap
from stratalog.storage.disk import Disk
from stratalog.storage.names import CLEANED, DELETED, SWAP
from tests.storage.compaction.keyed_log import TOPIC, KeyedLog
from tests.storage.faults.failing_disk import FailingDisk
from tests.storage.faults.racing import Unsynced
from tests.storage.hand_made import write_segment


def dirty(path: Path, disk: Disk | None = None) -> KeyedLog:
    """Return a log of three segments that become one, and the active segment."""
    keyed = KeyedLog(path, disk=disk)
    keyed.put("a=1", "b=1").roll().put("a=2", "c=1").roll().put("d=1").roll().put("e=1")
    return keyed


AFTER = ["b=1", "a=2", "c=1", "d=1", "e=1"]
BEFORE = ["a=1", *AFTER]


class StoppingDisk(Unsynced):
    """Copies the data directory before each rename of a swap, as kill -9 would leave it."""

    def __init__(self) -> None:
        self.copies: list[Path] = []
        self.target: Path | None = None
        self.source: Path | None = None

    def rename(self, source: Path, target: Path) -> None:
        if self.target is not None and self.source is not None:
            copy = self.target / str(len(self.copies))
            shutil.copytree(self.source, copy, ignore=shutil.ignore_patterns(".lock"))
            self.copies.append(copy)
        super().rename(source, target)


def test_kill_before_each_rename_leaves_the_old_or_the_new_segments(tmp_path: Path) -> None:
    disk = StoppingDisk()
    with dirty(tmp_path / "live", disk) as keyed:
        disk.source, disk.target = keyed.path, tmp_path
        keyed.clean()
        disk.target = None
        assert keyed.pairs() == AFTER
    seen = []
    for copy in disk.copies:
        with KeyedLog(copy) as again:
            seen.append(again.pairs())
            assert again.log.log_end_offset == 6
            assert not [name for name in again.files() if name.endswith((CLEANED, SWAP, DELETED))]
            assert again.put("f=1").pairs()[-1] == "f=1"
            again.roll().clean()
            assert again.pairs() == [*AFTER, "f=1"]
        with KeyedLog(copy) as again:
            assert again.pairs() == [*AFTER, "f=1"]
    assert len(seen) > 10
    assert [pairs for pairs in seen if pairs not in (BEFORE, AFTER)] == []
    assert seen == sorted(seen, key=lambda pairs: pairs == AFTER), "it went back to the old"
    assert BEFORE in seen
    assert AFTER in seen


def test_interrupted_swap_is_reported(tmp_path: Path) -> None:
    with dirty(tmp_path) as keyed:
        keyed.directory.close()
    path = keyed.log_path / f"{0:020}.log"
    path.rename(path.with_name(path.name + SWAP))
    with KeyedLog(tmp_path) as keyed:
        assert keyed.pairs() == BEFORE
        assert "interrupted compaction" in keyed.log.recovery.problems[0]


def test_swap_files_without_a_log_are_removed(tmp_path: Path) -> None:
    with dirty(tmp_path) as keyed:
        keyed.directory.close()
    for name in (f"{0:020}.index{SWAP}", f"{2:020}.timeindex{SWAP}", f"{0:020}.log{CLEANED}"):
        (keyed.log_path / name).write_bytes(b"anything")
    with KeyedLog(tmp_path) as keyed:
        assert keyed.pairs() == BEFORE
        assert not [name for name in keyed.files() if name.endswith((SWAP, CLEANED))]


def test_incomplete_swap_of_several_segments_of_kafka_is_undone(tmp_path: Path) -> None:
    """Kafka may split a segment. A .cleaned file means that not all parts had become .swap."""
    with dirty(tmp_path) as keyed:
        keyed.directory.close()
    part = build_batch([(b"z", b"part")], base_offset=2)
    write_segment(keyed.log_path, 2, part).rename(keyed.log_path / f"{2:020}.log{SWAP}")
    (keyed.log_path / f"{0:020}.log{CLEANED}").write_bytes(b"")
    before = [path.name for path in keyed.log_path.iterdir()]
    assert f"{2:020}.log{SWAP}" in before
    notes = swap.finish_all(Disk(), keyed.log_path)
    assert notes == []
    assert f"{2:020}.log{SWAP}" not in [path.name for path in keyed.log_path.iterdir()]


def test_failing_rename_of_a_swap_is_repaired_by_the_next_call(tmp_path: Path) -> None:
    """Each rename of the swap fails in turn. Readers see the old or the new segments, at once and after reopening."""
    for nth in range(1, 40):
        disk = FailingDisk()
        with dirty(tmp_path / str(nth), disk) as keyed:
            disk.arm("EIO", nth)
            disk._methods = frozenset({"rename"})
            keyed.directory.cleaner.turn()
            struck = list(disk.struck)
            disk.heal()
            assert keyed.pairs() in (BEFORE, AFTER), nth
            assert keyed.put("f=1").pairs()[-1] == "f=1"
            killed = keyed.left_by_kill(tmp_path / f"{nth}-killed")
            keyed.reopen()
            assert keyed.pairs() in ([*BEFORE, "f=1"], [*AFTER, "f=1"]), nth
        with KeyedLog(killed) as keyed:
            assert keyed.pairs() in ([*BEFORE, "f=1"], [*AFTER, "f=1"]), nth
            keyed.roll().clean()
            assert keyed.pairs() == [*AFTER, "f=1"]
        if not struck:
            return
    raise AssertionError("renames never end")


def test_unfinished_swap_is_an_error_until_it_can_be_finished(tmp_path: Path) -> None:
    outcomes = []
    for nth in range(5, 16):
        disk = FailingDisk()
        with dirty(tmp_path / str(nth), disk) as keyed:
            disk.arm("EIO", nth, 10**6)
            disk._methods = frozenset({"rename", "remove"})
            keyed.directory.cleaner.turn()
            assert disk.struck
            with pytest.raises(StorageError):
                keyed.pairs()
            assert keyed.directory.cleaner.set_aside()
            disk.heal()
            outcomes.append(keyed.pairs())
            keyed.clock.advance(10**6)
            keyed.roll().clean()
            assert keyed.pairs() == AFTER
            assert keyed.directory.cleaner.set_aside() == {}
    assert outcomes == sorted(outcomes, key=lambda pairs: pairs == AFTER)
    assert {len(pairs) for pairs in outcomes} == {len(BEFORE), len(AFTER)}


class NotifyingDisk(Unsynced):
    """Calls the functions in `acts` at the first sync of a directory with .swap files."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[Callable[[], object]] = []

    def sync_directory(self, path: Path) -> None:
        if self.acts and any(path.glob("*" + SWAP)):
            self.acts.pop()()
        super().sync_directory(path)


def test_appends_do_not_wait_for_the_sync_of_a_swap(tmp_path: Path) -> None:
    disk = NotifyingDisk()
    with dirty(tmp_path, disk) as keyed:
        appended = []

        def append() -> None:
            appended.append(keyed.log.append_at_once(build_batch([(b"f", b"1")])))

        def in_another_thread() -> None:
            thread = threading.Thread(target=append)
            thread.start()
            thread.join()

        disk.acts = [in_another_thread]
        keyed.clean()
        assert len(appended) == 1
        assert keyed.pairs() == [*AFTER, "f=1"]


def test_swap_of_segments_deleted_by_retention_is_undone(tmp_path: Path) -> None:
    disk = NotifyingDisk()
    with KeyedLog(
        tmp_path, disk=disk, cleanup_policy=("compact", "delete"), retention_bytes=1, retention_ms=-1
    ) as keyed:
        keyed.put("a=1", "b=1").roll().put("a=2", "c=1").roll().put("d=1")
        disk.acts = [keyed.log.apply_retention]
        keyed.directory.cleaner.turn()
        assert disk.acts == []
        assert keyed.pairs() == ["d=1"]
        assert keyed.files(SWAP) == keyed.files(CLEANED) == []
        keyed.reopen()
        assert keyed.pairs() == ["d=1"]


def test_old_files_are_removed_after_the_delay_and_closed_at_once(tmp_path: Path) -> None:
    with dirty(tmp_path) as keyed:
        assert keyed.pairs() == BEFORE
        keyed.clean()
        assert len(keyed.files(DELETED)) >= 9
        keyed.directory.turn()
        gc.collect()
        assert keyed.files(DELETED) == []
        targets = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _exists(fd)]
        held = [target for target in targets if target.startswith(str(keyed.log_path)) and "deleted" in target]
        assert held == [], "deleted files take room for as long as they are open"


def _exists(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_slice_of_a_replaced_segment_stays_readable(tmp_path: Path) -> None:
    with dirty(tmp_path) as keyed:
        read = keyed.log.read(0, 10**6)
        keyed.clean()
        keyed.clock.advance(10)
        keyed.directory.turn()
        [batch] = read.batches()
        assert batch.header.record_count == 2
        assert [batch.header.record_count for batch in keyed.log.read(0, 10**6).batches()] == [1, 2, 1]


def test_readers_during_swaps_see_each_keys_latest_value(tmp_path: Path) -> None:
    """Readers start again and again, by offset and by timestamp, while the log is compacted continuously."""
    stop = threading.Event()
    failures: list[BaseException] = []
    rounds = [0, 0]

    def read_all(number: int) -> None:
        try:
            while not stop.is_set():
                promised = dict(latest)
                seen, position = {}, 0
                # Up to the current end, because the record that supersedes another may be after any earlier end.
                while position < (end := keyed.log.log_end_offset):
                    offsets = []
                    for record in keyed.log.records(position, end):
                        seen[record.key] = record
                        offsets.append(record.offset)
                    assert offsets == sorted(set(offsets))
                    position = end
                for key, value in promised.items():
                    assert int(seen[key].value or b"") >= value, f"{key!r} went back"
                some = seen[max(promised, key=lambda key: promised[key])]
                at = keyed.log.find_timestamp(some.timestamp)
                assert at is not None
                assert at.timestamp >= some.timestamp
                rounds[number] += 1
        except BaseException as error:
            failures.append(error)

    latest: dict[bytes, int] = {b"k0": 0}
    with KeyedLog(tmp_path, segment_bytes=2000) as keyed:
        keyed.put("k0=0")
        threads = [threading.Thread(target=read_all, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        number = 1
        while number < 600 or (min(rounds) < 3 and not failures):
            keyed.put(f"k{number % 17}={number}")
            latest[b"k%d" % (number % 17)] = number
            if number % 20 == 0:
                keyed.roll().clean()
            number += 1
            if failures:
                break
        stop.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert min(rounds) >= 3


def test_log_opened_alone_finishes_a_swap_too(tmp_path: Path) -> None:
    with dirty(tmp_path) as keyed:
        keyed.directory.close()
    path = keyed.log_path / f"{2:020}.log"
    path.rename(path.with_name(path.name + SWAP))
    with LogDirectory.open(tmp_path, background=False) as directory:
        assert keyed.pairs(directory.log(TOPIC, 0)) == BEFORE
