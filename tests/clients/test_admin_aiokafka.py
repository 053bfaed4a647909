"""Every admin call of aiokafka. For most calls it returns the response with its error codes; the others raise."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.broker.process import BrokerProcess
from tests.clients.aio import LoopThread
from tests.clients.groups import fill
from tests.clients.interface import Client, ConsumerOptions, Place
from tests.clients.waiting import read, share

MakeTopic = Callable[..., list[Place]]
INVALID_TOPIC, INVALID_REPLICATION_FACTOR, INVALID_CONFIG, EXISTS, UNKNOWN_TOPIC = 17, 38, 40, 36, 3


@pytest.fixture
def client(clients: dict[str, Client]) -> Client:
    return clients["aiokafka"]


@pytest.fixture
def run(loop_thread: LoopThread) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return loop_thread.run


@pytest.fixture
def admin(broker: BrokerProcess, loop_thread: LoopThread) -> Iterator[AIOKafkaAdminClient]:
    async def started() -> AIOKafkaAdminClient:
        client = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await client.start()
        return client

    client = loop_thread.run(started())
    yield client
    loop_thread.run(client.close())


Run = Callable[[Coroutine[Any, Any, Any]], Any]


def test_a_topic_is_created_described_grown_and_deleted(admin: AIOKafkaAdminClient, run: Run, name: str) -> None:
    topic = NewTopic(name, num_partitions=2, replication_factor=1, topic_configs={"retention.ms": "1000"})
    assert [one[1] for one in run(admin.create_topics([topic])).topic_errors] == [0]
    (described,) = run(admin.describe_topics([name]))
    assert sorted(one["partition"] for one in described["partitions"]) == [0, 1]
    run(admin.create_partitions({name: NewPartitions(5)}))
    (described,) = run(admin.describe_topics([name]))
    assert len(described["partitions"]) == 5
    assert name in run(admin.list_topics())
    assert [one[1] for one in run(admin.delete_topics([name])).topic_error_codes] == [0]
    assert name not in run(admin.list_topics())


def test_requests_that_are_not_valid_are_refused(
    admin: AIOKafkaAdminClient, run: Run, new_topic: MakeTopic, name: str
) -> None:
    new_topic(2)
    refused = {
        "a/b": (NewTopic("a/b", 1, 1), INVALID_TOPIC),
        "three": (NewTopic(f"{name}-three", 1, 3), INVALID_REPLICATION_FACTOR),
        "setting": (NewTopic(f"{name}-x", 1, 1, topic_configs={"retention.ms": "soon"}), INVALID_CONFIG),
        "again": (NewTopic(name, 1, 1), EXISTS),
    }
    answer = run(admin.create_topics([topic for topic, _ in refused.values()]))
    assert {one[0]: one[1] for one in answer.topic_errors} == {topic.name: code for topic, code in refused.values()}
    answer = run(admin.delete_topics([f"{name}-missing"]))
    assert [one[1] for one in answer.topic_error_codes] == [UNKNOWN_TOPIC]
    with pytest.raises(kafka_errors.InvalidPartitionsError):
        run(admin.create_partitions({name: NewPartitions(1)}))


def settings_of(run: Run, admin: AIOKafkaAdminClient, kind: ConfigResourceType, name: str) -> dict[str, str]:
    (answer,) = run(admin.describe_configs([ConfigResource(kind, name)]))
    ((code, _, _, _, settings),) = answer.resources
    assert code == 0
    return {setting[0]: setting[1] for setting in settings}


def test_settings_are_described_and_altered(
    admin: AIOKafkaAdminClient, run: Run, new_topic: MakeTopic, name: str
) -> None:
    new_topic()
    resource = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "5000"})
    answers = run(admin.alter_configs([resource]))
    assert [one[0] for answer in answers for one in answer.resources] == [0]
    found = settings_of(run, admin, ConfigResourceType.TOPIC, name)
    assert (found["retention.ms"], found["segment.bytes"]) == ("5000", "1073741824")
    bad = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "soon"})
    answers = run(admin.alter_configs([bad]))
    assert [one[0] for answer in answers for one in answer.resources] == [INVALID_CONFIG]
    assert settings_of(run, admin, ConfigResourceType.BROKER, "1")["node.id"] == "1"


def test_a_group_is_listed_described_and_its_offsets_are_known(
    admin: AIOKafkaAdminClient, run: Run, client: Client, broker: BrokerProcess, new_topic: MakeTopic, name: str
) -> None:
    places = new_topic(2)
    fill(client, broker.address, places, each=5)
    with client.consumer(broker.address, ConsumerOptions(group=name, topics=[name])) as consumer:
        share([consumer], set(places))
        consumer.seek(places[0], 0)
        consumer.seek(places[1], 0)
        read(consumer, 10)
        consumer.commit()
        assert run(admin.find_coordinator(name)) == 1
        assert (name, "consumer") in [one[:2] for one in run(admin.list_consumer_groups())]
        (answer,) = run(admin.describe_consumer_groups([name]))
        (described,) = answer.groups
        assert described[:5] == (0, name, "Stable", "consumer", "range")
        assert len(described[5]) == 1
    offsets = run(admin.list_consumer_group_offsets(name))
    assert {partition: one.offset for partition, one in offsets.items()} == {
        TopicPartition(*place): 5 for place in places
    }


def test_records_are_deleted_up_to_an_offset(
    admin: AIOKafkaAdminClient, run: Run, client: Client, broker: BrokerProcess, new_topic: MakeTopic
) -> None:
    (place,) = new_topic()
    partition = TopicPartition(*place)
    fill(client, broker.address, [place], each=10)
    assert run(admin.delete_records({partition: RecordsToDelete(4)})) == {partition: 4}
    with pytest.raises(kafka_errors.OffsetOutOfRangeError):
        run(admin.delete_records({partition: RecordsToDelete(11)}))


def test_the_cluster_is_described(admin: AIOKafkaAdminClient, run: Run, broker: BrokerProcess) -> None:
    described = run(admin.describe_cluster())
    assert [(one["node_id"], one["host"], one["port"]) for one in described["brokers"]] == [
        (1, "127.0.0.1", broker.port)
    ]
    assert described["controller_id"] == 1
