"""__consumer_offsets of both brokers: Apache Kafka's tool reads the records of our coordinator, and our coordinator
reads the records of Kafka."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.groups.classic_group import ClassicGroup
from stratalog.broker.groups.classic_messages import SyncRequest
from stratalog.broker.groups.classic_service import ClassicGroups
from stratalog.broker.groups.offset_service import Committer, OffsetService
from stratalog.broker.groups.offsets import OffsetToCommit
from stratalog.records import build_batch
from stratalog.storage import LogDirectory
from tests.broker.groups.manual_coordinator import ListLog, ManualCoordinator
from tests.broker.groups.members import Join, Sync, join_request
from tests.compat.jvm import run_tool_or_fail
from tests.compat.kafka import KafkaServer
from tests.compat.kafka_python import KafkaConsumer, KafkaProducer, TopicPartition
from tests.compat.log_dump import DUMP_LOG_SEGMENTS

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

AT = 1_700_000_000_000
DUMPED = re.compile(r"^\| offset: \d+ .* key: (\{.*\}) payload: (.*)$", re.MULTILINE)
SHARE = b"\0\1\0\0\0\1\0\6orders\0\0\0\1\0\0\0\2\xff\xff\xff\xff"  # partition 2 of orders


def some_groups() -> ManualCoordinator:
    """Create a group with a static member, committed offsets of old and new clients, and a tombstone."""
    coordinator = ManualCoordinator(offsets_log=ListLog(1))
    asyncio.run(coordinator.load())
    groups, offsets = ClassicGroups(coordinator), OffsetService(coordinator)
    join, sync = Join(), Sync()
    groups.join("g", join_request(instance_id="i"), join)
    coordinator.timers.advance(3_000)
    member = join.answer.member_id
    groups.sync("g", SyncRequest(member, "i", 1, None, None, {member: SHARE}), sync)
    assert sync.answer.error is ErrorCode.none
    who = Committer("g", member, 1, "i", 9)
    offsets.commit(who, [OffsetToCommit("orders", uuid.UUID(int=5), 2, 42, 3, "mé")], None)
    offsets.commit(who, [OffsetToCommit("payments", None, 1, 7, -1, "")], 60_000)
    assert offsets.delete("g", [("payments", 1)]) == [ErrorCode.none]
    return coordinator


def test_kafkas_dumper_reads_our_groups_and_offsets(tmp_path: Path) -> None:
    coordinator = some_groups()
    with LogDirectory.open(tmp_path / "data", background=False) as directory:
        log = directory.log("__consumer_offsets", 0)
        for record in coordinator.log.records:
            log.append(build_batch([record]))
        (segment,) = log.path.glob("*.log")
    output = run_tool_or_fail(DUMP_LOG_SEGMENTS, ["--offsets-decoder", "--files", str(segment)])
    dumped = DUMPED.findall(output.stdout.decode())
    keys = [json.loads(key) for key, _ in dumped]
    values: list[Any] = [None if value == "<DELETE>" else json.loads(value) for _, value in dumped]
    group, offset, old, tombstone = values
    assert [key["type"] for key in keys] == ["2", "1", "1", "1"]
    assert keys[1]["data"] == {"group": "g", "topic": "orders", "partition": 2}
    assert group["version"] == "3"
    (member,) = group["data"]["members"]
    assert (member["groupInstanceId"], member["sessionTimeout"]) == ("i", 10_000)
    assert member["subscription"]["topics"] == ["orders"]
    assert member["assignment"]["assignedPartitions"] == [{"topic": "orders", "partitions": [2]}]
    assert offset == {
        "version": "4",
        "data": {
            "offset": 42,
            "leaderEpoch": 3,
            "metadata": "mé",
            "commitTimestamp": AT + 3_000,
            "topicId": "AAAAAAAAAAAAAAAAAAAABQ",
        },
    }
    assert (old["version"], old["data"]["expireTimestamp"]) == ("1", AT + 63_000)
    assert tombstone is None


def kafka_makes_a_group(server: KafkaServer) -> dict[str, Any]:
    server.create_topic("orders", partitions=2)
    producer = KafkaProducer(bootstrap_servers=server.bootstrap)
    for number in range(10):
        producer.send("orders", b"%d" % number, partition=number % 2).get(timeout=30)
    producer.close()
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=server.bootstrap, group_id="g", group_instance_id="i", auto_offset_reset="earliest",
        enable_auto_commit=False, client_id="app", session_timeout_ms=45_000,
    )  # fmt: skip
    seen = 0
    while seen < 10:
        seen += sum(len(records) for records in consumer.poll(1_000).values())
    from kafka.structs import OffsetAndMetadata  # kafka itself was imported with its warnings silenced

    consumer.commit({TopicPartition("orders", 1): OffsetAndMetadata(4, "noted", -1)})
    generation = consumer._coordinator.generation()
    consumer.close(autocommit=False)  # a static member does not leave
    return {"generation": generation.generation_id, "member_id": generation.member_id}


def test_our_coordinator_continues_groups_and_offsets_of_kafka(tmp_path: Path) -> None:
    with KafkaServer(tmp_path / "kafka") as server:
        made = kafka_makes_a_group(server)
        server.stop()
    with LogDirectory.open(server.data_dir, background=False) as directory:
        records = [(record.key, record.value) for record in directory.log("__consumer_offsets", 0).records()]
    offsets_log = ListLog(1)
    offsets_log.partitions[0] = [(key, value) for key, value in records if key is not None]
    coordinator = ManualCoordinator(offsets_log=offsets_log)
    asyncio.run(coordinator.load())
    group = coordinator.group("g")
    assert isinstance(group, ClassicGroup)
    assert (group.state_name, group.generation, group.member_ids) == ("Stable", made["generation"], [made["member_id"]])
    assert group.subscribed_to("orders")
    described = group.describe()
    assert [(one.group_instance_id, one.client_id) for one in described.members] == [("i", "app")]
    committed = coordinator.offsets.of("g")["orders"][1]
    assert (committed.offset, committed.metadata) == (4, "noted")
    beat = ClassicGroups(coordinator).heartbeat("g", made["member_id"], "i", made["generation"])
    assert beat is ErrorCode.none
