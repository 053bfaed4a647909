"""Every admin call of kafka-python that a single broker without security and transactions can serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, MemberToRemove, OffsetSpec
from kafka.structs import OffsetAndMetadata

from tests.broker.process import BrokerProcess
from tests.clients.groups import fill
from tests.clients.interface import Client, ConsumerOptions, Message, Place
from tests.clients.waiting import poll_until, read, share

MakeTopic = Callable[..., list[Place]]


@pytest.fixture
def client(clients: dict[str, Client]) -> Client:
    return clients["kafka-python"]


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.address)
    yield client
    client.close()


def settings_of(admin: KafkaAdminClient, kind: str, name: str, which: str = "modified") -> dict[str, str]:
    found = admin.describe_configs([ConfigResource(kind, name)], config_filter=which)[kind.lower()][name]
    return {key: one["value"] for key, one in found.items()}


# Topics


def test_a_topic_is_created_described_grown_and_deleted(admin: KafkaAdminClient, name: str) -> None:
    admin.create_topics({name: {"num_partitions": 2, "configs": {"retention.ms": "1000"}}}, wait_for_metadata=True)
    (described,) = admin.describe_topics([name])
    assert [one["partition_index"] for one in described["partitions"]] == [0, 1]
    assert {one["leader_id"] for one in described["partitions"]} == {1}
    assert settings_of(admin, "TOPIC", name) == {"retention.ms": "1000"}
    admin.create_partitions({name: 5})
    (described,) = admin.describe_topics([name])
    assert len(described["partitions"]) == 5
    assert name in admin.list_topics()
    admin.delete_topics([name])
    assert name not in admin.list_topics()


def test_partitions_are_described_page_by_page(admin: KafkaAdminClient, new_topic: MakeTopic, name: str) -> None:
    new_topic(5)
    found = admin.describe_topic_partitions([name], response_partition_limit=2)
    seen = [one["partition_index"] for topic in found["topics"] for one in topic["partitions"]]
    assert seen == [0, 1]
    cursor = found["next_cursor"]
    assert (cursor["topic_name"], cursor["partition_index"]) == (name, 2)
    found = admin.describe_topic_partitions([name], cursor=cursor)
    assert [one["partition_index"] for topic in found["topics"] for one in topic["partitions"]] == [2, 3, 4]


@pytest.mark.parametrize(
    ("topic", "options", "error"),
    [
        ("a/b", {}, kafka_errors.InvalidTopicError),
        ("three-replicas", {"replication_factor": 3}, kafka_errors.InvalidReplicationFactorError),
        ("so-many", {"num_partitions": 2**31 - 1}, kafka_errors.InvalidPartitionsError),
        ("none", {"num_partitions": 0}, kafka_errors.InvalidPartitionsError),
        ("elsewhere", {"assignments": {0: [7]}}, kafka_errors.InvalidReplicationAssignmentError),
        ("bad-setting", {"configs": {"retention.ms": "soon"}}, kafka_errors.InvalidConfigurationError),
    ],
)
def test_a_topic_that_is_not_valid_is_refused(
    admin: KafkaAdminClient, topic: str, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        admin.create_topics({topic: options})


def test_changes_of_a_topic_that_are_not_valid_are_refused(
    admin: KafkaAdminClient, new_topic: MakeTopic, name: str
) -> None:
    new_topic(2)
    with pytest.raises(kafka_errors.TopicAlreadyExistsError):
        admin.create_topics([name])
    with pytest.raises(kafka_errors.InvalidPartitionsError):
        admin.create_partitions({name: 1})
    with pytest.raises(kafka_errors.UnknownTopicOrPartitionError):
        admin.create_partitions({f"{name}-missing": 3})
    with pytest.raises(kafka_errors.UnknownTopicOrPartitionError):
        admin.delete_topics([f"{name}-missing"])


# Settings


def test_settings_are_altered_and_reset(admin: KafkaAdminClient, new_topic: MakeTopic, name: str) -> None:
    new_topic()
    changes = {"retention.ms": "5000", "max.message.bytes": "2000"}
    assert admin.alter_configs([ConfigResource("TOPIC", name, changes)]) == {"topic": {name: "OK"}}
    assert settings_of(admin, "TOPIC", name) == changes
    assert settings_of(admin, "TOPIC", name, "all")["segment.bytes"] == "1073741824"
    admin.reset_configs([ConfigResource("TOPIC", name, {"retention.ms": None})])
    assert settings_of(admin, "TOPIC", name) == {"max.message.bytes": "2000"}
    replaced = ConfigResource("TOPIC", name, {"segment.bytes": "1048576"})
    assert admin.alter_configs([replaced], incremental=False) == {"topic": {name: "OK"}}
    assert settings_of(admin, "TOPIC", name) == {"max.message.bytes": "2000", "segment.bytes": "1048576"}


def test_a_setting_that_is_not_valid_is_refused(admin: KafkaAdminClient, new_topic: MakeTopic, name: str) -> None:
    new_topic()
    answer = admin.alter_configs([ConfigResource("TOPIC", name, {"retention.ms": "soon"})])
    assert "retention.ms" in answer["topic"][name]
    assert "soon" in answer["topic"][name]
    answer = admin.alter_configs([ConfigResource("TOPIC", name, {"no.such": "1"})], raise_on_unknown=False)
    assert "no.such" in answer["topic"][name]
    assert settings_of(admin, "TOPIC", name) == {}


def test_the_brokers_settings_are_described(admin: KafkaAdminClient) -> None:
    found = settings_of(admin, "BROKER", "1", "all")
    assert found["group.initial.rebalance.delay.ms"] == "0"
    assert found["node.id"] == "1"


# Groups


def test_a_group_is_listed_described_and_deleted(
    admin: KafkaAdminClient, client: Client, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    places = new_topic(2)
    with client.consumer(broker.address, ConsumerOptions(group=name, topics=[name])) as consumer:
        share([consumer], set(places))
        listed = {one["group_id"]: one for one in admin.list_groups(states_filter=["Stable"])}
        assert (listed[name]["group_state"], listed[name]["group_type"]) == ("Stable", "classic")
        described = admin.describe_groups([name])[name]
        (member,) = described["members"]
        assert (described["group_state"], described["protocol_data"]) == ("Stable", "range")
        assigned = member["member_assignment"]["assigned_partitions"]
        assert [(one["topic"], one["partitions"]) for one in assigned] == [(name, [0, 1])]
        assert "NonEmptyGroup" in str(admin.delete_groups([name])[name])
    assert admin.delete_groups([name]) == {name: "OK"}
    assert name not in {one["group_id"] for one in admin.list_groups()}


def test_committed_offsets_are_listed_altered_reset_and_deleted(
    admin: KafkaAdminClient, client: Client, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    places = new_topic(2)
    zero, one = TopicPartition(*places[0]), TopicPartition(*places[1])
    fill(client, broker.address, places, each=5)
    with client.consumer(broker.address, ConsumerOptions(group=name, topics=[name])) as consumer:
        read(consumer, 10)
        consumer.commit()

    def committed() -> dict[TopicPartition, int]:
        return {partition: found.offset for partition, found in admin.list_group_offsets(name)[name].items()}

    assert committed() == {zero: 5, one: 5}
    admin.alter_group_offsets(name, {zero: OffsetAndMetadata(2, "why", -1)})
    assert admin.list_group_offsets(name)[name][zero].metadata == "why"
    admin.reset_group_offsets(name, {one: OffsetSpec.EARLIEST})
    assert committed() == {zero: 2, one: 0}
    admin.delete_group_offsets(name, [zero])
    assert committed() == {one: 0}


def test_a_member_is_removed_by_an_admin(
    admin: KafkaAdminClient, client: Client, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    """Remove a static member by its group.instance.id, so that there is no session timeout to wait for."""
    places = new_topic(2)

    def member(instance_id: str) -> Any:
        options = ConsumerOptions(group=name, topics=[name], instance_id=instance_id, session_ms=300_000)
        return client.consumer(broker.address, options)

    with member("one") as one:
        with member("two") as two:
            share([one, two], set(places))
        admin.remove_group_members(name, [MemberToRemove(group_instance_id="two")])
        poll_until([one], lambda _: one.owned == set(places))


# Records, offsets, the cluster


def test_records_are_deleted_up_to_an_offset(
    admin: KafkaAdminClient, client: Client, broker: BrokerProcess, new_topic: MakeTopic
) -> None:
    (place,) = new_topic()
    partition = TopicPartition(*place)
    fill(client, broker.address, [place], each=10)
    assert admin.delete_records({partition: 4})[partition]["low_watermark"] == 4
    assert admin.delete_records({partition: -1})[partition]["low_watermark"] == 10
    with pytest.raises(kafka_errors.OffsetOutOfRangeError):
        admin.delete_records({partition: 11})


def test_offsets_are_listed_by_kind(
    admin: KafkaAdminClient, client: Client, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    (place,) = new_topic()
    with client.producer(broker.address) as producer:
        producer.send(name, [Message(b"", timestamp=time) for time in (1000, 3000, 2000)])

    def offset(spec: Any) -> int:
        found: int = admin.list_partition_offsets({TopicPartition(*place): spec})[TopicPartition(*place)].offset
        return found

    assert offset(OffsetSpec.EARLIEST) == 0
    assert offset(OffsetSpec.LATEST) == 3
    assert offset(OffsetSpec.MAX_TIMESTAMP) == 1
    assert offset(1500) == 1
    assert offset(9999) == -1


def test_the_producers_of_a_partition_are_described(
    admin: KafkaAdminClient, client: Client, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    (place,) = new_topic()
    with client.producer(broker.address, idempotent=True) as producer:
        producer.send(name, [Message(b"1"), Message(b"2")])
    (found,) = admin.describe_producers([TopicPartition(*place)])[TopicPartition(*place)].active_producers
    assert (found.last_sequence, found.producer_epoch) == (1, 0)


def test_the_log_directory_is_described(
    admin: KafkaAdminClient, client: Client, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    places = new_topic(2)
    fill(client, broker.address, places, each=10)
    ((directory,),) = [one["log_dirs"] for one in admin.describe_log_dirs()]
    assert directory["log_dir"] == str(broker.data_dir)
    sizes = {
        partition["partition_index"]: partition["partition_size"]
        for topic in directory["topics"]
        if topic["name"] == name
        for partition in topic["partitions"]
    }
    on_disk = {number: (broker.data_dir / f"{name}-{number}" / f"{0:020}.log").stat().st_size for number in (0, 1)}
    assert sizes == on_disk


def test_the_cluster_is_described(admin: KafkaAdminClient, broker: BrokerProcess) -> None:
    described = admin.describe_cluster()
    assert [(one["broker_id"], one["host"], one["port"]) for one in described["brokers"]] == [
        (1, "127.0.0.1", broker.port)
    ]
    assert described["controller_id"] == 1


def test_one_broker_serves_the_requests_for_clusters(admin: KafkaAdminClient, new_topic: MakeTopic, name: str) -> None:
    new_topic()
    assert admin.list_partition_reassignments() == {}
    (quorum,) = admin.describe_metadata_quorum()["topics"]
    assert [one["leader_id"] for one in quorum["partitions"]] == [1]
    listed = admin.list_config_resources()
    assert listed["broker"] == ["1"]
    assert name in listed["topic"]
    assert admin.describe_user_scram_credentials() == {}
