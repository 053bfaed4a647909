"""Logs that Apache Kafka and Stratalog compact in turn: Kafka's dumper checks our segments, Kafka serves them, and we
read and compact the segments of Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.clock import ManualClock
from stratalog.records._records import Record
from stratalog.records.batch import Batch
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType
from stratalog.storage import Log, LogConfig, LogDirectory, Origin
from tests.compat.kafka import KafkaServer, Kind, dump_log_segments, segment_files
from tests.compat.kafka_python import KafkaConsumer, KafkaProducer, TopicPartition

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TOPIC = "table"
RETENTION_MS = 60_000
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": str(RETENTION_MS),
    "index.interval.bytes": "256",
}
OURS = LogConfig.parse(
    TOPIC_CONFIG | {"segment.bytes": "4096", "segment.ms": "604800000", "min.cleanable.dirty.ratio": "0"}
)
EAGER = {"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "500"}
Pairs = list[tuple[bytes, bytes | None]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path / "kafka", EAGER) as running:
        yield running


def compact(log: Log, directory: LogDirectory) -> None:
    log.roll()
    runs = 0
    while directory.cleaner.turn() is not None:
        runs += 1
    assert runs
    assert directory.cleaner.set_aside() == {}


def fill(log: Log, now_ms: int) -> None:
    """Append records of every codec, tombstones, an idempotent producer, and committed and aborted transactions. Nearly
    all of them are superseded."""
    for number in range(60):
        fields: dict[str, Any] = {"codec": Codec(number % 5)}
        if number % 3 == 0:
            fields |= {"producer_id": 7, "producer_epoch": 0, "base_sequence": number // 3 * 3}
        records = [(b"k%d" % (number % 7), b"%d" % number), (b"only-%d" % number, b"x"), (b"t%d" % (number % 4), None)]
        log.append(build_batch([_timed(key, value, now_ms) for key, value in records], **fields))
    for sequence, kind in enumerate([ControlType.ABORT, ControlType.COMMIT]):
        batch = build_batch(
            [_timed(b"tx", kind.name.encode(), now_ms)],
            producer_id=8,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        log.append(batch)
        log.append(build_control_batch(kind, 8, 0, 1, now_ms), origin=Origin.COORDINATOR)
    log.append(build_batch([_timed(b"k0", b"last", now_ms), _timed(b"tx", b"after", now_ms)]))


def _timed(key: bytes, value: bytes | None, now_ms: int) -> Record:
    return Record(timestamp=now_ms, key=key, value=value)


def ours(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in log.records()]


def theirs(server: KafkaServer, last_offset: int) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return the records that a read_committed consumer reads, up to `last_offset`."""
    consumer = KafkaConsumer(
        bootstrap_servers=server.bootstrap,
        group_id=None,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    consumer.assign([TopicPartition(TOPIC, 0)])
    found: list[tuple[int, bytes | None, bytes | None]] = []
    deadline = time.monotonic() + 60
    while (not found or found[-1][0] < last_offset) and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            found += [(record.offset, record.key, record.value) for record in records]
    consumer.close()
    return found


def send(server: KafkaServer, pairs: Pairs) -> None:
    producer = KafkaProducer(bootstrap_servers=server.bootstrap, acks="all", compression_type="gzip")
    for key, value in pairs:
        producer.send(TOPIC, key=key, value=value, partition=0).get(timeout=30)
    producer.close()


def assert_sound(partition: Path) -> None:
    files = segment_files(partition)
    assert dump_log_segments(files, "--deep-iteration").complaints_but(Kind.NON_CONSECUTIVE) == []
    assert dump_log_segments(files, "--index-sanity-check").complaints_but(Kind.NON_CONSECUTIVE) == []


def test_dumper_accepts_repeatedly_compacted_segments(tmp_path: Path) -> None:
    """The segments have delete horizons, empty batches and markers. They are checked after the first run, and when the
    horizon has passed."""
    clock = ManualClock(1_700_000_000_000)
    with LogDirectory.open(tmp_path, OURS, clock=clock, background=False) as directory:
        log = directory.log(TOPIC, 0)
        fill(log, clock.now_ms())
        compact(log, directory)
        headers = [header for segment in log.segments for chunk in segment.scan() for header in chunk.headers]
        assert any(header.has_delete_horizon for header in headers)
        assert any(header.record_count == 0 for header in headers)
        assert len(log.segments) > 1
    assert_sound(tmp_path / f"{TOPIC}-0")
    with LogDirectory.open(tmp_path, OURS, clock=clock, background=False) as directory:
        log = directory.log(TOPIC, 0)
        for _ in range(2):
            clock.advance(2 * RETENTION_MS)
            log.append(build_batch([_timed(b"more", b"x", clock.now_ms())]))
            compact(log, directory)
        expected = ours(log)
        assert {value for _, key, value in expected if key == b"t0"} == set()
    partition = tmp_path / f"{TOPIC}-0"
    assert_sound(partition)
    dump = dump_log_segments(segment_files(partition), "--deep-iteration", "--print-data-log")
    seen = [
        (record.offset, record.key, record.value)
        for log_file in sorted(partition.glob("*.log"))
        for record in dump[log_file].records
        if record.control is None
    ]
    assert seen == expected


def test_kafka_serves_a_directory_that_we_compacted(server: KafkaServer) -> None:
    server.create_topic(TOPIC, config=TOPIC_CONFIG | {"segment.ms": "604800000"})
    server.stop()
    now = time.time_ns() // 1_000_000
    with LogDirectory.open(server.data_dir, OURS, background=False) as directory:
        log = directory.log(TOPIC, 0)
        fill(log, now)
        compact(log, directory)
        log.append(build_batch([_timed(b"k1", b"from us", now)]))
        expected = ours(log)
        assert len({key for _, key, _ in expected[:-1]}) == len(expected) - 1
    server.start()
    repairs = [line for line in server.log_lines(f"partition={TOPIC}-0") if " WARN " in line or " ERROR " in line]
    assert repairs == []
    assert theirs(server, expected[-1][0]) == expected
    send(server, [(b"k1", b"from kafka"), (b"k2", None)])
    server.stop()
    with LogDirectory.open(server.data_dir, OURS, background=False) as directory:
        log = directory.log(TOPIC, 0)
        assert log.recovery.problems == []
        compact(log, directory)
        found = {key: value for _, key, value in ours(log)}
        assert (found[b"k1"], found[b"k2"]) == (b"from kafka", None)
        assert len(found) == len(ours(log))


def test_we_read_and_compact_a_log_that_kafka_compacted(server: KafkaServer) -> None:
    server.create_topic(TOPIC, config=TOPIC_CONFIG)
    partition = server.partition_dir(TOPIC)
    latest: dict[bytes, bytes | None] = {}
    deadline = time.monotonic() + 60
    number = 0
    while not _was_compacted(partition) and time.monotonic() < deadline:
        pairs: Pairs = [(b"k%d" % (n % 5), b"%d" % n) for n in range(number, number + 10)] + [(b"gone", None)]
        send(server, pairs)
        latest.update(pairs)
        number += 10
        time.sleep(0.2)
    server.stop()
    assert _was_compacted(partition), server.log_lines("Cleaner")[-5:]
    with LogDirectory.open(server.data_dir, OURS, background=False) as directory:
        log = directory.log(TOPIC, 0)
        assert log.recovery.problems == []
        dirt = directory.cleaner.dirt_of(log)
        assert dirt.first_dirty_offset > 0, "Kafka's checkpoint is not read"
        before = ours(log)
        assert {key: value for _, key, value in before} == latest
        compact(log, directory)
        after = ours(log)
        assert len(after) == len(latest) < len(before) + 1
        assert {key: value for _, key, value in after} == latest
        assert set(after) <= set(before)
        for segment in log.segments:
            for chunk in segment.scan():
                assert all(Batch(chunk.buffer, header).crc_matches() for header in chunk.headers)
    assert_sound(partition)
    server.start()
    send(server, [(b"k0", b"after")])
    assert theirs(server, log.log_end_offset)[-1][1:] == (b"k0", b"after")


def _was_compacted(partition: Path) -> bool:
    """Return whether Kafka has compacted the partition, by its own checkpoint."""
    checkpoint = partition.parent / "cleaner-offset-checkpoint"
    lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
    return any(line.startswith(f"{TOPIC} 0 ") and int(line.split()[-1]) > 20 for line in lines)
