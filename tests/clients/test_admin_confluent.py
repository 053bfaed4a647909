"""Every admin call of confluent-kafka that a single broker without security and transactions can serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    ElectionType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.broker.process import BrokerProcess
from tests.clients.admin import SECONDS, admin_client
from tests.clients.groups import fill
from tests.clients.interface import Client, ConsumerOptions, Message, Place
from tests.clients.waiting import read, share

SECURITY_DISABLED = KafkaError.SECURITY_DISABLED
MakeTopic = Callable[..., list[Place]]


@pytest.fixture
def client(clients: dict[str, Client]) -> Client:
    return clients["confluent-kafka"]


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return admin_client(broker.address)


def only(futures: dict[Any, Any]) -> Any:
    """Return the result for the only requested item."""
    (future,) = futures.values()
    return future.result(SECONDS)


def error_code(futures: dict[Any, Any]) -> int:
    with pytest.raises(KafkaException) as caught:
        only(futures)
    error: KafkaError = caught.value.args[0]
    return error.code()


def config_of(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    found: dict[str, ConfigEntry] = only(admin.describe_configs([ConfigResource(kind, name)]))
    return found


# Topics


def test_a_topic_is_created_described_grown_and_deleted(admin: AdminClient, name: str) -> None:
    only(admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "1000"})]))
    described = only(admin.describe_topics(TopicCollection([name])))
    assert (described.name, described.is_internal, len(described.partitions)) == (name, False, 2)
    assert {(one.leader.id, tuple(node.id for node in one.isr)) for one in described.partitions} == {(1, (1,))}
    only(admin.create_partitions([NewPartitions(name, 5)]))
    metadata = admin.list_topics(timeout=SECONDS)
    assert sorted(metadata.topics[name].partitions) == [0, 1, 2, 3, 4]
    only(admin.delete_topics([name]))
    assert name not in admin.list_topics(timeout=SECONDS).topics
    assert error_code(admin.describe_topics(TopicCollection([name]))) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_without_counts_gets_the_brokers_defaults(admin: AdminClient, name: str) -> None:
    only(admin.create_topics([NewTopic(name)]))
    assert len(admin.list_topics(name, SECONDS).topics[name].partitions) == 1


def test_validate_only_creates_nothing(admin: AdminClient, name: str) -> None:
    only(admin.create_topics([NewTopic(name, 2, 1)], validate_only=True))
    assert name not in admin.list_topics(timeout=SECONDS).topics


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("a/b", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("..", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("x" * 250, 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("three-replicas", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("so-many", 100_000, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic("elsewhere", 1, replica_assignment=[[7]]), KafkaError.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("unknown-setting", 1, 1, config={"no.such.setting": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("bad-value", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
    ],
    ids=lambda value: value.topic[:20] if isinstance(value, NewTopic) else "",
)
def test_a_topic_that_is_not_valid_is_refused(admin: AdminClient, topic: NewTopic, code: int) -> None:
    assert error_code(admin.create_topics([topic])) == code


def test_changes_of_a_topic_that_are_not_valid_are_refused(admin: AdminClient, new_topic: MakeTopic, name: str) -> None:
    new_topic(2)
    assert error_code(admin.create_topics([NewTopic(name, 2, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    assert error_code(admin.create_partitions([NewPartitions(name, 2)])) == KafkaError.INVALID_PARTITIONS
    assert error_code(admin.create_partitions([NewPartitions(name, 1)])) == KafkaError.INVALID_PARTITIONS
    missing = f"{name}-missing"
    assert error_code(admin.create_partitions([NewPartitions(missing, 3)])) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert error_code(admin.delete_topics([missing])) == KafkaError.UNKNOWN_TOPIC_OR_PART


# Settings


def test_the_settings_of_a_topic_are_described_and_altered(admin: AdminClient, name: str) -> None:
    only(admin.create_topics([NewTopic(name, 1, 1, config={"retention.ms": "1000"})]))
    before = config_of(admin, ResourceType.TOPIC, name)
    assert (before["retention.ms"].value, before["retention.ms"].is_default) == ("1000", False)
    assert (before["max.message.bytes"].value, before["max.message.bytes"].is_default) == ("1048588", True)
    resource = ConfigResource(
        ResourceType.TOPIC,
        name,
        incremental_configs=[
            ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.APPEND),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )
    only(admin.incremental_alter_configs([resource]))
    after = config_of(admin, ResourceType.TOPIC, name)
    assert {key: entry.value for key, entry in after.items() if not entry.is_default} == {
        "max.message.bytes": "2000",
        "cleanup.policy": "delete",
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_all_settings_of_a_topic_are_replaced(admin: AdminClient, name: str) -> None:
    only(admin.create_topics([NewTopic(name, 1, 1, config={"retention.ms": "1000"})]))
    only(admin.alter_configs([ConfigResource(ResourceType.TOPIC, name, set_config={"segment.bytes": "1048576"})]))
    after = config_of(admin, ResourceType.TOPIC, name)
    assert {key: entry.value for key, entry in after.items() if not entry.is_default} == {"segment.bytes": "1048576"}


def test_a_changed_setting_takes_effect_at_once(
    admin: AdminClient, client: Client, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    new_topic()
    entry = ConfigEntry("max.message.bytes", "300", incremental_operation=AlterConfigOpType.SET)
    with client.producer(broker.address) as producer:
        producer.send(name, [Message(b"x" * 1000)])
        only(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])]))
        with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
            producer.send(name, [Message(b"x" * 1000)])


def test_the_brokers_settings_are_described(admin: AdminClient) -> None:
    settings = config_of(admin, ResourceType.BROKER, "1")
    assert settings["group.initial.rebalance.delay.ms"].value == "0"
    assert settings["num.partitions"].value == "1"
    assert settings["node.id"].is_read_only


def test_settings_that_are_not_valid_are_refused(admin: AdminClient, new_topic: MakeTopic, name: str) -> None:
    new_topic()

    def alter(topic: str, setting: str, value: str) -> dict[Any, Any]:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        futures: dict[Any, Any] = admin.incremental_alter_configs([resource])
        return futures

    assert error_code(alter(name, "no.such.setting", "1")) == KafkaError.INVALID_CONFIG
    assert error_code(alter(name, "retention.ms", "soon")) == KafkaError.INVALID_CONFIG
    assert error_code(alter(f"{name}-missing", "retention.ms", "1")) == KafkaError.UNKNOWN_TOPIC_OR_PART
    missing = ConfigResource(ResourceType.TOPIC, f"{name}-missing")
    assert error_code(admin.describe_configs([missing])) == KafkaError.UNKNOWN_TOPIC_OR_PART


# Groups


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_listed_described_and_deleted(
    admin: AdminClient, client: Client, protocol: str, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    places = new_topic(2)
    assignor = "range"
    kind = ConsumerGroupType.CLASSIC if protocol == "classic" else ConsumerGroupType.CONSUMER
    options = ConsumerOptions(group=name, topics=[name], protocol=protocol, assignor=assignor)
    with client.consumer(broker.address, options) as consumer:
        share([consumer], set(places))
        listed = {one.group_id: one for one in admin.list_consumer_groups().result(SECONDS).valid}
        assert (listed[name].state, listed[name].type) == (ConsumerGroupState.STABLE, kind)
        described = only(admin.describe_consumer_groups([name]))
        (member,) = described.members
        assert (described.state, described.type, described.partition_assignor) == (
            ConsumerGroupState.STABLE,
            kind,
            assignor,
        )
        assigned = member.assignment.topic_partitions
        assert {Place(one.topic, one.partition) for one in assigned} == set(places)
        assert described.coordinator.port == broker.port
        assert error_code(admin.delete_consumer_groups([name])) == KafkaError.NON_EMPTY_GROUP
        consumer.poll(0)
    assert only(admin.describe_consumer_groups([name])).state == ConsumerGroupState.EMPTY
    only(admin.delete_consumer_groups([name]))
    listed = {one.group_id: one for one in admin.list_consumer_groups().result(SECONDS).valid}
    assert name not in listed


def test_groups_are_listed_by_state_and_type(
    admin: AdminClient, client: Client, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    places = new_topic(1)
    with client.consumer(broker.address, ConsumerOptions(group=name, topics=[name])) as consumer:
        share([consumer], set(places))

        def listed(**filters: Any) -> bool:
            found = admin.list_consumer_groups(**filters).result(SECONDS).valid
            return name in {one.group_id for one in found}

        assert listed(states={ConsumerGroupState.STABLE})
        assert not listed(states={ConsumerGroupState.EMPTY})
        assert listed(types={ConsumerGroupType.CLASSIC})
        assert not listed(types={ConsumerGroupType.CONSUMER})


def test_an_unknown_group_is_an_error(admin: AdminClient, name: str) -> None:
    assert error_code(admin.delete_consumer_groups([name])) == KafkaError.GROUP_ID_NOT_FOUND


def test_committed_offsets_are_listed_and_altered(
    admin: AdminClient, client: Client, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    places = new_topic(2)
    fill(client, broker.address, places, each=5)
    with client.consumer(broker.address, ConsumerOptions(group=name, topics=[name])) as consumer:
        read(consumer, 10)
        consumer.commit()
        wanted = ConsumerGroupTopicPartitions(name, [TopicPartition(name, 0, 2)])
        (altered,) = only(admin.alter_consumer_group_offsets([wanted])).topic_partitions
        assert altered.error.code() == KafkaError.UNKNOWN_MEMBER_ID
    assert committed(admin, name) == {0: 5, 1: 5}
    only(admin.alter_consumer_group_offsets([wanted]))
    assert committed(admin, name) == {0: 2, 1: 5}
    with client.consumer(broker.address, ConsumerOptions(group=name, topics=[name])) as consumer:
        assert [(one.partition, one.offset) for one in read(consumer, 3)] == [(0, 2), (0, 3), (0, 4)]


def committed(admin: AdminClient, group: str) -> dict[int, int]:
    found = only(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
    return {one.partition: one.offset for one in found.topic_partitions}


# Records, offsets, the cluster


def test_records_are_deleted_up_to_an_offset(
    admin: AdminClient, client: Client, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    (place,) = new_topic()
    fill(client, broker.address, [place], each=10)
    assert only(admin.delete_records([TopicPartition(name, 0, 4)])).low_watermark == 4
    assert only(admin.delete_records([TopicPartition(name, 0, -1)])).low_watermark == 10
    assert error_code(admin.delete_records([TopicPartition(name, 0, 11)])) == KafkaError.OFFSET_OUT_OF_RANGE
    assert error_code(admin.delete_records([TopicPartition(name, 7, 0)])) == KafkaError._NOENT


def test_offsets_are_listed_by_kind(
    admin: AdminClient, client: Client, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    (place,) = new_topic()
    with client.producer(broker.address) as producer:
        producer.send(name, [Message(b"", timestamp=time) for time in (1000, 3000, 2000)])

    def offset(spec: Any, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> tuple[int, int]:
        found = only(admin.list_offsets({TopicPartition(*place): spec}, isolation_level=isolation))
        return found.offset, found.timestamp

    spec: Any = OffsetSpec
    assert offset(spec.earliest())[0] == 0
    assert offset(spec.latest())[0] == 3
    assert offset(spec.latest(), IsolationLevel.READ_COMMITTED)[0] == 3
    assert offset(spec.max_timestamp()) == (1, 3000)
    assert offset(spec.for_timestamp(1500)) == (1, 3000)
    assert offset(spec.for_timestamp(9999))[0] == -1


def test_the_cluster_is_described(admin: AdminClient, broker: BrokerProcess) -> None:
    described = admin.describe_cluster(include_authorized_operations=True).result(SECONDS)
    assert [(node.id, node.host, node.port) for node in described.nodes] == [(1, "127.0.0.1", broker.port)]
    assert described.controller.id == 1
    metadata: Any = admin.list_topics(timeout=SECONDS)
    assert described.cluster_id == metadata.cluster_id == admin.cluster_id(SECONDS)
    assert metadata.controller_id == 1
    assert list(metadata.brokers) == [1]


def test_there_is_no_leader_to_elect(admin: AdminClient, new_topic: MakeTopic, name: str) -> None:
    new_topic(partitions=1)
    partition = TopicPartition(name, 0)
    found = admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(SECONDS)
    assert [error.code() for error in found.values()] == [KafkaError.ELECTION_NOT_NEEDED]


def test_there_are_no_acls_and_no_users(admin: AdminClient) -> None:
    read_all = (ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:somebody", "*", AclOperation.READ)
    assert error_code(admin.create_acls([AclBinding(*read_all, AclPermissionType.ALLOW)])) == SECURITY_DISABLED
    assert error_code(admin.delete_acls([AclBindingFilter(*read_all, AclPermissionType.ALLOW)])) == SECURITY_DISABLED
    described = admin.describe_user_scram_credentials(["somebody"])
    assert isinstance(described, dict)
    assert error_code(described) == KafkaError.RESOURCE_NOT_FOUND
    new = UserScramCredentialUpsertion("somebody", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"password")
    assert error_code(admin.alter_user_scram_credentials([new])) == KafkaError.UNSUPPORTED_SASL_MECHANISM
