"""The records that a run leaves: the last record of each key, with its offset and timestamp, and recent tombstones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from stratalog.records.format import Codec
from stratalog.records.legacy import build_message_set
from stratalog.storage.compaction.compactor import Cleaned
from tests.storage.compaction.keyed_log import DELETE_RETENTION_MS, TOPIC, KeyedLog, record_of
from tests.storage.hand_made import START_MS, write_clean_marker, write_segment


def test_last_record_of_each_key_stays_at_its_offset(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1", "b=1", "a=2").put("c=1", "b=2").roll().put("a=3").roll()
        [cleaned] = keyed.clean()
        assert keyed.pairs() == ["c=1", "b=2", "a=3"]
        assert keyed.offsets() == [3, 4, 5]
        assert list(keyed.log.records()) == keyed.survivors()
        assert (cleaned.keys, cleaned.first_dirty_offset, cleaned.is_complete) == (3, 6, True)
        assert (cleaned.batches_before, cleaned.batches_after) == (3, 2)
        assert (cleaned.segments_before, cleaned.segments_after) == (2, 1)
        assert cleaned.bytes_before > cleaned.bytes_after == sum(segment.size for segment in keyed.log.segments)


@pytest.mark.parametrize("codec", list(Codec))
def test_batch_that_loses_records_keeps_its_codec(tmp_path: Path, codec: Codec) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put(*(f"{number % 20}={'x' * number}" for number in range(40)), codec=codec)
        keyed.put("3=new", "25=never seen", codec=codec).roll()
        keyed.clean()
        assert list(keyed.log.records()) == keyed.survivors()
        assert [header.codec for header in keyed.headers()] == [codec, codec]
        keyed.reopen()
        assert list(keyed.log.records()) == keyed.survivors()


def test_batch_that_loses_records_keeps_its_offsets_and_producer(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1", "b=1", "c=1", "d=1", leader_epoch=3, producer_id=9, producer_epoch=2, base_sequence=0)
        keyed.put("a=2", "d=2", leader_epoch=4).roll()
        keyed.clean()
        first, _ = keyed.headers()
        assert (first.base_offset, first.last_offset, first.record_count) == (0, 3, 2)
        assert (first.producer_id, first.producer_epoch, first.base_sequence, first.leader_epoch) == (9, 2, 0, 3)
        assert first.max_timestamp == START_MS + 2
        assert keyed.log.read(0, 0).base_offset == keyed.log.read(3, 0).base_offset == 0


def test_batches_that_lose_no_record_keep_their_bytes(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1", "b=1", codec=Codec.GZIP).put("c=1").roll()
        before = (keyed.log_path / f"{0:020}.log").read_bytes()
        inode = (keyed.log_path / f"{0:020}.log").stat().st_ino
        keyed.clean()
        assert (keyed.log_path / f"{0:020}.log").read_bytes() == before
        assert (keyed.log_path / f"{0:020}.log").stat().st_ino == inode, "rewritten for nothing"


def test_log_append_time_is_the_same_after_a_clean(tmp_path: Path) -> None:
    with KeyedLog(tmp_path, message_timestamp_type="LogAppendTime") as keyed:
        for pairs in (["a=1", "b=1", "c"], ["a=2"]):
            keyed.put(*pairs)
            keyed.clock.advance(500)
        keyed.roll().clean()
        times = [(record.key, record.timestamp) for record in keyed.log.records()]
        assert times == [(b"b", START_MS), (b"c", START_MS), (b"a", START_MS + 500)]
        assert keyed.log.find_timestamp(START_MS + 1) == (3, START_MS + 500)


def test_tombstone_stays_for_delete_retention_ms_after_the_first_clean(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1", "b=1").put("a", "c=1").roll().clean()
        assert keyed.pairs() == ["b=1", "a", "c=1"]
        assert list(keyed.log.records()) == keyed.survivors(), "times change with the horizon"
        horizons = [header.base_timestamp for header in keyed.headers() if header.has_delete_horizon]
        assert horizons == [START_MS + DELETE_RETENTION_MS]
        keyed.clock.advance(DELETE_RETENTION_MS - 1)
        keyed.clean_again()
        assert "a" in keyed.pairs()
        assert [h.base_timestamp for h in keyed.headers() if h.has_delete_horizon] == horizons, "moved on"
        keyed.clock.advance(1)
        keyed.clean_again()
        assert "a" not in keyed.pairs()
        assert keyed.pairs()[:2] == ["b=1", "c=1"]


def test_superseded_tombstone_is_removed_at_once(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a").put("a=2").put("b").put("b").roll().clean()
        assert keyed.pairs() == ["a=2", "b"]
        assert keyed.offsets() == [1, 3]


def test_value_after_an_expired_tombstone_stays(tmp_path: Path) -> None:
    """The value is in the active segment, which the map of keys does not cover."""
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a").roll().clean()
        keyed.clock.advance(DELETE_RETENTION_MS)
        keyed.put("b=1").roll().put("a=9")
        keyed.clean()
        assert keyed.pairs() == ["b=1", "a=9"]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_tombstone_without_a_timestamp_gets_a_horizon_and_no_timestamp(tmp_path: Path, codec: Codec) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.log.append(build_batch([(b"a", None), (b"b", b"1")], codec=codec))
        keyed.roll().clean()
        assert [record.timestamp for record in keyed.log.records()] == [-1, -1]
        assert keyed.headers()[0].max_timestamp == -1
        assert keyed.headers()[0].base_timestamp == START_MS + DELETE_RETENTION_MS


def test_completely_superseded_segment_becomes_an_empty_one(tmp_path: Path) -> None:
    with KeyedLog(tmp_path, segment_bytes=260) as keyed:
        for _ in range(3):
            keyed.put("a=" + "x" * 100, "b=" + "y" * 50).roll()
        keyed.put("c=1").roll().clean()
        assert keyed.pairs()[-1] == "c=1"
        assert [record.offset for record in keyed.log.records(1)] == [4, 5, 6]
        assert keyed.log.read(0, 100).base_offset == 4
        keyed.clean_again()
        keyed.reopen()
        assert list(keyed.log.records()) == keyed.survivors()
        assert len(keyed.log.segments) == 3, "empty neighbours are not joined"


def test_records_without_a_key_are_removed_when_a_log_becomes_compacted(tmp_path: Path) -> None:
    with KeyedLog(tmp_path, cleanup_policy=("delete",), retention_ms=-1) as keyed:
        keyed.log.append(build_batch([(None, b"no key"), (b"a", b"1"), (None, None)]))
        keyed.roll()
    with KeyedLog(tmp_path) as keyed:
        keyed.clean()
        assert keyed.pairs() == ["a=1"]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
def test_messages_of_magic_0_and_1_are_compacted(tmp_path: Path, magic: int, codec: Codec) -> None:
    pairs = ["a=1", "b=1", "a=2", "c", "d=1", "b"]
    records = [record_of(pair, offset) for offset, pair in enumerate(pairs)]
    plain = [Record(offset=r.offset, timestamp=r.timestamp, key=r.key, value=r.value) for r in records]
    partition = tmp_path / f"{TOPIC}-0"
    write_segment(partition, 0, *(build_message_set(plain[at : at + 3], magic=magic, codec=codec) for at in (0, 3)))
    write_clean_marker(tmp_path)
    with KeyedLog(tmp_path) as keyed:
        assert keyed.pairs() == pairs
        keyed.roll().clean()
        assert keyed.pairs() == ["a=2", "c", "d=1", "b"]
        assert keyed.offsets() == [2, 3, 4, 5]
        times = [record.timestamp for record in keyed.log.records()]
        assert times == ([-1] * 4 if magic == 0 else [START_MS + offset for offset in (2, 3, 4, 5)])
        keyed.clock.advance(DELETE_RETENTION_MS)
        keyed.clean_again()
        assert keyed.pairs() == ["a=2", "d=1", "again-6=x"]
        keyed.reopen()
        assert keyed.pairs() == ["a=2", "d=1", "again-6=x"]


def test_segment_without_timestamps_keeps_its_file_time(tmp_path: Path) -> None:
    """Otherwise retention.ms, which uses the file's time, would start again with each run."""
    with KeyedLog(tmp_path) as keyed:
        for value in (b"1", b"2"):
            keyed.log.append(build_batch([(b"a", value)]))
        keyed.roll()
        path = keyed.log_path / f"{0:020}.log"
        os.utime(path, (1_000_000, 1_000_000))
        keyed.clean()
        assert keyed.pairs() == ["a=2"]
        assert path.stat().st_mtime == 1_000_000


def test_dry_run_counts_and_changes_nothing(tmp_path: Path) -> None:
    with KeyedLog(tmp_path) as keyed:
        keyed.put("a=1").put("a=2").roll()
        before = {path: path.read_bytes() for path in keyed.log_path.iterdir()}
        dry = keyed.directory.cleaner.dry_run(keyed.log)
        assert {path: path.read_bytes() for path in keyed.log_path.iterdir()} == before
        [real] = keyed.clean()
        assert (dry.bytes_before, dry.bytes_after) == (real.bytes_before, real.bytes_after)
        assert keyed.directory.cleaner.dry_run(keyed.log) == Cleaned(2), "nothing is left to save"


def test_lookups_by_offset_and_time_in_a_log_full_of_gaps(tmp_path: Path) -> None:
    with KeyedLog(tmp_path, segment_bytes=1500, index_interval_bytes=50) as keyed:
        for number in range(300):
            keyed.put(f"{number * number % 101}={number}")
        keyed.roll().clean()
        for _ in range(2):
            left = keyed.survivors()
            assert list(keyed.log.records()) == left
            for offset in range(300):
                following = next(record for record in left if record.offset >= offset)
                assert keyed.log.read(offset, 0).base_offset == following.offset
                assert keyed.log.find_timestamp(START_MS + offset) == (following.offset, following.timestamp)
            assert keyed.log.find_timestamp(left[-1].timestamp + 1) is None
            keyed.reopen()
