"""Directories that Stratalog wrote, checked by Kafka's log dumper: every codec, several segments, every file."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.records._records import Record
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType
from stratalog.storage import Log, LogConfig, LogDirectory, Origin
from tests.compat.kafka import Dump, dump_log_segments, segment_files

pytestmark = pytest.mark.compat

TIME = 1_600_000_000_000
SMALL = LogConfig(segment_bytes=8192, index_interval_bytes=512, segment_index_bytes=4096, retention_ms=-1)
DEEP = ("--deep-iteration", "--print-data-log")


def records_of_batch(number: int) -> list[Record]:
    """Return the records of a batch. Timestamps rise between batches but fall now and then; sizes differ; some keys and
    values are missing."""
    return [
        Record(
            timestamp=TIME + number * 100 - (500 if number % 7 == 3 else 0) + i,
            key=None if i % 5 == 4 else b"key %d" % i,
            value=None if i % 11 == 10 else b"batch %d, record %d " % (number, i) * (1 + number % 13),
            headers=[("number", b"%d" % number)] if i % 3 == 0 else [],
        )
        for i in range(1 + number % 12)
    ]


def fill(log: Log, codec: Codec, batches: int = 120) -> list[Record]:
    written = []
    for number in range(batches):
        records = records_of_batch(number)
        log.append(build_batch(records, codec=codec))
        written += records
    return written


@pytest.fixture(scope="module")
def directory_of_every_codec(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Codec, list[Record]]]:
    data = tmp_path_factory.mktemp("data")
    with LogDirectory.open(data, SMALL, background=False) as directory:
        written = {codec: fill(directory.log(codec.name, 0), codec) for codec in Codec}
    return data, written


def dump_of(data: Path, *flags: str) -> Dump:
    return dump_log_segments([path for codec in Codec for path in segment_files(data / f"{codec.name}-0")], *flags)


def test_dumper_reads_our_records_and_finds_no_fault_in_any_file(
    directory_of_every_codec: tuple[Path, dict[Codec, list[Record]]],
) -> None:
    data, written = directory_of_every_codec
    dump = dump_of(data, *DEEP)
    assert dump.complaints == []
    for codec, records in written.items():
        logs = sorted((data / f"{codec.name}-0").glob("*.log"))
        assert len(logs) >= (8 if codec is Codec.NONE else 2)
        seen = [record for log in logs for record in dump[log].records]
        assert [record.offset for record in seen] == list(range(len(records)))
        assert [(r.timestamp, r.key, r.value, r.header_keys) for r in seen] == [
            (r.timestamp, r.key, r.value, tuple(name for name, _ in r.headers)) for r in records
        ]
        assert {b.header["compresscodec"] for log in logs for b in dump[log].batches} == {codec.name.lower()}
        for log in logs[:-1]:
            offsets = dump[log.with_suffix(".index")].pairs("offset", "position")
            times = dump[log.with_suffix(".timeindex")].pairs("timestamp", "offset")
            assert len(offsets) >= 3
            assert times[-1][0] == max(record.timestamp for record in dump[log].records)


def test_index_entries_are_those_of_kafka(
    directory_of_every_codec: tuple[Path, dict[Codec, list[Record]]],
) -> None:
    """Applies the rules of docs/disk-format.md to the dumper's output for each .log."""
    data, _ = directory_of_every_codec
    dump = dump_of(data)
    for path, file in dump.files.items():
        if path.suffix != ".log":
            continue
        offsets: list[tuple[int, int]] = []
        times: list[tuple[int, int]] = []
        largest, largest_offset, since = -1, -1, 0
        for batch in file.batches:
            if batch.number("CreateTime") > largest:
                largest, largest_offset = batch.number("CreateTime"), batch.last_offset
            if since > SMALL.index_interval_bytes:
                offsets.append((batch.last_offset, batch.position))
                if not times or largest > times[-1][0]:
                    times.append((largest, largest_offset))
                since = 0
            since += batch.number("size")
        if not times or largest > times[-1][0]:
            times.append((largest, largest_offset))
        assert dump[path.with_suffix(".index")].pairs("offset", "position") == offsets
        assert dump[path.with_suffix(".timeindex")].pairs("timestamp", "offset") == times


def test_indexes_pass_the_check_that_a_starting_broker_makes(
    directory_of_every_codec: tuple[Path, dict[Codec, list[Record]]],
) -> None:
    data, _ = directory_of_every_codec
    dump = dump_of(data, "--index-sanity-check")
    assert dump.complaints == []
    indexes = [file for path, file in dump.files.items() if path.suffix in (".index", ".timeindex")]
    assert len(indexes) > 30
    assert all(file.passed_sanity_check or file.is_empty_index for file in indexes)


def test_snapshots_and_aborted_transactions_read_as_they_were_written(tmp_path: Path) -> None:
    with LogDirectory.open(tmp_path, SMALL, background=False) as directory:
        log = directory.log("tx", 0)
        send(log, producer=1, sequence=0)  # 0-2
        send(log, producer=2, sequence=0)  # 3-5
        end(log, ControlType.ABORT, producer=1)  # 6
        send(log, producer=3, sequence=0, transactional=False)  # 7-9
        end(log, ControlType.COMMIT, producer=2)  # 10
        log.roll()
        send(log, producer=2, sequence=3)  # 11-13
        end(log, ControlType.ABORT, producer=2)  # 14
        send(log, producer=1, sequence=3)  # 15-17, left open
    partition = tmp_path / "tx-0"
    dump = dump_log_segments(segment_files(partition), *DEEP)
    assert dump.complaints == []
    aborted = [dump[partition / f"{base:020d}.txnindex"].entries for base in (0, 11)]
    assert [[int(entry[name]) for name in ABORTED] for entry in aborted[0]] == [[1, 0, 6, 3]]
    assert [[int(entry[name]) for name in ABORTED] for entry in aborted[1]] == [[2, 11, 14, 15]]
    at_roll = {int(entry["producerId"]): entry for entry in dump[partition / f"{11:020d}.snapshot"].entries}
    at_end = {int(entry["producerId"]): entry for entry in dump[partition / f"{18:020d}.snapshot"].entries}
    assert [(at_roll[p]["lastSequence"], at_roll[p]["lastOffset"]) for p in (1, 2, 3)] == [
        ("2", "2"),
        ("2", "5"),
        ("2", "9"),
    ]
    assert [at_roll[p]["coordinatorEpoch"] for p in (1, 2, 3)] == ["8", "8", "-1"]
    assert {at_roll[p]["currentTxnFirstOffset"] for p in (1, 2, 3)} == {"OptionalLong.empty"}
    assert at_end[1]["currentTxnFirstOffset"] == "OptionalLong[15]"
    assert (at_end[1]["lastSequence"], at_end[1]["offsetDelta"]) == ("5", "2")


ABORTED = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")


def send(log: Log, *, producer: int, sequence: int, transactional: bool = True) -> None:
    records = [Record(timestamp=TIME + i, key=b"k", value=b"of %d" % producer) for i in range(3)]
    batch = build_batch(
        records, producer_id=producer, producer_epoch=0, base_sequence=sequence, is_transactional=transactional
    )
    log.append(batch)


def end(log: Log, kind: ControlType, *, producer: int) -> None:
    marker = build_control_batch(kind, producer, 0, coordinator_epoch=8, timestamp=TIME + 10)
    log.append(marker, origin=Origin.COORDINATOR)


def test_truncated_and_shortened_log_is_still_valid(tmp_path: Path) -> None:
    with LogDirectory.open(tmp_path, SMALL, background=False) as directory:
        log = directory.log("cut", 0)
        fill(log, Codec.LZ4, 200)
        cut_at = log.truncate(log.log_end_offset // 2)
        start = log.segments[1].base_offset
        log.advance_start(start)
        log.apply_retention()
        fill(log, Codec.ZSTD, 40)
        end_offset = log.log_end_offset
    dump = dump_log_segments(segment_files(tmp_path / "cut-0"), *DEEP)
    assert dump.complaints == []
    seen = [r.offset for path in sorted(dump.files) if path.suffix == ".log" for r in dump[path].records]
    assert seen == list(range(start, end_offset))
    assert start < cut_at < end_offset
