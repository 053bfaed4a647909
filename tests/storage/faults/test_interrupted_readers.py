"""A truncation interrupts a reader at the worst moments, one after the other: the reader gets the new records, or an
error that its offset is out of range. (In test_threads.py, the moments are random.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stratalog.errors import OffsetOutOfRangeError
from stratalog.records.reader import records_of
from stratalog.storage.disk import Disk
from tests.storage.log_builder import START_MS, STEP_MS, LogBuilder


class InterruptingDisk(Disk):
    """Calls a function once, before or after the nth read after arm()."""

    def __init__(self) -> None:
        self.reads_left = 0
        self._before = True
        self._interrupt: Callable[[], object] = lambda: None

    def arm(self, nth: int, before: bool, interrupt: Callable[[], object]) -> None:
        self.reads_left, self._before, self._interrupt = nth, before, interrupt

    def disarm(self) -> bool:
        """Return True if the function was called."""
        struck, self.reads_left = self.reads_left == 0, 0
        return struck

    def read(self, fd: int, size: int, position: int) -> bytes:
        is_the_one = self.reads_left == 1
        self.reads_left = max(self.reads_left - 1, 0)
        if is_the_one and self._before:
            self._interrupt()
        data = super().read(fd, size, position)
        if is_the_one and not self._before:
            self._interrupt()
        return data


@pytest.fixture
def disk() -> InterruptingDisk:
    return InterruptingDisk()


@pytest.fixture
def built(scratch: Path, disk: InterruptingDisk) -> Iterator[LogBuilder]:
    with LogBuilder(scratch, disk=disk, segment_bytes=6000, index_interval_bytes=500) as built:
        while len(built.log.segments) < 3:
            built.append(5, value_size=40)
        yield built.append(5, value_size=40).append(5, value_size=40)


def rewrite_tail(built: LogBuilder, back: int) -> None:
    """Replace the last records by as many others, in batches of other sizes."""
    end = built.next_offset
    built.truncate(end - back)
    while built.next_offset < end:
        built.append(min(3, end - built.next_offset), value_size=61)


# The nth read of a file, before or after it, and how many records are truncated: within the last segment, or more.
MOMENTS = [(nth, before, back) for nth in (1, 2, 3) for before in (True, False) for back in (4, 13, 60)]


@pytest.mark.parametrize(("nth", "before", "back"), MOMENTS)
def test_reader_gets_the_new_records_after_a_truncation_during_the_read(
    built: LogBuilder, disk: InterruptingDisk, nth: int, before: bool, back: int
) -> None:
    start = built.next_offset - 10
    disk.arm(nth, before, lambda: rewrite_tail(built, back))
    assert list(built.log.records(start)) == built.history[start:]


@pytest.mark.parametrize(("nth", "before", "back"), MOMENTS)
def test_slice_of_an_interrupted_read_has_the_new_batch(
    built: LogBuilder, disk: InterruptingDisk, nth: int, before: bool, back: int
) -> None:
    offset = built.next_offset - 3
    disk.arm(nth, before, lambda: rewrite_tail(built, back))
    read = built.log.read(offset, 0)
    disk.disarm()  # a later truncation makes the slice invalid
    [batch] = read.batches()
    assert batch.header.base_offset == read.base_offset
    assert batch.header.base_offset <= offset <= batch.header.last_offset
    assert records_of(batch) == built.history[batch.header.base_offset : batch.header.next_offset]


@pytest.mark.parametrize(("nth", "before", "back"), MOMENTS)
def test_timestamp_of_a_record_truncated_during_the_lookup_is_not_found(
    built: LogBuilder, disk: InterruptingDisk, nth: int, before: bool, back: int
) -> None:
    offset = built.next_offset - 2
    time = START_MS + offset * STEP_MS
    disk.arm(nth, before, lambda: built.truncate(offset + 2 - back))
    match = built.log.find_timestamp(time)
    assert match == (None if disk.disarm() else (offset, time))


@pytest.mark.parametrize(("nth", "before"), [(nth, before) for nth in (1, 2, 3) for before in (True, False)])
def test_offset_truncated_during_a_read_is_out_of_range(
    built: LogBuilder, disk: InterruptingDisk, nth: int, before: bool
) -> None:
    offset = built.next_offset - 3
    disk.arm(nth, before, lambda: built.truncate(offset - 20))
    try:
        read = built.log.read(offset, 0)
    except OffsetOutOfRangeError:
        assert disk.disarm()
    else:
        assert not disk.disarm(), f"read({offset}) gives {read} of a log that ends at {built.next_offset}"
