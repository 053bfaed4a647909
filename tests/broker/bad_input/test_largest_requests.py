"""Requests with thousands of elements, equal or different, in every array of every API.

A response may be many times larger than its request. So repeated elements are answered once or refused, and the
elements of a request are limited: a client must not be able to waste memory or the time of other clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema

from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.encoding import compile_encoder
from tests.broker.bad_input.client import RawClient
from tests.broker.bad_input.conftest import Attacked
from tests.broker.bad_input.fuzzer import members
from tests.broker.bad_input.healthy import topic
from tests.broker.bad_input.memory import MB, PeakMemory
from tests.protocol.kio_messages import framed, request_frame, request_header

TOPIC = "asked-for"
GROUP = "asked-for"
ELEMENTS = 8_000
GROWTH = 80 * MB
_KEYS = [key for key in ApiKey if key not in (ApiKey.PRODUCE, ApiKey.API_VERSIONS)]


@pytest.fixture(scope="module")
def settings() -> dict[str, object]:
    return {"auto.create.topics.enable": False, "group.initial.rebalance.delay.ms": 0}


@pytest.fixture(scope="module")
def topic_id(attacked: Attacked) -> UUID:
    """Create a topic with partitions, and a group with offsets for all of them. Return the topic id."""
    with attacked.client() as client:
        client.request(ApiKey.CREATE_TOPICS, {"topics": [topic(TOPIC, 50)], "timeout": 30_000})
        partitions = [{"partition_index": index, "committed_offset": 0} for index in range(50)]
        commit: dict[str, Any] = {"group_id": GROUP, "generation_id_or_member_epoch": -1, "member_id": ""}
        client.request(
            ApiKey.OFFSET_COMMIT, commit | {"topics": [{"name": TOPIC, "partitions": partitions}]}, version=9
        )
        found = client.request(ApiKey.METADATA, {"topics": [{"name": TOPIC}]}, version=12)
        return found.topics[0].topic_id  # type: ignore[no-any-return]


def arrays_of(schema: Any) -> Iterator[tuple[str, ...]]:
    """Yield the path to each array, through the arrays around it."""
    for member in members(schema):
        if member.is_array and not member.is_tagged:
            yield (member.name,)
        if member.entity is not None and not member.is_tagged:
            yield from ((member.name, *path) for path in arrays_of(member.entity))


class Asking:
    """Creates requests with very many elements in one array."""

    def __init__(self, topic_id: UUID, *, distinct: bool) -> None:
        self._topic_id = topic_id
        self._distinct = distinct

    def values(self, schema: Any, path: tuple[str, ...], number: int = 0) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for member in members(schema):
            if member.is_tagged:
                continue
            is_meant = path[:1] == (member.name,)
            inner = path[1:] if is_meant else ()
            if not member.is_array:
                values[member.name] = self._value(member, inner, number)
            elif is_meant and not inner:
                values[member.name] = [self._value(member, (), each) for each in range(ELEMENTS)]
            else:
                values[member.name] = [self._value(member, inner, number)]
        return values

    def _value(self, member: Any, path: tuple[str, ...], number: int) -> Any:
        if member.entity is not None:
            values = self.values(member.entity, path, number)
            if "configuration_keys" in values and not path:
                values["configuration_keys"] = None  # all settings
            return values
        if member.kind == "string":
            name = GROUP if "group" in member.name or member.name in ("key", "coordinator_keys") else TOPIC
            return f"{name}-{number}" if self._distinct and number else name
        if member.kind == "uuid":
            return UUID(int=number) if self._distinct and number else self._topic_id
        if member.kind in ("bytes", "records"):
            return b""
        if member.name == "resource_type":
            return 2
        return number if self._distinct and ("partition" in member.name or member.name == "index") else 0


@pytest.mark.parametrize("distinct", [False, True], ids=["the same", "different"])
@pytest.mark.parametrize("key", _KEYS, ids=lambda key: key.name)
def test_thousands_of_elements_take_little_memory(
    attacked: Attacked, peak_memory: PeakMemory, topic_id: UUID, key: ApiKey, distinct: bool
) -> None:
    version = VERSIONS[key].highest
    schema = load_request_schema(int(key), version)
    for path in arrays_of(schema):
        body = bytearray()
        compile_encoder(schema)(body, Asking(topic_id, distinct=distinct).values(schema, path))
        peak_memory.reset()
        with attacked.client(seconds=60) as client:
            client.is_refused(framed(request_header(key, version) + bytes(body)))
        peak_memory.check(GROWTH)


def test_a_group_of_many_members_is_described_once(
    attacked: Attacked, peak_memory: PeakMemory, client: RawClient
) -> None:
    members = [RawClient(attacked.port) for _ in range(30)]
    for number, member in enumerate(members):
        heartbeat = {"group_id": "crowd", "member_id": f"member-{number}", "member_epoch": 0, "rebalance_timeout": 9000}
        subscribed = {"subscribed_topic_names": [TOPIC], "topic_partitions": []}
        assert member.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat | subscribed).error_code == 0
    peak_memory.reset()
    for key, asked in ((ApiKey.CONSUMER_GROUP_DESCRIBE, "group_ids"), (ApiKey.DESCRIBE_GROUPS, "groups")):
        version = VERSIONS[key].highest
        client.send(request_frame(key, version, {asked: ["crowd"] * ELEMENTS}))
        assert len(client.receive()) < 50_000
    peak_memory.check(GROWTH)
    for member in members:
        member.close()
