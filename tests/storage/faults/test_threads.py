"""Readers during the work of a writer and a housekeeper: they get records that were in the log, or a documented
error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stratalog.errors import OffsetOutOfRangeError
from stratalog.records.reader import records_of
from stratalog.storage import DirectoryConfig
from stratalog.storage.disk import Disk
from stratalog.storage.names import LOG
from tests.storage.faults.racing import race
from tests.storage.log_builder import LogBuilder

SECONDS = 3.0


def test_readers_see_only_appended_records_during_appends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        done = race(tmp_path, 1, SECONDS)
    idle = [name for name, count in done.items() if count == 0]
    assert not idle, f"these did nothing: {idle} of {done}"
    assert not caplog.messages, "something was taken for damaged, or housekeeping failed, and nothing was wrong"


def test_slice_stays_readable_when_its_segment_is_deleted(tmp_path: Path) -> None:
    with LogBuilder(tmp_path, segment_bytes=1024, file_delete_delay_ms=0).append_until(5000) as built:
        first, second = built.log.segments[:2]
        expected = built.expected[: second.base_offset]
        read = built.log.read(0, 100_000)
        built.advance_start(second.base_offset).apply_retention()
        built.directory.turn()
        assert _files_of(built, first.base_offset) == [], "it was not deleted"
        assert [record for batch in read.batches() for record in records_of(batch)] == expected


def test_slices_stay_readable_when_their_segments_are_released(tmp_path: Path) -> None:
    """The number of open segments is limited, but a slice keeps its file open."""
    few = DirectoryConfig(max_open_segments=2)
    with LogBuilder(tmp_path, segment_bytes=1024, directory_config=few).append_until(20_000) as built:
        reads = [built.log.read(segment.base_offset, 100_000) for segment in built.log.segments if segment.size]
        for path in built.files(LOG)[:-1]:
            path.unlink()  # so that no file can be opened again
        served = [record for read in reads for batch in read.batches() for record in records_of(batch)]
        assert served == built.expected


def test_late_reader_creates_no_index_for_a_deleted_segment(tmp_path: Path) -> None:
    """The reader has the old list of segments, and finds the log but no index. The index was deleted, so it is not
    rebuilt."""
    with LogBuilder(tmp_path, segment_bytes=1024, file_delete_delay_ms=0).append_until(5000) as built:
        late, second = built.log.segments[:2]
        assert late.file.fd >= 0  # the reader has opened the file before the deletion
        built.advance_start(second.base_offset).apply_retention()
        built.directory.turn()
        with pytest.raises(OSError, match="part of the log"):
            late.locate(1)
        assert _files_of(built, late.base_offset) == []


class MeetingDisk(Disk):
    """Calls a function before the first read of a lookup."""

    meet: Callable[[], object] | None = None

    def read(self, fd: int, size: int, position: int) -> bytes:
        meet, self.meet = self.meet, None
        if meet is not None:
            meet()
        return super().read(fd, size, position)


@pytest.mark.parametrize("segment_bytes", [1024, 100_000], ids=["a segment goes", "a segment is cut"])
def test_truncation_during_a_lookup_is_not_reported_as_corruption(tmp_path: Path, segment_bytes: int) -> None:
    disk = MeetingDisk()
    with LogBuilder(tmp_path, disk=disk, segment_bytes=segment_bytes, segment_index_bytes=64).append(1) as built:
        for end in (1, 4, 7):
            last = built.append_until(6000).expected[-1]
            disk.meet = partial(built.truncate, end)
            assert built.log.find_timestamp(last.timestamp) is None
            last = built.append_until(6000).expected[-1]
            disk.meet = partial(built.truncate, end)
            with pytest.raises(OffsetOutOfRangeError):
                built.log.read(last.offset, 100)
            assert list(built.log.records()) == built.expected


def _files_of(built: LogBuilder, base_offset: int) -> list[str]:
    return [path.name for path in built.files("") if path.name.startswith(f"{base_offset:020}")]
