"""The requests of Kafka's admin clients to a cluster of three brokers: elections, reassignments, deletions of records,
settings; and what a broker answers about partitions that it does not lead, or does not have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from stratalog.broker.replication.config import RACK_AWARE_SELECTOR
from stratalog.lab.cluster import LabCluster
from stratalog.protocol.api_keys import ApiKey
from tests.cluster.conftest import SETTINGS
from tests.cluster.raw_requests import (
    TIMEOUT_MS,
    ask,
    create,
    describe,
    fetch,
    list_offset,
    produce,
    wait_until,
)
from tests.cluster.traffic import Traffic, segments
from tests.compat.kafka_python import KafkaAdminClient
from tests.compat.kafka_python import TopicPartition as PythonPartition

PREFERRED, UNCLEAN = 0, 1
EARLIEST, LATEST = -2, -1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabCluster]:
    racks = {node_id: {"broker.rack": f"rack-{node_id}"} for node_id in (1, 2, 3)}
    settings = {**SETTINGS, "replica.selector.class": RACK_AWARE_SELECTOR}
    directory = tmp_path_factory.mktemp("cluster")
    running = LabCluster(directory, settings=settings, own_settings=racks, dies_with_thread=True)
    try:
        yield running.start()
        assert {node_id: broker.errors() for node_id, broker in running.brokers.items()} == {1: [], 2: [], 3: []}
    finally:
        running.kill()


def elect(cluster: LabCluster, broker: int, topic: str, kind: int = PREFERRED) -> str:
    requested = [{"topic": topic, "partitions": [0]}]
    answer = ask(
        cluster, broker, ApiKey.ELECT_LEADERS, election_type=kind, topic_partitions=requested, timeout=TIMEOUT_MS
    )
    assert answer.error_code.name == "none"
    name: str = answer.replica_election_results[0].partition_result[0].error_code.name
    return name


def reassign(cluster: LabCluster, broker: int, topic: str, replicas: list[int] | None, **fields: Any) -> str:
    partitions = [{"partition_index": 0, "replicas": replicas}]
    topics = [{"name": topic, "partitions": partitions}]
    request = {"timeout": TIMEOUT_MS, "allow_replication_factor_change": True, "topics": topics, **fields}
    answer = ask(cluster, broker, ApiKey.ALTER_PARTITION_REASSIGNMENTS, **request)
    assert answer.error_code.name == "none"
    name: str = answer.responses[0].partitions[0].error_code.name
    return name


def reassignments(cluster: LabCluster, broker: int, topics: Any = None) -> dict[str, tuple[list[int], ...]]:
    answer = ask(cluster, broker, ApiKey.LIST_PARTITION_REASSIGNMENTS, timeout=TIMEOUT_MS, topics=topics)
    return {
        topic.name: (list(each.replicas), list(each.adding_replicas), list(each.removing_replicas))
        for topic in answer.topics
        for each in topic.partitions
    }


def delete_records(
    cluster: LabCluster, broker: int, topic: str, offset: int, timeout: int = TIMEOUT_MS
) -> tuple[str, int]:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    answer = ask(cluster, broker, ApiKey.DELETE_RECORDS, topics=topics, timeout=timeout)
    partition = answer.topics[0].partitions[0]
    return partition.error_code.name, partition.low_watermark


def produced(cluster: LabCluster, broker: int, topic: str, value: bytes) -> str:
    name: str = produce(cluster, broker, topic, value).responses[0].partition_responses[0].error_code.name
    return name


def log_of(cluster: LabCluster, broker: int, topic: str) -> bytes:
    return b"".join(segments(cluster.broker(broker).data_dir, topic, 0).values())


# Reassignments


def test_reassignment_leaves_data_behind_on_the_old_broker(cluster: LabCluster) -> None:
    create(cluster, "moving", [1, 2])
    for number in range(20):
        produce(cluster, 1, "moving", *(b"%d" % number for _ in range(50)))
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        client.alter_partition_reassignments({PythonPartition("moving", 0): [3, 1]})
        wait_until(lambda: not client.list_partition_reassignments())
    finally:
        client.close()
    wait_until(lambda: list(describe(cluster, "moving").replica_nodes) == [3, 1])
    moved = describe(cluster, "moving")
    assert (list(moved.replica_nodes), set(moved.isr_nodes)) == ([3, 1], {1, 3})
    assert moved.leader_id == 1, "the leader stays, if it has a replica"
    wait_until(lambda: produced(cluster, 1, "moving", b"last") == "none")  # it leads in a new epoch in a moment
    wait_until(lambda: all(b"last" in log_of(cluster, node_id, "moving") for node_id in (1, 3)))
    assert segments(cluster.broker(3).data_dir, "moving", 0) == segments(cluster.broker(1).data_dir, "moving", 0)
    wait_until(lambda: not (cluster.broker(2).data_dir / "moving-0").exists())
    assert list_offset(cluster, 1, "moving", LATEST).offset == 1001


def test_reassignment_can_not_be_cancelled(cluster: LabCluster) -> None:
    create(cluster, "staying", [1, 2])
    produce(cluster, 1, "staying", b"value")
    cluster.broker(3).pause()
    try:
        assert reassign(cluster, 2, "staying", [3, 1]) == "none"
        expected = {"staying": ([3, 1, 2], [3], [2])}
        assert reassignments(cluster, 1) == reassignments(cluster, 2) == expected
        assert reassignments(cluster, 1, [{"name": "staying", "partition_indexes": [0, 5]}]) == expected
        assert reassignments(cluster, 1, [{"name": "other", "partition_indexes": [0]}]) == {}
        assert reassign(cluster, 2, "staying", None) == "none"
    finally:
        cluster.broker(3).resume()
    assert reassignments(cluster, 1) == {}
    described = describe(cluster, "staying")
    assert (list(described.replica_nodes), described.leader_id) == ([1, 2], 1)
    assert reassign(cluster, 1, "staying", None) == "no_reassignment_in_progress"
    wait_until(lambda: len(ask(cluster, 1, ApiKey.DESCRIBE_CLUSTER, endpoint_type=1).brokers) == 3)
    wait_until(lambda: not (cluster.broker(3).data_dir / "staying-0").exists())


def test_reassignment_that_is_not_valid_is_accepted(cluster: LabCluster) -> None:
    create(cluster, "fixed", [1, 2])
    for replicas in ([], [1, 1], [1, 9]):
        assert reassign(cluster, 3, "fixed", replicas) == "invalid_replica_assignment"
    factor = {"allow_replication_factor_change": False}
    assert reassign(cluster, 3, "fixed", [1, 2, 3], **factor) == "invalid_replication_factor"
    assert reassign(cluster, 3, "fixed", [1, 2], **factor) == "none"
    assert reassign(cluster, 3, "missing", [1]) == "unknown_topic_or_partition"
    assert reassignments(cluster, 3) == {}


def test_leaders_that_change_on_request_lose_records(cluster: LabCluster) -> None:
    create(cluster, "busy", [1, 2, 3])
    with Traffic(cluster, "busy", 1) as traffic:
        for replicas in ([2, 3, 1], [3, 1, 2], [1, 2, 3], [2, 3], [1, 2]):
            assert reassign(cluster, 1, "busy", replicas) == "none"
            wait_until(lambda: reassignments(cluster, 1) == {})
            assert elect(cluster, 2, "busy") in ("none", "election_not_needed")
            traffic.wait_for_more()
            assert describe(cluster, "busy").leader_id == replicas[0]
    assert traffic.errors == []
    traffic.check()


# Elections, and brokers that are down


def test_elections_on_request(cluster: LabCluster) -> None:
    create(cluster, "elected", [3, 1, 2])
    create(cluster, "single", [3])
    assert elect(cluster, 1, "elected") == elect(cluster, 2, "single", UNCLEAN) == "election_not_needed"
    assert elect(cluster, 1, "missing") == "unknown_topic_or_partition"
    everywhere = ask(cluster, 1, ApiKey.ELECT_LEADERS, election_type=0, topic_partitions=None, timeout=TIMEOUT_MS)
    elected = {topic.topic: topic.partition_result for topic in everywhere.replica_election_results}
    assert elected["elected"] == elected["single"] == (), "partitions that need no election are left out"
    [unregistered] = [ask(cluster, 1, ApiKey.UNREGISTER_BROKER, broker_id=3)]
    assert unregistered.error_code.name == "invalid_request"
    assert ask(cluster, 1, ApiKey.UNREGISTER_BROKER, broker_id=77).error_code.name == "broker_id_not_registered"

    cluster.broker(3).stop()
    wait_until(lambda: describe(cluster, "elected").leader_id == 1)
    assert elect(cluster, 2, "elected") == "preferred_leader_not_available"
    assert elect(cluster, 2, "single", UNCLEAN) == "eligible_leaders_not_available"
    single = describe(cluster, "single")
    assert (single.error_code.name, single.leader_id) == ("none", -1)
    assert (list(single.eligible_leader_replicas), list(single.offline_replicas)) == ([3], [3])
    assert ask(cluster, 1, ApiKey.UNREGISTER_BROKER, broker_id=3).error_code.name == "none"
    single = describe(cluster, "single")
    assert (list(single.eligible_leader_replicas), list(single.last_known_elr)) == ([], [3])
    assert ask(cluster, 2, ApiKey.UNREGISTER_BROKER, broker_id=3).error_code.name == "broker_id_not_registered"

    cluster.broker(3).start()
    wait_until(lambda: len(describe(cluster, "elected").isr_nodes) == 3)
    assert describe(cluster, "elected").leader_id == 1
    assert elect(cluster, 2, "elected") == "none"
    wait_until(lambda: list_offset(cluster, 3, "elected", LATEST).error_code.name == "none")
    assert describe(cluster, "elected").leader_id == 3
    wait_until(lambda: describe(cluster, "single").leader_id == 3)


# DeleteRecords


def test_deleted_records_stay_on_a_replica(cluster: LabCluster) -> None:
    create(cluster, "short", [1, 2, 3])
    for number in range(10):
        produce(cluster, 1, "short", b"%d" % number)
    assert delete_records(cluster, 2, "short", 4) == ("not_leader_or_follower", -1)
    assert delete_records(cluster, 1, "short", 11) == ("offset_out_of_range", -1)
    assert delete_records(cluster, 1, "short", 4) == ("none", 4)
    assert list_offset(cluster, 1, "short", EARLIEST).offset == 4
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    [deleted] = client.delete_records([TopicPartition("short", 0, 6)]).values()
    assert deleted.result(30).low_watermark == 6
    cluster.broker(3).pause()
    try:
        assert delete_records(cluster, 1, "short", -1, timeout=300) == ("request_timed_out", 6)
    finally:
        cluster.broker(3).resume()
    assert delete_records(cluster, 1, "short", -1) == ("none", 10)
    assert list_offset(cluster, 1, "short", EARLIEST).offset == 10


def test_deletion_never_ends_when_the_slow_replica_leaves_the_isr(cluster: LabCluster) -> None:
    create(cluster, "shrinking", [1, 2, 3])
    produce(cluster, 1, "shrinking", b"a", b"b")
    cluster.broker(3).pause()
    try:
        assert delete_records(cluster, 1, "shrinking", 2) == ("none", 2)
    finally:
        cluster.broker(3).resume()
    wait_until(lambda: len(describe(cluster, "shrinking").isr_nodes) == 3)


# The current leader in errors


def test_error_does_not_name_the_leader(cluster: LabCluster) -> None:
    create(cluster, "led", [1, 2])
    epoch = describe(cluster, "led").leader_epoch
    address = (1, "127.0.0.1", cluster.broker(1).port, "rack-1")
    for broker in (2, 3):  # a follower, and a broker without a replica
        for acks in (1, -1):
            refused = produce(cluster, broker, "led", b"value", acks=acks)
            partition = refused.responses[0].partition_responses[0]
            assert partition.error_code.name == "not_leader_or_follower"
            assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (1, epoch)
            assert [(e.node_id, e.host, e.port, e.rack) for e in refused.node_endpoints] == [address]
    fetched = fetch(cluster, 3, "led")
    partition = fetched.responses[0].partitions[0]
    assert partition.error_code.name == "not_leader_or_follower"
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (1, epoch)
    assert [(e.node_id, e.host, e.port, e.rack) for e in fetched.node_endpoints] == [address]
    assert fetch(cluster, 3, "led", version=15).responses[0].partitions[0].current_leader.leader_id == -1
    partition_of_led = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
    by_name = {"topics": [{"topic": "led", "partitions": [partition_of_led]}]}
    old = ask(cluster, 2, ApiKey.FETCH, 10, replica_id=-1, max_wait=0, min_bytes=1, session_epoch=-1, **by_name)
    assert old.responses[0].partitions[0].error_code.name == "not_leader_or_follower", (
        "followers serve newer clients only"
    )
    large = produce(cluster, 3, "led", b"x" * 900_000).responses[0].partition_responses[0]
    assert large.error_code.name == "not_leader_or_follower"
    accepted = produce(cluster, 1, "led", b"value")
    assert accepted.responses[0].partition_responses[0].error_code.name == "none"
    assert accepted.node_endpoints == ()


def test_fenced_leader_epoch_does_not_name_the_new_one(cluster: LabCluster) -> None:
    create(cluster, "fenced", [1, 2])
    assert reassign(cluster, 1, "fenced", [2, 1]) == "none"
    assert elect(cluster, 1, "fenced") == "none"
    wait_until(lambda: list_offset(cluster, 2, "fenced", LATEST).error_code.name == "none")
    epoch = describe(cluster, "fenced").leader_epoch
    assert epoch > 0
    fetched = fetch(cluster, 2, "fenced", leader_epoch=epoch - 1)
    partition = fetched.responses[0].partitions[0]
    assert partition.error_code.name == "fenced_leader_epoch"
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (2, epoch)
    assert [endpoint.node_id for endpoint in fetched.node_endpoints] == [2]
    newer = fetch(cluster, 2, "fenced", leader_epoch=epoch + 1).responses[0].partitions[0]
    assert (newer.error_code.name, newer.current_leader.leader_id) == ("unknown_leader_epoch", -1)


# Partitions that a broker does not lead, or does not have


def test_broker_without_a_replica_answers_from_an_empty_log(cluster: LabCluster) -> None:
    create(cluster, "elsewhere", [1, 2], cleanup_policy="compact")
    produce(cluster, 1, "elsewhere", b"not compacted")
    for broker, is_follower in ((2, True), (3, False)):
        assert list_offset(cluster, broker, "elsewhere", EARLIEST).error_code.name == "not_leader_or_follower"
        query = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
        answer = ask(
            cluster,
            broker,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            replica_id=-1,
            topics=[{"topic": "elsewhere", "partitions": [query]}],
        )
        assert answer.topics[0].partitions[0].error_code.name == "not_leader_or_follower"

        [directory] = ask(cluster, broker, ApiKey.DESCRIBE_LOG_DIRS, topics=None).results
        assert ("elsewhere" in [topic.name for topic in directory.topics]) == is_follower
        requested = [{"name": "elsewhere", "partition_indexes": [0]}]
        [producers] = ask(cluster, broker, ApiKey.DESCRIBE_PRODUCERS, topics=requested).topics[0].partitions
        assert producers.error_code.name == ("none" if is_follower else "not_leader_or_follower")
        moved = [{"path": directory.log_dir, "topics": [{"name": "elsewhere", "partitions": [0]}]}]
        [result] = ask(cluster, broker, ApiKey.ALTER_REPLICA_LOG_DIRS, dirs=moved).results[0].partitions
        assert result.error_code.name == ("none" if is_follower else "replica_not_available")


# Reading from the closest replica (KIP-392)


def test_consumer_is_not_sent_to_the_replica_in_its_rack(cluster: LabCluster) -> None:
    create(cluster, "near", [1, 2])
    produce(cluster, 1, "near", b"first", b"second")
    wait_until(lambda: fetched(cluster, 2, rack_id="rack-2").high_watermark == 2)
    redirected = fetched(cluster, 1, rack_id="rack-2")
    assert (redirected.error_code.name, redirected.preferred_read_replica) == ("none", 2)
    assert (redirected.records, redirected.high_watermark) == (b"", 2)
    for rack in ("rack-1", "rack-3", "nowhere", ""):  # the leader's, one without a replica, an unknown one, none
        served = fetched(cluster, 1, rack_id=rack)
        assert served.preferred_read_replica == -1
        assert b"second" in bytes(served.records)
    served = fetched(cluster, 2, rack_id="rack-2")
    assert (served.error_code.name, served.preferred_read_replica) == ("none", -1)
    assert b"second" in bytes(served.records)
    assert fetched(cluster, 2, rack_id="").error_code.name == "none", "Kafka's followers serve it, too"
    assert fetched(cluster, 3, rack_id="rack-3").error_code.name == "not_leader_or_follower"
    assert fetched(cluster, 2, rack_id="rack-2", offset=3).error_code.name == "offset_not_available"
    assert fetched(cluster, 2, rack_id="rack-2", offset=2).error_code.name == "none"
    stale = fetched(cluster, 2, rack_id="rack-2", leader_epoch=describe(cluster, "near").leader_epoch + 1)
    assert stale.error_code.name == "unknown_leader_epoch"


def fetched(cluster: LabCluster, broker: int, **fields: Any) -> Any:
    return fetch(cluster, broker, "near", **fields).responses[0].partitions[0]


def test_client_in_another_rack_misses_records(cluster: LabCluster) -> None:
    create(cluster, "read-nearby", [1, 2, 3])
    values = [b"%d" % number * 1000 for number in range(500)]
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for value in values:
        producer.produce("read-nearby", value, partition=0)
    assert producer.flush(30) == 0
    served_by: set[int] = set()
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "reader",
            "client.rack": "rack-3",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "statistics.interval.ms": 100,
            "stats_cb": lambda report: served_by.add(broker_of(report)),
        }
    )
    consumer.assign([TopicPartition("read-nearby", 0, 0)])
    read: list[bytes | None] = []
    while len(read) < len(values):
        [message] = consumer.consume(1, 30.0)
        assert message.error() is None, message.error()
        read.append(message.value())
    wait_until(lambda: consumer.poll(0.1) or 3 in served_by)
    consumer.close()
    assert read == values


def broker_of(report: str) -> int:
    """Return the broker from which librdkafka fetches, according to its statistics."""
    partitions = json.loads(report)["topics"].get("read-nearby", {"partitions": {}})["partitions"]
    return int(partitions.get("0", {"broker": -1})["broker"])


# Settings


def alter(cluster: LabCluster, broker: int, kind: int, name: str, **settings: str | None) -> str:
    configs = [
        {"name": key.replace("_", "."), "config_operation": 1 if value is None else 0, "value": value}
        for key, value in settings.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    [answer] = ask(
        cluster, broker, ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False
    ).responses
    code: str = answer.error_code.name
    return code


def settings_of(cluster: LabCluster, broker: int, kind: int, name: str) -> dict[str, str | None]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    [answer] = ask(cluster, broker, ApiKey.DESCRIBE_CONFIGS, resources=[resource]).results
    assert answer.error_code.name == "none", answer.error_message
    return {entry.name: entry.value for entry in answer.configs}


TOPIC, BROKER = 2, 4


def test_change_of_a_setting_reaches_only_one_broker(cluster: LabCluster) -> None:
    create(cluster, "sized", [1, 2, 3])
    assert alter(cluster, 3, TOPIC, "sized", max_message_bytes="1000") == "none"
    for broker in (1, 2, 3):
        wait_until(lambda b=broker: settings_of(cluster, b, TOPIC, "sized")["max.message.bytes"] == "1000")  # type: ignore[misc]
    refused = produce(cluster, 1, "sized", b"x" * 2000).responses[0].partition_responses[0]
    assert refused.error_code.name == "message_too_large"

    assert alter(cluster, 2, BROKER, "", message_max_bytes="3000") == "none"
    create(cluster, "defaults", [1, 2, 3])
    for broker in (1, 2, 3):
        wait_until(lambda b=broker: settings_of(cluster, b, BROKER, str(b))["message.max.bytes"] == "3000")  # type: ignore[misc]
        assert settings_of(cluster, broker, BROKER, "") == {"message.max.bytes": "3000"}
        assert settings_of(cluster, broker, TOPIC, "defaults")["max.message.bytes"] == "3000"
    wait_until(
        lambda: (
            produce(cluster, 1, "defaults", b"x" * 4000).responses[0].partition_responses[0].error_code.name
            == "message_too_large"
        )
    )
    assert alter(cluster, 1, BROKER, "", message_max_bytes=None) == "none"
    wait_until(
        lambda: (
            produce(cluster, 1, "defaults", b"x" * 4000).responses[0].partition_responses[0].error_code.name == "none"
        )
    )


def test_setting_of_another_broker_can_not_be_changed(cluster: LabCluster) -> None:
    assert alter(cluster, 1, BROKER, "3", max_connections="54321") == "none"
    wait_until(lambda: settings_of(cluster, 3, BROKER, "3")["max.connections"] == "54321")
    assert settings_of(cluster, 2, BROKER, "3") == {"max.connections": "54321"}
    assert settings_of(cluster, 2, BROKER, "2")["max.connections"] != "54321"
    assert alter(cluster, 1, BROKER, "3", node_id="9") == "invalid_request"
    assert alter(cluster, 1, BROKER, "3", max_connections="many") == "invalid_config"
    assert alter(cluster, 1, BROKER, "77", max_connections="54321") == "invalid_request"
    cluster.broker(3).stop()
    cluster.broker(3).start()
    assert settings_of(cluster, 3, BROKER, "3")["max.connections"] == "54321", "it counts again after a restart"
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    entry = ConfigEntry("max.connections", "", incremental_operation=AlterConfigOpType.DELETE)
    [changed] = client.incremental_alter_configs(
        [ConfigResource(ResourceType.BROKER, "3", incremental_configs=[entry])]
    ).values()
    changed.result(30)
    wait_until(lambda: settings_of(cluster, 3, BROKER, "3")["max.connections"] != "54321")


def test_changed_default_of_min_insync_replicas_does_not_count(cluster: LabCluster) -> None:
    create(cluster, "strict", [1, 2])

    def outcome() -> str:
        name: str = produce(cluster, 1, "strict", b"value").responses[0].partition_responses[0].error_code.name
        return name

    cluster.broker(2).pause()
    try:
        wait_until(lambda: list(describe(cluster, "strict").isr_nodes) == [1])
        assert outcome() == "not_enough_replicas"
        assert alter(cluster, 3, BROKER, "", min_insync_replicas="1") == "none"
        wait_until(lambda: outcome() == "none")
        assert settings_of(cluster, 1, TOPIC, "strict")["min.insync.replicas"] == "1"
        assert alter(cluster, 3, BROKER, "", min_insync_replicas=None) == "none"
        wait_until(lambda: outcome() == "not_enough_replicas")
    finally:
        cluster.broker(2).resume()
    wait_until(lambda: len(describe(cluster, "strict").isr_nodes) == 2)
    listed = ask(cluster, 1, ApiKey.LIST_CONFIG_RESOURCES, resource_types=[BROKER]).config_resources
    assert [each.resource_name for each in listed] == ["1", "2", "3"]
