"""Changes of a log while it is compacted: at each read or write of a run, a truncation, a deletion, a roll, a close.
The last record of a key must never be lost, and the next run must leave exactly the last records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.storage.compaction.config import CleanerConfig
from stratalog.storage.readable_log import HALF_CHANGED
from tests.storage.compaction.keyed_log import TOPIC, KeyedLog, pair_of, survivors

LARGE = "x" * 3000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def dirty(path: Path, **settings: Any) -> KeyedLog:
    """Return a log of several groups of segments, with last values of keys in all of them."""
    keyed = KeyedLog(path, cleaner=CleanerConfig(log_cleaner_io_buffer_size=0), segment_bytes=16_000, **settings)
    for number in range(28):
        keyed.put(f"k{number % 9}={number}{LARGE}", f"only-{number}=1", f"t{number % 4}" if number % 5 else "t0=1")
    keyed.put("tail=1").roll().put("grows=1")
    return keyed


def at_each_point(scratch: Path, act: Callable[[KeyedLog], object], **settings: Any) -> Iterator[KeyedLog]:
    """Yield, for each n, a log whose run called `act` at its nth read or write."""
    nth, acted = 0, True
    while acted:
        nth += 1
        acted = False
        count = 0
        with dirty(scratch / str(nth), **settings) as keyed:

            def account(_: int, keyed: KeyedLog = keyed, nth: int = nth) -> None:
                nonlocal count, acted
                count += 1
                if count == nth:
                    acted = True
                    act(keyed)

            keyed.tell_of_bytes(account)
            keyed.directory.cleaner.turn()
            keyed.tell_of_bytes(lambda _: None)
            if acted:
                yield keyed
    assert nth > 15


def check(keyed: KeyedLog) -> None:
    """Check that the last value of each key is there, and that a run leaves exactly those."""
    end, start = keyed.log.log_end_offset, keyed.log.log_start_offset
    keyed.history = [record for record in keyed.history if record.offset < end]
    last_pairs = {record.key: pair_of(record) for record in keyed.log.records()}
    assert last_pairs == {record.key: pair_of(record) for record in keyed.history if record.offset >= start}
    assert keyed.directory.cleaner.set_aside() == {}, keyed.directory.cleaner.set_aside()
    keyed.put("last=1").roll()
    assert keyed.clean()
    left = survivors(keyed.history, keyed.log.log_end_offset, start)
    assert list(keyed.log.records()) == left
    keyed.reopen()
    assert list(keyed.log.records()) == left


def cut(keyed: KeyedLog, offset: int) -> None:
    """Truncate the log. Records that earlier swaps of the run removed are gone, but no others may be removed."""
    keyed.log.truncate(offset)
    keyed.history = list(keyed.log.records())


@pytest.mark.parametrize("back", [3, 20, 60])
def test_log_truncated_during_a_run_keeps_the_last_record_of_each_key(scratch: Path, back: int) -> None:
    """A truncation may remove the record that supersedes another after the map of keys was built."""
    for keyed in at_each_point(scratch, lambda keyed: cut(keyed, keyed.log.log_end_offset - back)):
        assert list(keyed.log.records()) == keyed.history
        check(keyed)


def test_records_appended_after_a_truncation_are_dirty(scratch: Path) -> None:
    def cut_and_grow(keyed: KeyedLog) -> None:
        cut(keyed, 30)
        for number in range(20):
            keyed.put(f"k{number % 9}=new {number}{LARGE}")

    for keyed in at_each_point(scratch, cut_and_grow):
        assert list(keyed.log.records()) == keyed.history
        check(keyed)


def test_log_start_that_advances_during_a_run(scratch: Path) -> None:
    def delete_records(keyed: KeyedLog) -> None:
        keyed.log.advance_start(40)
        keyed.log.apply_retention()

    for keyed in at_each_point(scratch, delete_records):
        assert keyed.log.log_start_offset == 40
        check(keyed)


def test_retention_that_deletes_segments_during_a_run(scratch: Path) -> None:
    def delete_some(keyed: KeyedLog) -> None:
        keyed.log.apply_retention()
        keyed.directory._home.deletions.run(everything=True)

    settings = {"cleanup_policy": ("compact", "delete"), "retention_bytes": 40_000, "retention_ms": -1}
    for keyed in at_each_point(scratch, delete_some, **settings):
        check(keyed)


def test_log_that_rolls_during_a_run(scratch: Path) -> None:
    for keyed in at_each_point(scratch, lambda keyed: keyed.put("k1=new", "only-3").roll()):
        check(keyed)


def test_log_that_is_closed_during_a_run(scratch: Path) -> None:
    for keyed in at_each_point(scratch, lambda keyed: keyed.log.close()):
        assert keyed.directory.cleaner.set_aside() == {}
        keyed.log = keyed.directory.log(TOPIC, 0)
        check(keyed)


def test_topic_that_is_deleted_and_created_again_during_a_run(scratch: Path) -> None:
    def make_again(keyed: KeyedLog) -> None:
        keyed.directory.delete(TOPIC, 0)
        keyed.log = keyed.directory.log(TOPIC, 0)
        keyed.history = []
        keyed.put("fresh=1").put("fresh=2").roll()

    for keyed in at_each_point(scratch, make_again):
        assert keyed.pairs() == ["fresh=1", "fresh=2"]
        check(keyed)


def test_log_that_is_loaded_again_during_a_run(scratch: Path) -> None:
    def load_again(keyed: KeyedLog) -> None:
        keyed.log._condition = HALF_CHANGED
        keyed.pairs()

    for keyed in at_each_point(scratch, load_again):
        check(keyed)
