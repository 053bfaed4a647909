"""Why a record is there: for each record of a key what the next run does with it, and which setting decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.clock import ManualClock
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import ControlType
from stratalog.storage import Log, LogConfig, LogDirectory
from stratalog.storage.appending import Origin
from stratalog.storage.compaction import explain as module
from stratalog.storage.compaction.explain import Explained, explain

NOW = 1_700_000_000_000
KEY = b"customer-7"
DAY = 86_400_000


class Place:
    def __init__(self, path: Path, **settings: Any) -> None:
        self.clock = ManualClock(NOW)
        config = LogConfig(**{"cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.0, **settings})
        self.directory = LogDirectory.open(path, config, clock=self.clock, background=False)
        self.log: Log = self.directory.log("accounts", 0)

    def write(self, *values: bytes | None, key: bytes = KEY, **fields: Any) -> None:
        """One batch a value."""
        for value in values:
            self.clock.advance(1)
            builder = build_batch([(key, value)], **fields)
            self.log.append(builder)

    def explain(self) -> Explained:
        return explain(self.log, self.directory.cleaner.dirt_of(self.log), KEY, self.clock.now_ms())

    def verdicts(self) -> list[tuple[int, bool, str | None]]:
        return [(record.offset, record.stays, record.setting) for record in self.explain().records]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.directory.close()


def test_a_key_that_nobody_wrote_has_no_records(place: Place) -> None:
    place.write(b"x", key=b"another")
    assert place.explain() == Explained()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_superseded_goes_and_the_last_value_stays(place: Place, codec: str) -> None:
    place.write(b"one", b"two", codec=codec)
    place.write(b"x", key=b"another", codec=codec)
    place.write(b"three", codec=codec)
    place.log.roll()
    first, second, last = place.explain().records
    assert [first.stays, second.stays, last.stays] == [False, False, True]
    assert first.why == "superseded by offset 1; the next run removes it"
    assert "superseded by offset 3" in second.why
    assert (last.why, last.value_bytes, last.offset) == ("the last record of the key", 5, 3)
    assert place.directory.cleaner.turn() is not None
    assert place.verdicts() == [(3, True, None)]


def test_what_lies_in_the_segment_that_grows_waits_for_it_to_roll(place: Place) -> None:
    place.write(b"one", b"two")
    first, _ = place.explain().records
    assert (first.stays, first.setting) == (True, "segment.bytes")
    assert "the active segment is never cleaned" in first.why


def test_what_is_superseded_by_what_compaction_does_not_look_at_yet_stays(place: Place) -> None:
    place.write(b"one")
    place.log.roll()
    place.write(b"two")
    first, _ = place.explain().records
    assert first.stays
    assert "superseded by offset 1, whose segment can't be cleaned yet" in first.why


def test_a_log_that_is_not_dirty_enough_says_so(tmp_path: Path) -> None:
    place = Place(tmp_path, min_cleanable_dirty_ratio=0.9)
    place.directory._home.cleaner_offsets.update({place.log.partition: 1})
    place.write(b"one" * 1000)
    place.log.roll()
    place.write(b"two")
    place.log.roll()
    first, _ = place.explain().records
    assert (first.stays, first.setting) == (False, "min.cleanable.dirty.ratio")
    assert "it is due above min.cleanable.dirty.ratio, 0.9" in first.why
    place.directory.close()


def test_a_young_record_stays_until_the_lag_is_over(tmp_path: Path) -> None:
    place = Place(tmp_path, min_compaction_lag_ms=5000)
    batch = build_batch([(KEY, b"one"), (KEY, b"two")])
    place.log.append(batch)
    place.log.roll()
    first = place.explain().records[0]
    assert (first.stays, first.setting) == (True, "min.compaction.lag.ms")
    place.directory.close()


def test_a_tombstone_has_a_time_to_go_once_compaction_met_it(place: Place) -> None:
    place.write(b"one", None)
    place.log.roll()
    tombstone = place.explain().records[-1]
    assert (tombstone.value_bytes, tombstone.stays, tombstone.may_go_from_ms) == (None, True, None)
    assert tombstone.setting == "delete.retention.ms"
    place.directory.cleaner.turn()
    (tombstone,) = place.explain().records
    assert (tombstone.stays, tombstone.may_go_from_ms) == (True, place.clock.now_ms() + DAY)
    place.clock.advance(DAY)
    (tombstone,) = place.explain().records
    assert not tombstone.stays
    assert "delete.retention.ms is over" in tombstone.why


def test_aborted_records_are_told_apart(place: Place) -> None:
    place.write(b"kept")
    place.write(b"taken back", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    marker = build_control_batch(ControlType.ABORT, 5, 0, 0, NOW)
    place.log.append(marker, origin=Origin.COORDINATOR)
    place.log.roll()
    kept, aborted = place.explain().records
    assert (kept.stays, kept.why) == (True, "the last record of the key")
    assert (aborted.aborted, aborted.stays) == (True, False)
    assert "aborted" in aborted.why


def test_without_compaction_nothing_goes_by_key(tmp_path: Path) -> None:
    place = Place(tmp_path, cleanup_policy=("delete",))
    place.write(b"one", b"two")
    assert {record.setting for record in place.explain().records} == {"cleanup.policy"}
    assert all(record.stays for record in place.explain().records)
    place.directory.close()


def test_with_both_policies_the_last_value_goes_with_its_segment(tmp_path: Path) -> None:
    place = Place(tmp_path, cleanup_policy=("compact", "delete"), retention_ms=DAY)
    place.log.append(build_batch([(KEY, b"one")]))
    (record,) = place.explain().records
    assert record.setting == "retention.ms"
    place.directory.close()


def test_of_very_many_the_newest_are_shown_and_all_are_counted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RECORDS", 3)
    place.write(*[b"%d" % number for number in range(10)])
    found = place.explain()
    assert found.count == 10
    assert [record.offset for record in found.records] == [7, 8, 9]


def test_what_was_deleted_by_request_is_not_shown(place: Place) -> None:
    place.write(b"one", b"two", b"three")
    place.log.advance_start(1)
    found = place.explain()
    assert (found.count, [record.offset for record in found.records]) == (2, [1, 2])
