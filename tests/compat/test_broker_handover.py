"""One data directory, two programs: Apache Kafka writes and stops or is killed, Stratalog appends to its files, and
Kafka starts on them again. Offsets continue, no record is lost, and no index needs repair.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import DirectoryLockedError
from stratalog.records._records import Record
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType
from stratalog.storage import LogConfig, LogDirectory, Origin
from tests.compat.kafka import KafkaServer, ServerFailedError, dump_log_segments, segment_files
from tests.compat.kafka_python import KafkaConsumer, KafkaProducer, TopicPartition
from tests.golden.generate.clients import read_back

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TIME = 1_700_000_000_000
TOPIC_CONFIG = {"index.interval.bytes": "256", "segment.index.bytes": "4096", "retention.ms": "-1"}
OUR_CONFIG = LogConfig.parse({**TOPIC_CONFIG, "segment.bytes": "4096"})
Seen = list[tuple[int, bytes | None, bytes | None]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path / "kafka") as running:
        yield running


def kafka_sends(server: KafkaServer, topic: str, start: int, count: int) -> None:
    """Produce records one by one, each acknowledged, so that there are several batches."""
    producer = KafkaProducer(bootstrap_servers=server.bootstrap, acks="all")
    for number in range(start, start + count):
        sent = producer.send(topic, key=b"kafka", value=b"%d" % number, timestamp_ms=TIME + number, partition=0)
        assert sent.get(timeout=30).offset == number
    producer.close()


def we_append(server: KafkaServer, topic: str, start: int, count: int, codec: Codec = Codec.NONE) -> None:
    with LogDirectory.open(server.data_dir, OUR_CONFIG, background=False) as directory:
        log = directory.log(topic, 0)
        assert log.log_end_offset == start
        for number in range(start, start + count, 2):
            records = [Record(timestamp=TIME + n, key=b"ours", value=b"%d" % n) for n in (number, number + 1)]
            assert log.append(build_batch(records, codec=codec)).base_offset == number


def we_read(server: KafkaServer, topic: str) -> Seen:
    with LogDirectory.open(server.data_dir, OUR_CONFIG, background=False) as directory:
        return [(r.offset, r.key, r.value) for r in directory.log(topic, 0).records()]


def kafka_reads(server: KafkaServer, *topics: str) -> dict[str, Seen]:
    """Return the records that the Java consumer reads."""
    return {topic: as_seen(found["records"]) for topic, found in read_back(server.bootstrap, topics).items()}


def as_seen(records: list[dict[str, Any]]) -> Seen:
    return [(r["offset"], base64.b64decode(r["key"]), base64.b64decode(r["value"])) for r in records]


def numbered(*parts: tuple[bytes, int]) -> Seen:
    """Return the expected records of these writers in order. The value of each record is its offset."""
    seen: Seen = []
    for key, count in parts:
        seen += [(offset, key, b"%d" % offset) for offset in range(len(seen), len(seen) + count)]
    return seen


def assert_sound(partition: Path) -> None:
    files = segment_files(partition)
    assert dump_log_segments(files, "--deep-iteration").complaints == []
    assert dump_log_segments(files, "--index-sanity-check").complaints == []


def assert_no_repairs(server: KafkaServer, topic: str) -> None:
    found = [line for line in server.log_lines(f"partition={topic}-0") if " WARN " in line or " ERROR " in line]
    assert found == []


def test_kafka_continues_after_our_appends_to_its_log(server: KafkaServer) -> None:
    topics = [f"codec-{codec.name.lower()}" for codec in Codec]
    for topic in topics:
        server.create_topic(topic, config=TOPIC_CONFIG)
        kafka_sends(server, topic, 0, 20)
    server.stop()
    for topic, codec in zip(topics, Codec, strict=True):
        assert we_read(server, topic) == numbered((b"kafka", 20))
        we_append(server, topic, 20, 100, codec)
        assert len(list(server.partition_dir(topic).glob("*.log"))) > 1
    assert_sound(server.partition_dir(topics[0]))
    server.start()
    assert server.log_lines("Skipping recovery of")
    assert kafka_reads(server, *topics) == dict.fromkeys(topics, numbered((b"kafka", 20), (b"ours", 100)))
    for topic in topics:
        assert_no_repairs(server, topic)
        kafka_sends(server, topic, 120, 3)
    server.stop()
    for topic in topics:
        assert we_read(server, topic) == numbered((b"kafka", 20), (b"ours", 100), (b"kafka", 3))
        assert_sound(server.partition_dir(topic))


def test_kafka_continues_after_we_recovered_its_log(server: KafkaServer) -> None:
    server.create_topic("killed", config=TOPIC_CONFIG)
    kafka_sends(server, "killed", 0, 30)
    server.kill()
    log = next(iter(server.partition_dir("killed").glob("*.log")))
    log.write_bytes(log.read_bytes() + log.read_bytes()[:50])  # like a torn batch
    assert we_read(server, "killed") == numbered((b"kafka", 30))
    we_append(server, "killed", 30, 10)
    assert_sound(server.partition_dir("killed"))
    server.start()
    assert_no_repairs(server, "killed")
    kafka_sends(server, "killed", 40, 2)
    expected = numbered((b"kafka", 30), (b"ours", 10), (b"kafka", 2))
    assert kafka_reads(server, "killed") == {"killed": expected}


CRASHING = """
import os, signal, sys
from stratalog.records.builder import build_batch
from stratalog.storage import LogConfig, LogDirectory
config = LogConfig.parse({"index.interval.bytes": "256", "segment.index.bytes": "4096", "segment.bytes": "4096"})
log = LogDirectory.open(sys.argv[1], config).log("crash", 0)
for number in range(10, 110):
    log.append(build_batch([(b"ours", b"%d" % number)]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kafka_recovers_our_appends_after_a_kill(server: KafkaServer) -> None:
    server.create_topic("crash", config=TOPIC_CONFIG)
    kafka_sends(server, "crash", 0, 10)
    server.stop()
    done = subprocess.run([sys.executable, "-c", CRASHING, str(server.data_dir)], timeout=60, check=False)
    assert done.returncode == -9
    assert not (server.data_dir / ".kafka_cleanshutdown").exists()
    server.start()
    assert server.log_lines("since no clean shutdown file was found")
    assert kafka_reads(server, "crash") == {"crash": numbered((b"kafka", 10), (b"ours", 100))}
    server.stop()
    assert_sound(server.partition_dir("crash"))


def test_kafka_reads_our_committed_and_aborted_transactions(server: KafkaServer) -> None:
    server.create_topic("tx", config=TOPIC_CONFIG)
    kafka_sends(server, "tx", 0, 1)
    server.stop()
    with LogDirectory.open(server.data_dir, OUR_CONFIG, background=False) as directory:
        log = directory.log("tx", 0)
        for number, end in enumerate((ControlType.COMMIT, ControlType.ABORT, ControlType.COMMIT)):
            producer: dict[str, Any] = {"producer_id": 9000, "producer_epoch": 3}
            batch = build_batch([(b"k", b"v")] * 2, base_sequence=2 * number, is_transactional=True, **producer)
            log.append(batch)
            marker = build_control_batch(end, coordinator_epoch=0, timestamp=TIME, **producer)
            log.append(marker, origin=Origin.COORDINATOR)
    server.start()
    found = read_back(server.bootstrap, ["tx"])["tx"]
    assert [record["offset"] for record in found["records"]] == [0, 1, 2, 4, 5, 7, 8]
    assert found["committed"] == [0, 1, 2, 7, 8]


def test_lookups_by_timestamp_and_log_start_offsets_agree(server: KafkaServer) -> None:
    """Kafka's ListOffsets and our find_timestamp return the same, on the same files with markers."""
    server.create_topic("times", config={**TOPIC_CONFIG, "segment.ms": "1000000000000"})
    producer = KafkaProducer(bootstrap_servers=server.bootstrap)
    for number in range(12):
        for i in range(3):
            timestamp = TIME + number * 100 - (250 if number % 4 == 3 else 0) + (-i * 7 if number % 2 else i * 7)
            producer.send("times", key=b"k", value=b"v", timestamp_ms=timestamp, partition=0)
        producer.flush()
    producer.close()
    producer = KafkaProducer(bootstrap_servers=server.bootstrap, transactional_id="t")
    producer.init_transactions()
    for timestamp in (TIME + 500, TIME + 1300):
        producer.begin_transaction()
        producer.send("times", key=b"k", value=b"v", timestamp_ms=timestamp, partition=0)
        producer.flush()
        producer.commit_transaction()
    producer.close()
    wanted = [TIME + t for t in range(-300, 1400, 13)] + [2**62]
    consumer = KafkaConsumer(bootstrap_servers=server.bootstrap, group_id=None)
    partition = TopicPartition("times", 0)
    answers = [consumer.offsets_for_times({partition: time})[partition] for time in wanted]
    consumer.close()
    server.stop()
    with LogDirectory.open(server.data_dir, OUR_CONFIG, background=False) as directory:
        log = directory.log("times", 0)
        ours = [log.find_timestamp(time) for time in wanted]
    assert [found and (found.offset, found.timestamp) for found in ours] == [
        answer and (answer.offset, answer.timestamp) for answer in answers
    ]
    assert len(set(ours)) > 10


def test_old_segments_that_we_deleted_stay_deleted(server: KafkaServer) -> None:
    server.create_topic("short", config=TOPIC_CONFIG)
    kafka_sends(server, "short", 0, 2)
    server.stop()
    we_append(server, "short", 2, 200)
    with LogDirectory.open(server.data_dir, OUR_CONFIG, background=False) as directory:
        log = directory.log("short", 0)
        start = log.segments[2].base_offset + 1
        log.advance_start(start)
        assert len(log.apply_retention()) == 2
    server.start()
    assert [offset for offset, _, _ in kafka_reads(server, "short")["short"]] == list(range(start, 202))


def test_neither_program_opens_a_directory_that_the_other_has_open(server: KafkaServer) -> None:
    with pytest.raises(DirectoryLockedError):
        LogDirectory.open(server.data_dir, background=False)
    server.stop()
    held = LogDirectory.open(server.data_dir, background=False)
    with pytest.raises(ServerFailedError, match=r"Failed to acquire lock on file \.lock"):
        server.start()
    held.close()
    server.start()
