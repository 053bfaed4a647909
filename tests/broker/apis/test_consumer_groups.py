"""ConsumerGroupHeartbeat and ConsumerGroupDescribe over the wire's own messages, in every version served."""

from __future__ import annotations

import uuid
from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32, i32Timedelta

from stratalog.broker.apis.consumer_groups import ConsumerGroupApis
from stratalog.broker.requests import RequestContext
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.messages import decode_request, encode_reply
from tests.broker.groups.consumer_world import FakeTopics, World, run

HEARTBEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT
DESCRIBE = ApiKey.CONSUMER_GROUP_DESCRIBE


class Wire:
    """Sends requests as bytes and reads the bytes of the answers."""

    def __init__(self, topics: FakeTopics) -> None:
        self.world = World(topics)
        self.apis = ConsumerGroupApis(self.world.groups, topics, self.world.config)

    def call(self, key: ApiKey, version: int, **fields: Any) -> Any:
        schema = load_request_schema(int(key), version)
        body = BytesIO()
        entity_writer(schema)(body, schema(**fields))
        request = decode_request(key, version, memoryview(body.getvalue()))
        context = RequestContext(key, version, "client", "10.0.0.1")
        reply = self.apis.routes()[key](request, context)
        encoded = encode_reply(key, version, reply if isinstance(reply, dict) else run(reply))  # type: ignore[arg-type]
        answer, end = entity_reader(load_response_schema(int(key), version))(bytes(encoded), 0)
        assert end == len(encoded)
        return answer

    def heartbeat(self, version: int = 1, **fields: Any) -> Any:
        defaults = {"group_id": "g", "member_id": "m0", "member_epoch": 0, "topic_partitions": None}
        return self.call(HEARTBEAT, version, **(defaults | fields))

    def join(self, version: int = 1, **fields: Any) -> Any:
        defaults = {
            "rebalance_timeout": i32Timedelta.parse(timedelta(milliseconds=5_000)),
            "subscribed_topic_names": ("a",),
            "topic_partitions": (),
        }
        return self.heartbeat(version, **(defaults | fields))

    def describe(self, *group_ids: str, version: int = 1, authorized: bool = False) -> Any:
        return self.call(DESCRIBE, version, group_ids=group_ids, include_authorized_operations=authorized).groups


def milliseconds(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def owned(version: int, topic_id: uuid.UUID | None, *partitions: int) -> Any:
    schema = load_request_schema(int(HEARTBEAT), version)
    module = __import__(schema.__module__, fromlist=["TopicPartitions"])
    return (module.TopicPartitions(topic_id=topic_id, partitions=tuple(map(i32, partitions))),)


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_stays_and_leaves(version: int) -> None:
    wire = Wire(FakeTopics(a=2))
    topic_id = wire.world.topics.all()[0].id
    joined = wire.join(version)
    assert joined.error_code is ErrorCode.none
    assert (joined.member_id, joined.member_epoch, milliseconds(joined.heartbeat_interval)) == ("m0", 1, 5_000)
    assert [(topic.topic_id, topic.partitions) for topic in joined.assignment.topic_partitions] == [(topic_id, (0, 1))]

    again = wire.heartbeat(version, member_epoch=1, topic_partitions=owned(version, topic_id, 0, 1))
    assert (again.error_code, again.member_epoch, again.assignment) == (ErrorCode.none, 1, None)

    left = wire.heartbeat(version, member_epoch=-1)
    assert (left.error_code, left.member_id, left.member_epoch) == (ErrorCode.none, "m0", -1)
    assert (milliseconds(left.heartbeat_interval), left.assignment) == (0, None)
    assert wire.world.group.is_empty


def test_version_0_answers_with_a_member_id_it_made() -> None:
    joined = Wire(FakeTopics(a=1)).join(0, member_id="")
    assert (joined.error_code, len(joined.member_id)) == (ErrorCode.none, 22)


def test_a_pattern_comes_with_version_1() -> None:
    wire = Wire(FakeTopics(a=1, b=1))
    wire.join(1, subscribed_topic_names=None, subscribed_topic_regex="b")
    wire.world.resolve()
    answer = wire.heartbeat(1, member_epoch=1)
    assert [topic.topic_id for topic in answer.assignment.topic_partitions] == [wire.world.topics.all()[1].id]
    refused = wire.join(1, member_id="m1", subscribed_topic_regex="(")
    assert refused.error_code is ErrorCode.invalid_regular_expression


@pytest.mark.parametrize("version", [0, 1])
def test_a_refusal_says_why(version: int) -> None:
    wire = Wire(FakeTopics(a=1))
    refused = wire.heartbeat(version, member_epoch=3)
    assert refused.error_code is ErrorCode.group_id_not_found
    assert refused.error_message == "Consumer group g not found."
    assert (refused.member_id, refused.member_epoch, refused.assignment) == (None, 0, None)


def test_a_revocation_is_acknowledged_with_what_the_member_still_owns() -> None:
    wire = Wire(FakeTopics(a=2))
    topic_id = wire.world.topics.all()[0].id
    wire.join()
    assert wire.join(member_id="m1").assignment.topic_partitions == ()
    told = wire.heartbeat(member_epoch=1)
    assert (told.member_epoch, told.assignment.topic_partitions[0].partitions) == (1, (0,))
    wire.heartbeat(member_epoch=1, topic_partitions=owned(1, topic_id, 0))
    given = wire.heartbeat(member_id="m1", member_epoch=2)
    assert given.assignment.topic_partitions[0].partitions == (1,)


def test_a_topic_named_twice_in_what_a_member_owns_counts_as_one() -> None:
    wire = Wire(FakeTopics(a=2))
    topic_id = wire.world.topics.all()[0].id
    wire.join()
    wire.join(member_id="m1")
    twice = owned(1, topic_id, 0) + owned(1, topic_id, 1)
    assert wire.heartbeat(member_epoch=1, topic_partitions=twice).member_epoch == 1
    assert wire.world.group.members["m0"].pending_revocation == {topic_id: frozenset((1,))}


def test_a_member_that_names_a_topic_when_it_joins_is_refused_though_it_owns_nothing_of_it() -> None:
    for topic_id in (uuid.UUID(int=1), None):
        refused = Wire(FakeTopics(a=1)).join(topic_partitions=owned(1, topic_id))
        assert refused.error_message == "TopicPartitions must be empty when (re-)joining."


@pytest.mark.parametrize("version", [0, 1])
def test_a_group_is_described_with_what_its_members_have_and_shall_have(version: int) -> None:
    wire = Wire(FakeTopics(a=2))
    topic_id = wire.world.topics.all()[0].id
    wire.join(version, instance_id="i", rack_id="r", server_assignor="range")
    wire.join(version, member_id="m1", subscribed_topic_names=("a", "gone"))
    (group,) = wire.describe("g", version=version)
    assert (group.error_code, group.error_message, group.group_id) == (ErrorCode.none, None, "g")
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Reconciling", 2, 2)
    assert (group.assignor_name, group.authorized_operations) == ("range", -(2**31))
    first, second = group.members
    assert (first.member_id, first.instance_id, first.rack_id, first.member_epoch) == ("m0", "i", "r", 1)
    assert (first.client_id, first.client_host) == ("client", "/10.0.0.1")
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (("a",), "")
    assert second.subscribed_topic_names == ("a", "gone")
    (assigned,) = first.assignment.topic_partitions
    assert (assigned.topic_id, assigned.topic_name, assigned.partitions) == (topic_id, "a", (0, 1))
    assert [topic.partitions for topic in first.target_assignment.topic_partitions] == [(0,)]
    assert second.assignment.topic_partitions == ()
    assert [topic.partitions for topic in second.target_assignment.topic_partitions] == [(1,)]
    assert [getattr(member, "member_type", 1) for member in group.members] == [1, 1]


def test_a_deleted_topic_is_left_out_of_a_description() -> None:
    wire = Wire(FakeTopics(a=1))
    wire.join()
    wire.world.topics.delete("a")
    (group,) = wire.describe("g")
    assert group.members[0].assignment.topic_partitions == ()


def test_a_group_that_does_not_exist_is_described_as_such_beside_one_that_does() -> None:
    wire = Wire(FakeTopics(a=1))
    wire.join()
    missing, there = wire.describe("none", "g")
    assert (missing.error_code, missing.group_id, missing.members) == (ErrorCode.group_id_not_found, "none", ())
    assert missing.error_message == "Group none not found."
    assert there.error_code is ErrorCode.none


def test_authorized_operations_are_told_when_asked_for() -> None:
    wire = Wire(FakeTopics(a=1))
    wire.join()
    read, delete, describe, describe_configs, alter_configs = 3, 6, 8, 10, 11
    bits = {read, delete, describe, describe_configs, alter_configs}
    assert wire.describe("g", authorized=True)[0].authorized_operations == sum(1 << bit for bit in bits)
    assert wire.describe("none", authorized=True)[0].authorized_operations == -(2**31)
