"""The admin client with real brokers, Stratalog and Apache Kafka: changes take effect, and errors name their item."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer

from stratalog import Admin, Producer
from stratalog.client.admin import (
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
)
from stratalog.client.errors import (
    BrokerError,
    BrokerUnreachableError,
    ClientClosedError,
    ConfigError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    RequestTimeoutError,
    TopicExistsError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import OffsetAndMetadata
from stratalog.errors import UnknownTopicError
from tests.client.conftest import NewTopic as MakeTopic
from tests.clients.waiting import wait_until

any_broker = pytest.mark.any_broker
SECONDS = 30.0


def until(done: Callable[[], object]) -> None:
    wait_until(lambda: bool(done()), "the admin's change")


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap, client_id="test-admin") as made:
        yield made


def fill(bootstrap: str, topic: str, count: int, *, partition: int = 0, first_timestamp: int = 1000) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"value", partition=partition, timestamp=first_timestamp + number)


@pytest.fixture(params=["classic", "consumer"])
def member(request: pytest.FixtureRequest, bootstrap: str, topic: str, name: str) -> Iterator[ConfluentConsumer]:
    """Return a member of group `name` that has `topic` assigned."""
    consumer = ConfluentConsumer(
        {"bootstrap.servers": bootstrap, "group.id": name, "group.protocol": request.param, "client.id": "reader"}
    )
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.05) or consumer.assignment())
    yield consumer
    consumer.close()


@any_broker
def test_a_created_topic_has_the_requested_partitions_and_settings(admin: Admin, name: str) -> None:
    created = admin.create_topic(name, partitions=3, replication_factor=1, config={"retention.ms": 3_600_000})
    assert (created.name, created.partitions, created.replication_factor) == (name, 3, 1)
    assert created.config["retention.ms"] == "3600000"
    info = admin.describe_topic(name)
    assert (info.id, len(info.partitions), info.is_internal) == (created.id, 3, False)
    assert [partition.partition for partition in info.partitions] == [0, 1, 2]
    assert admin.list_topics()[name].id == created.id
    assert admin.describe_config(ConfigResource.topic(name))["retention.ms"].value == "3600000"


@any_broker
def test_valid_topics_are_created_when_others_are_refused(admin: Admin, name: str, topic: str) -> None:
    outcomes = admin.create_topics([f"{name}-new", topic, "not/a/name", NewTopic(f"{name}-bad", config={"x": 1})])
    assert outcomes[f"{name}-new"].partitions >= 1
    assert set(outcomes.errors) == {topic, "not/a/name", f"{name}-bad"}
    with pytest.raises(TopicExistsError, match=topic):
        outcomes[topic]
    with pytest.raises(InvalidTopicError):
        outcomes["not/a/name"]
    with pytest.raises(InvalidConfigError):
        outcomes[f"{name}-bad"]
    with pytest.raises(BrokerError):
        outcomes.check()
    assert set(outcomes) == {f"{name}-new", topic, "not/a/name", f"{name}-bad"}
    assert list(outcomes.succeeded()) == [f"{name}-new"]
    with pytest.raises(KeyError):
        outcomes["not requested"]


@any_broker
def test_validate_only_creates_nothing(admin: Admin, name: str) -> None:
    assert admin.create_topic(name, 2, validate_only=True).partitions == 2
    assert name not in admin.list_topics()
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.describe_topic(name)


@any_broker
def test_a_deleted_topic_is_unknown_afterwards(admin: Admin, topic: str) -> None:
    admin.delete_topic(topic)
    until(lambda: topic not in admin.list_topics())
    with pytest.raises(UnknownTopicError, match=topic):
        admin.delete_topic(topic)
    outcomes = admin.describe_topics([topic])
    assert isinstance(outcomes.errors[topic], UnknownTopicOrPartitionError)


@any_broker
def test_describing_an_unknown_topic_does_not_create_it(admin: Admin, name: str) -> None:
    admin.describe_topics([name])
    admin.list_offsets({TopicPartition(name, 0): OffsetSpec.LATEST})
    assert name not in admin.list_topics()


@any_broker
def test_partitions_are_added_and_never_removed(admin: Admin, topic: str) -> None:
    admin.create_partitions({topic: 4}, validate_only=True).check()
    admin.create_partitions({topic: 3}).check()
    until(lambda: len(admin.describe_topic(topic).partitions) == 3)
    outcomes = admin.create_partitions({topic: 2, "no-such-topic": 2})
    assert isinstance(outcomes.errors[topic], InvalidPartitionsError)
    assert isinstance(outcomes.errors["no-such-topic"], UnknownTopicOrPartitionError)


@any_broker
def test_changing_one_setting_keeps_the_others(admin: Admin, topic: str) -> None:
    resource = ConfigResource.topic(topic)
    before = admin.describe_config(resource)
    admin.alter_config(resource, {"retention.ms": 1234567, "segment.bytes": 2_000_000})
    admin.alter_config(resource, {"retention.bytes": "99999999"})

    def changed() -> dict[str, str | None]:
        entries = admin.describe_config(resource)
        return {name: entry.value for name, entry in entries.items() if entry.source is ConfigSource.TOPIC}

    expected = {"retention.ms": "1234567", "segment.bytes": "2000000", "retention.bytes": "99999999"}
    until(lambda: changed() == expected)
    admin.alter_config(resource, {"retention.ms": None, "segment.bytes": ConfigChange(ConfigOperation.DELETE)})
    until(lambda: changed() == {"retention.bytes": "99999999"})
    assert admin.describe_config(resource)["retention.ms"].value == before["retention.ms"].value


@any_broker
def test_append_adds_to_a_list_setting(admin: Admin, topic: str) -> None:
    resource = ConfigResource.topic(topic)
    append = ConfigChange(ConfigOperation.APPEND, "delete")
    admin.alter_config(resource, {"cleanup.policy": append})
    until(lambda: admin.describe_config(resource)["cleanup.policy"].value == "delete")


@any_broker
def test_a_value_that_is_not_valid_is_refused_with_the_name_of_the_setting(admin: Admin, topic: str) -> None:
    resource, other = ConfigResource.topic(topic), ConfigResource.topic("no-such-topic")
    outcomes = admin.alter_configs({resource: {"retention.ms": "soon"}, other: {"retention.ms": 1}})
    with pytest.raises(InvalidConfigError, match=r"(?s)retention\.ms"):
        outcomes[resource]
    with pytest.raises(UnknownTopicOrPartitionError, match="no-such-topic"):
        outcomes[other]


@any_broker
def test_only_the_requested_settings_are_described(admin: Admin, topic: str) -> None:
    resource = ConfigResource.topic(topic)
    outcomes = admin.describe_configs([resource], names=["retention.ms"], include_documentation=True)
    assert [each.name for each in outcomes.succeeded()] == [resource.name]
    entries = outcomes[resource]
    assert list(entries) == ["retention.ms"]
    assert entries["retention.ms"].documentation
    assert not entries["retention.ms"].is_read_only


@any_broker
def test_settings_of_a_broker_come_from_that_broker(admin: Admin) -> None:
    node = admin.describe_cluster().nodes[0]
    entries = admin.describe_config(ConfigResource.broker(node.id))
    assert entries["num.partitions"].value is not None
    outcomes = admin.describe_configs([ConfigResource.broker(9999)], timeout=0.5)
    assert isinstance(outcomes.errors[ConfigResource.broker(9999)], BrokerUnreachableError | RequestTimeoutError)
    with pytest.raises(ConfigError, match="'first'"):
        admin.describe_config(ConfigResource(ConfigResource.broker().kind, "first"))


@any_broker
def test_a_group_is_listed_described_and_deleted_when_empty(
    request: pytest.FixtureRequest, admin: Admin, member: ConfluentConsumer, topic: str, name: str
) -> None:
    kind = "consumer" if "consumer" in request.node.callspec.id else "classic"
    until(lambda: admin.describe_group(name).state == "Stable")
    group = admin.describe_group(name)
    assert (group.name, group.type, group.protocol_type) == (name, kind, "consumer")
    assert group.coordinator.id == admin.describe_cluster().nodes[0].id
    assert [(member.client_id, member.assignment) for member in group.members] == [("reader", ((topic, 0),))]
    assert group.assignor in ("range", "uniform")
    listed = {listing.name: listing for listing in admin.list_groups(states=["Stable"], types=[kind])}
    assert (listed[name].state, listed[name].type) == ("Stable", kind)
    assert name not in {listing.name for listing in admin.list_groups(states=["Empty"])}

    with pytest.raises(GroupNotEmptyError, match=name):
        admin.delete_group(name)
    refused = admin.alter_group_offsets(name, {TopicPartition(topic, 0): 0})
    assert isinstance(refused.errors[TopicPartition(topic, 0)], UnknownMemberError | BrokerError)

    member.close()
    until(lambda: admin.describe_group(name).state == "Empty")
    admin.delete_group(name)
    with pytest.raises(GroupNotFoundError, match=name):
        admin.describe_group(name)
    outcomes = admin.delete_groups([name])
    assert isinstance(outcomes.errors[name], GroupNotFoundError)


@any_broker
def test_offsets_of_a_group_are_altered_listed_and_deleted(admin: Admin, name: str, new_topic: MakeTopic) -> None:
    topic = new_topic(3)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    assert admin.list_group_offsets(name) == {}
    admin.alter_group_offsets(name, {partitions[0]: 5, partitions[1]: OffsetAndMetadata(7, "by hand")}).check()
    stored = admin.list_group_offsets(name)
    assert {partition: (committed.offset, committed.metadata) for partition, committed in stored.items()} == {
        partitions[0]: (5, ""),
        partitions[1]: (7, "by hand"),
    }
    assert set(admin.list_group_offsets(name, [partitions[1], partitions[2]])) == {partitions[1]}
    admin.delete_group_offsets(name, [partitions[0]]).check()
    assert set(admin.list_group_offsets(name)) == {partitions[1]}


@any_broker
def test_hundreds_of_groups_are_described_and_deleted_in_one_call(admin: Admin, name: str, topic: str) -> None:
    names = [f"{name}-{number}" for number in range(300)]
    for group in names:
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 1}).check()
    assert {group.state for group in admin.describe_groups(names).check().values()} == {"Empty"}
    assert set(names) <= {listing.name for listing in admin.list_groups()}
    admin.delete_groups(names).check()
    assert not set(names) & {listing.name for listing in admin.list_groups()}


@any_broker
def test_deleting_offsets_of_an_unknown_group_is_an_error(admin: Admin, name: str, topic: str) -> None:
    with pytest.raises(GroupNotFoundError, match=name):
        admin.delete_group_offsets(name, [TopicPartition(topic, 0)])


@any_broker
def test_offsets_are_looked_up_by_position_and_by_timestamp(admin: Admin, bootstrap: str, topic: str) -> None:
    fill(bootstrap, topic, 10)
    partition = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec | int) -> tuple[int, int]:
        listed = admin.list_offsets({partition: spec})[partition]
        return listed.offset, listed.timestamp

    assert offset(OffsetSpec.EARLIEST) == (0, -1)
    assert offset(OffsetSpec.LATEST) == (10, -1)
    assert offset(OffsetSpec.MAX_TIMESTAMP) == (9, 1009)
    assert offset(1004) == (4, 1004)
    assert offset(2000) == (-1, -1)
    committed = admin.list_offsets({partition: OffsetSpec.LATEST}, read_committed=True)
    assert committed[partition].offset == 10


@any_broker
def test_unknown_partitions_fail_and_known_ones_get_their_offsets(admin: Admin, topic: str) -> None:
    known, wrong = TopicPartition(topic, 0), TopicPartition(topic, 7)
    outcomes = admin.list_offsets(
        {known: OffsetSpec.LATEST, wrong: OffsetSpec.LATEST, TopicPartition("no-such", 0): -1}
    )
    assert outcomes[known].offset == 0
    with pytest.raises(UnknownTopicOrPartitionError, match=f"{topic}-7"):
        outcomes[wrong]
    with pytest.raises(UnknownTopicOrPartitionError, match="no-such-0"):
        outcomes[TopicPartition("no-such", 0)]


@any_broker
def test_records_before_an_offset_are_deleted(admin: Admin, bootstrap: str, topic: str) -> None:
    fill(bootstrap, topic, 10)
    partition = TopicPartition(topic, 0)
    assert admin.delete_records({partition: 4})[partition] == 4
    assert admin.list_offsets({partition: OffsetSpec.EARLIEST})[partition].offset == 4
    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}-0"):
        admin.delete_records({partition: 11})[partition]
    assert admin.delete_records({partition: -1})[partition] == 10


@any_broker
def test_the_cluster_is_described(admin: Admin, bootstrap: str) -> None:
    cluster = admin.describe_cluster()
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [
        bootstrap.replace("localhost", cluster.nodes[0].host)
    ]
    assert cluster.controller in cluster.nodes


@any_broker
def test_log_dirs_have_the_size_of_each_partition(admin: Admin, bootstrap: str, topic: str) -> None:
    fill(bootstrap, topic, 100)
    partition = TopicPartition(topic, 0)
    for partitions in (None, [partition]):
        (dirs,) = admin.describe_log_dirs(partitions=partitions).check().values()
        (log_dir,) = [directory for directory in dirs.values() if partition in directory.replicas]
        assert log_dir.error is None
        assert log_dir.replicas[partition].size > 500
        assert log_dir.total_bytes >= log_dir.usable_bytes > 0
    assert set(log_dir.replicas) == {partition}


@any_broker
def test_many_threads_share_an_admin(admin: Admin, name: str) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            admin.create_topic(f"{name}-{number}", 1)
            until(lambda: f"{name}-{number}" in admin.list_topics())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    assert failures == []


def test_a_string_instead_of_a_list_of_names_is_refused(admin: Admin) -> None:
    with pytest.raises(TypeError, match=r"pass \['orders'\]"):
        admin.delete_topics("orders")


def test_settings_are_checked_before_a_connection_is_opened(bootstrap: str) -> None:
    wrong: dict[str, Any] = {"request_timeout": 5}
    with pytest.raises(ConfigError, match=r"did you mean request\.timeout\.ms"):
        Admin(bootstrap, **wrong)
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location can't be set: TLS"):
        Admin.from_config({"bootstrap.servers": bootstrap, "ssl.ca.location": "x"})
    with pytest.raises(ConfigError, match="must be PLAINTEXT"):
        Admin(bootstrap, security_protocol="SSL")
    with pytest.raises(ConfigError, match="at least one broker"):
        Admin("")
    with Admin.from_config({"bootstrap.servers": bootstrap, "client.id": "dotted"}) as admin:
        assert admin.settings.client_id == "dotted"


def test_the_error_for_an_unreachable_cluster_names_its_address() -> None:
    with Admin("127.0.0.1:1", default_api_timeout_ms=300) as admin:
        with pytest.raises(RequestTimeoutError, match=r"127\.0\.0\.1:1 can't be reached: Connection refused"):
            admin.list_topics()
        with pytest.raises(RequestTimeoutError):
            admin.describe_cluster(timeout=0.1)


def test_a_closed_admin_refuses_calls(bootstrap: str) -> None:
    admin = Admin(bootstrap)
    admin.list_topics()
    admin.close()
    admin.close()
    with pytest.raises(ClientClosedError, match="admin stratalog is closed"):
        admin.list_topics()


def test_a_garbage_collected_admin_leaves_no_thread_and_no_socket(bootstrap: str) -> None:
    Admin(bootstrap).list_topics()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    admin = Admin(bootstrap)
    admin.list_topics()
    thread = weakref.ref(admin._io._thread)
    del admin
    gc.collect()
    left = thread()
    assert left is None or not left.is_alive()
    assert len(os.listdir("/proc/self/fd")) <= before
