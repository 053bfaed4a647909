"""Generate the golden directories: python -m tests.golden.generate [name ...]

This starts Apache Kafka, lets every client send its plan, reads the records with the Java consumer, stops the broker
cleanly and copies the files. Without names, it generates all directories, also the legacy ones, and MANIFEST.md.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.compat.fetch_kafka import KAFKA_VERSION
from tests.compat.kafka import KafkaServer
from tests.compat.kafka_python import KafkaAdminClient, TopicPartition
from tests.golden.generate import legacy, plan
from tests.golden.generate.clients import VERSIONS, produce, read_back
from tests.golden.generate.describe import describe, write_expected
from tests.golden.generate.manifest import write_manifest
from tests.golden.generate.plan import CODECS, Topic

GOLDEN = Path(__file__).resolve().parents[1]
FOREVER = "9223372036854775807"
DELETED_BEFORE = 4
CLEANER_SECONDS = 60
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
DATA_DIRECTORY_FILES = (*CHECKPOINTS, ".kafka_cleanshutdown", "meta.properties")

# Old timestamps must not delete or roll anything; small intervals give every log index entries.
EVERY_TOPIC = {
    "retention.ms": "-1",
    "segment.ms": FOREVER,
    "index.interval.bytes": "64",
    "segment.index.bytes": "1024",
}
BROKER_SETTINGS = {"log.cleaner.backoff.ms": "100", "log.segment.delete.delay.ms": "0"}


def topics_of(client: str) -> list[Topic]:
    steps = plan.every_kind_of_record(every_null=client in ("java", "confluent-kafka"))
    topics = [Topic(f"{client}-{codec}", codec, steps=steps) for codec in CODECS]
    if client != "aiokafka":
        topics.append(Topic(f"{client}-transactional", "none", "transactional", plan.commits_and_aborts()))
    if client == "java":
        topics += [
            Topic("java-idempotent", "lz4", "idempotent", plan.idempotent()),
            Topic("java-deleted-records", "none", "idempotent", plan.idempotent()),
            Topic(
                "java-log-append-time",
                "zstd",
                steps=steps,
                config={"message.timestamp.type": "LogAppendTime"},
            ),
            Topic("java-segments", "none", "idempotent", plan.several_segments(), {"segment.ms": "5000"}),
            Topic(
                "java-compacted",
                "snappy",
                steps=plan.to_be_compacted(),
                config={
                    "cleanup.policy": "compact",
                    "segment.ms": "5000",
                    "min.cleanable.dirty.ratio": "0.01",
                },
            ),
        ]
    return topics


def main(names: Sequence[str]) -> None:
    topics_by_client = {client: [t for t in topics_of(client) if not names or t.name in names] for client in VERSIONS}
    if any(topics_by_client.values()):
        with (
            tempfile.TemporaryDirectory(prefix="golden-") as scratch,
            KafkaServer(Path(scratch), BROKER_SETTINGS) as server,
        ):
            generate(server, topics_by_client, with_data_directory=not names)
    legacy.generate(names, GOLDEN)
    write_manifest(GOLDEN)


def generate(server: KafkaServer, topics_by_client: dict[str, list[Topic]], *, with_data_directory: bool) -> None:
    for client, topics in topics_by_client.items():
        for topic in topics:
            server.create_topic(topic.name, config={**EVERY_TOPIC, **topic.config})
        if topics:
            produce(client, server.bootstrap, topics)
    names = [topic.name for topics in topics_by_client.values() for topic in topics]
    if "java-deleted-records" in names:
        delete_records(server)
    if "java-compacted" in names:
        await_compaction(server)
    seen = read_back(server.bootstrap, names)
    server.stop()
    for client, topics in topics_by_client.items():
        for topic in topics:
            keep(server.partition_dir(topic.name), client, topic, seen[topic.name])
    if with_data_directory:
        keep_data_directory(server.data_dir)


def delete_records(server: KafkaServer) -> None:
    admin = KafkaAdminClient(bootstrap_servers=server.bootstrap)
    admin.delete_records({TopicPartition("java-deleted-records", 0): DELETED_BEFORE})
    admin.close()


def await_compaction(server: KafkaServer) -> None:
    """Wait until the cleaner's checkpoint has reached the active segment and no swap is in progress."""
    directory = server.partition_dir("java-compacted")
    active = max(int(log.stem) for log in directory.glob("*.log"))
    deadline = time.monotonic() + CLEANER_SECONDS
    while time.monotonic() < deadline:
        checkpoint = (server.data_dir / "cleaner-offset-checkpoint").read_text()
        if f"java-compacted 0 {active}\n" in checkpoint and not list(directory.glob("*.deleted")):
            return
        time.sleep(0.2)
    sys.exit(f"the cleaner did not reach offset {active}")


def keep(partition: Path, client: str, topic: Topic, seen: dict[str, Any]) -> None:
    target = GOLDEN / topic.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(partition, target)
    name = "kafka-clients (Java)" if client == "java" else client
    expected: dict[str, Any] = {
        "client": f"{name} {VERSIONS[client]}",
        "broker": f"Apache Kafka {KAFKA_VERSION}",
        "read_by": f"kafka-clients (Java) {KAFKA_VERSION}",
        "codec": topic.codec,
        "mode": topic.mode,
        "topic_config": {**EVERY_TOPIC, **topic.config},
        "magic": 2,
        "files": sorted(path.name for path in target.iterdir()),
        "records": seen["records"],
        **describe(target),
    }
    if topic.mode == "transactional":
        expected["committed"] = seen["committed"]
    write_expected(target, expected)


def keep_data_directory(data: Path) -> None:
    target = GOLDEN / "data-directory"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name in DATA_DIRECTORY_FILES:
        shutil.copy(data / name, target / name)
    entries = {name: (data / name).read_text().splitlines()[2:] for name in CHECKPOINTS}
    expected = {
        "client": "all of the above",
        "broker": f"Apache Kafka {KAFKA_VERSION}",
        "files": sorted(DATA_DIRECTORY_FILES),
        "records": [],
        "control": [],
        "checkpoints": {
            name: [[line.split()[0], int(line.split()[1]), int(line.split()[2])] for line in lines]
            for name, lines in entries.items()
        },
    }
    write_expected(target, expected)


if __name__ == "__main__":
    main(sys.argv[1:])
