"""The explanation of each record of a key: what the next run does with it, and which setting decides."""

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


class ExplainedLog:
    def __init__(self, path: Path, **settings: Any) -> None:
        self.clock = ManualClock(NOW)
        config = LogConfig(**{"cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.0, **settings})
        self.directory = LogDirectory.open(path, config, clock=self.clock, background=False)
        self.log: Log = self.directory.log("accounts", 0)

    def write(self, *values: bytes | None, key: bytes = KEY, **fields: Any) -> None:
        """Append one batch per value."""
        for value in values:
            self.clock.advance(1)
            builder = build_batch([(key, value)], **fields)
            self.log.append(builder)

    def explain(self) -> Explained:
        return explain(self.log, self.directory.cleaner.dirt_of(self.log), KEY, self.clock.now_ms())

    def verdicts(self) -> list[tuple[int, bool, str | None]]:
        return [(record.offset, record.stays, record.setting) for record in self.explain().records]


@pytest.fixture
def explained_log(tmp_path: Path) -> Iterator[ExplainedLog]:
    made = ExplainedLog(tmp_path)
    yield made
    made.directory.close()


def test_unknown_key_has_no_records(explained_log: ExplainedLog) -> None:
    explained_log.write(b"x", key=b"another")
    assert explained_log.explain() == Explained()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_superseded_records_are_removed_and_the_last_one_stays(explained_log: ExplainedLog, codec: str) -> None:
    explained_log.write(b"one", b"two", codec=codec)
    explained_log.write(b"x", key=b"another", codec=codec)
    explained_log.write(b"three", codec=codec)
    explained_log.log.roll()
    first, second, last = explained_log.explain().records
    assert [first.stays, second.stays, last.stays] == [False, False, True]
    assert first.why == "superseded by offset 1; the next run removes it"
    assert "superseded by offset 3" in second.why
    assert (last.why, last.value_bytes, last.offset) == ("the last record of the key", 5, 3)
    assert explained_log.directory.cleaner.turn() is not None
    assert explained_log.verdicts() == [(3, True, None)]


def test_record_in_the_active_segment_stays_until_it_rolls(explained_log: ExplainedLog) -> None:
    explained_log.write(b"one", b"two")
    first, _ = explained_log.explain().records
    assert (first.stays, first.setting) == (True, "segment.bytes")
    assert "the active segment is never cleaned" in first.why


def test_record_superseded_in_an_uncleanable_segment_stays(explained_log: ExplainedLog) -> None:
    explained_log.write(b"one")
    explained_log.log.roll()
    explained_log.write(b"two")
    first, _ = explained_log.explain().records
    assert first.stays
    assert "superseded by offset 1, whose segment can't be cleaned yet" in first.why


def test_log_that_is_not_dirty_enough_has_the_reason(tmp_path: Path) -> None:
    explained_log = ExplainedLog(tmp_path, min_cleanable_dirty_ratio=0.9)
    explained_log.directory._home.cleaner_offsets.update({explained_log.log.partition: 1})
    explained_log.write(b"one" * 1000)
    explained_log.log.roll()
    explained_log.write(b"two")
    explained_log.log.roll()
    first, _ = explained_log.explain().records
    assert (first.stays, first.setting) == (False, "min.cleanable.dirty.ratio")
    assert "it is due above min.cleanable.dirty.ratio, 0.9" in first.why
    explained_log.directory.close()


def test_a_young_record_stays_until_the_lag_is_over(tmp_path: Path) -> None:
    explained_log = ExplainedLog(tmp_path, min_compaction_lag_ms=5000)
    batch = build_batch([(KEY, b"one"), (KEY, b"two")])
    explained_log.log.append(batch)
    explained_log.log.roll()
    first = explained_log.explain().records[0]
    assert (first.stays, first.setting) == (True, "min.compaction.lag.ms")
    explained_log.directory.close()


def test_tombstone_has_a_horizon_after_the_first_run(explained_log: ExplainedLog) -> None:
    explained_log.write(b"one", None)
    explained_log.log.roll()
    tombstone = explained_log.explain().records[-1]
    assert (tombstone.value_bytes, tombstone.stays, tombstone.may_go_from_ms) == (None, True, None)
    assert tombstone.setting == "delete.retention.ms"
    explained_log.directory.cleaner.turn()
    (tombstone,) = explained_log.explain().records
    assert (tombstone.stays, tombstone.may_go_from_ms) == (True, explained_log.clock.now_ms() + DAY)
    explained_log.clock.advance(DAY)
    (tombstone,) = explained_log.explain().records
    assert not tombstone.stays
    assert "delete.retention.ms is over" in tombstone.why


def test_aborted_records_are_marked(explained_log: ExplainedLog) -> None:
    explained_log.write(b"kept")
    explained_log.write(b"taken back", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    marker = build_control_batch(ControlType.ABORT, 5, 0, 0, NOW)
    explained_log.log.append(marker, origin=Origin.COORDINATOR)
    explained_log.log.roll()
    kept, aborted = explained_log.explain().records
    assert (kept.stays, kept.why) == (True, "the last record of the key")
    assert (aborted.aborted, aborted.stays) == (True, False)
    assert "aborted" in aborted.why


def test_without_compaction_every_record_of_a_key_stays(tmp_path: Path) -> None:
    explained_log = ExplainedLog(tmp_path, cleanup_policy=("delete",))
    explained_log.write(b"one", b"two")
    assert {record.setting for record in explained_log.explain().records} == {"cleanup.policy"}
    assert all(record.stays for record in explained_log.explain().records)
    explained_log.directory.close()


def test_with_both_policies_the_last_record_is_deleted_with_its_segment(tmp_path: Path) -> None:
    explained_log = ExplainedLog(tmp_path, cleanup_policy=("compact", "delete"), retention_ms=DAY)
    explained_log.log.append(build_batch([(KEY, b"one")]))
    (record,) = explained_log.explain().records
    assert record.setting == "retention.ms"
    explained_log.directory.close()


def test_only_the_newest_records_are_listed_and_all_are_counted(
    explained_log: ExplainedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_RECORDS", 3)
    explained_log.write(*[b"%d" % number for number in range(10)])
    explained = explained_log.explain()
    assert explained.count == 10
    assert [record.offset for record in explained.records] == [7, 8, 9]


def test_records_before_the_log_start_are_not_listed(explained_log: ExplainedLog) -> None:
    explained_log.write(b"one", b"two", b"three")
    explained_log.log.advance_start(1)
    explained = explained_log.explain()
    assert (explained.count, [record.offset for record in explained.records]) == (2, [1, 2])
