"""Golden directories of magic 0 and 1: records of old Java clients, as a 0.10.2.2 broker wrote them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.compat.fetch_kafka import KAFKA_VERSION, fetch, fetch_kafka
from tests.compat.kafka import Kind
from tests.golden.generate.clients import run_java
from tests.golden.generate.describe import describe, write_expected
from tests.golden.generate.legacy_broker import VERSION as BROKER_VERSION
from tests.golden.generate.legacy_broker import LegacyBroker
from tests.golden.generate.plan import every_kind_of_record

CLIENT_OF_MAGIC = {0: "0.9.0.1", 1: "0.10.2.2"}
FORMAT_OF_MAGIC = {0: "0.9.0", 1: "0.10.2"}
LEGACY_CODECS = ("none", "gzip", "snappy", "lz4")
FOREVER = "9223372036854775807"


@dataclass(frozen=True)
class LegacyTopic:
    name: str
    magic: int
    codec: str
    config: dict[str, str] = field(default_factory=dict)

    @property
    def topic_config(self) -> dict[str, str]:
        return {"message.format.version": FORMAT_OF_MAGIC[self.magic], "segment.ms": FOREVER, **self.config}


TOPICS = [
    *(LegacyTopic(f"magic{magic}-{codec}", magic, codec) for magic in (0, 1) for codec in LEGACY_CODECS),
    LegacyTopic("magic1-log-append-time", 1, "gzip", {"message.timestamp.type": "LogAppendTime"}),
]


def generate(names: Sequence[str], golden: Path) -> None:
    topics = [topic for topic in TOPICS if not names or topic.name in names]
    if not topics:
        return
    with (
        tempfile.TemporaryDirectory(prefix="golden-legacy-") as scratch,
        LegacyBroker(Path(scratch)) as broker,
    ):
        records = Path(scratch) / "records.txt"
        records.write_text(lines_of_records())
        for topic in topics:
            broker.create_topic(topic.name, topic.topic_config)
            version = CLIENT_OF_MAGIC[topic.magic]
            libs = fetch(f"kafka-clients-{version}", (f"org.apache.kafka:kafka-clients:{version}",))
            run_java("ProduceLegacy.java", libs, [broker.bootstrap, topic.name, topic.codec, str(records)])
        broker.stop()
        for topic in topics:
            keep(broker.data_dir / f"{topic.name}-0", topic, golden / topic.name)


def lines_of_records() -> str:
    """Return the records that the current clients send, without headers, which these formats do not have."""
    lines = []
    for step in every_kind_of_record(every_null=True):
        for record in step["records"]:
            lines.append(f"{record['timestamp']} {shown(record['key'])} {shown(record['value'])}")
        lines.append("")
    return "\n".join(lines)


def shown(encoded: str | None) -> str:
    return "-" if encoded is None else encoded or "="


def keep(partition: Path, topic: LegacyTopic, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(partition, target)
    logs = sorted(target.glob("*.log"))
    records: list[Any] = []
    for log in logs:
        records += json.loads(run_java("ReadLogFile.java", fetch_kafka(), [str(log)]))
    # An index of a 0.10 broker has the first offset of a request; today's tool expects the last offset of a batch.
    described = describe(target, Kind.INDEX_MISMATCH, Kind.OFFSET_NOT_FOUND, Kind.TIMESTAMP_MISMATCH)
    expected = {
        "client": f"kafka-clients (Java) {CLIENT_OF_MAGIC[topic.magic]}",
        "broker": f"Apache Kafka {BROKER_VERSION}",
        "read_by": f"FileRecords of kafka-clients (Java) {KAFKA_VERSION}",
        "codec": topic.codec,
        "mode": "plain",
        "topic_config": topic.topic_config,
        "magic": topic.magic,
        "files": sorted(path.name for path in target.iterdir()),
        "records": records,
        **described,
    }
    write_expected(target, expected)
