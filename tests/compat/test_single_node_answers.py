"""Admin requests that are meant for clusters, sent byte for byte to a single Apache Kafka broker and to our broker.

Left out of the comparison are messages, addresses, offsets and times.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stratalog.protocol.api_keys import ApiKey
from tests.broker.process import BrokerProcess
from tests.compat.kafka_server import KafkaServer
from tests.compat.test_admin_answers import MINUTE_MS, Wire, creation, page, topic, wait_until_ready

pytestmark = pytest.mark.compat

DATA_DIRECTORY = "the data directory, which is another on each side"
ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
NEW_ACL = {
    "resource_type": 2,
    "resource_name": "orders",
    "resource_pattern_type": 3,
    "principal": "User:somebody",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


def moves(*topics: tuple[str, dict[int, Sequence[int] | None]], change_factor: bool = True) -> dict[str, Any]:
    wanted = [
        {"name": name, "partitions": [{"partition_index": index, "replicas": to} for index, to in partitions.items()]}
        for name, partitions in topics
    ]
    return {"timeout": MINUTE_MS, "allow_replication_factor_change": change_factor, "topics": wanted}


def election(topics: dict[str, list[int]] | None, kind: int = 0) -> dict[str, Any]:
    wanted = topics and [{"topic": name, "partitions": partitions} for name, partitions in topics.items()]
    return {"election_type": kind, "topic_partitions": wanted, "timeout": MINUTE_MS}


def quotas(*components: tuple[str, int]) -> dict[str, Any]:
    matches = [{"entity_type": kind, "match_type": match, "match": None} for kind, match in components]
    return {"components": matches, "strict": False}


def no_quota(*entities: str) -> dict[str, Any]:
    operation = {"key": "producer_byte_rate", "value": 0.0, "remove": True}
    entity = [{"entity_type": kind, "entity_name": "somebody"} for kind in entities]
    return {"entries": [{"entity": entity, "ops": [operation]}], "validate_only": False}


def features(*updates: tuple[str, int, int]) -> dict[str, Any]:
    wanted = [
        {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": False}
        for name, level, kind in updates
    ]
    return {"timeout": MINUTE_MS, "validate_only": True, "feature_updates": wanted}


def quorum(name: str = "__cluster_metadata", index: int = 0) -> dict[str, Any]:
    return {"topics": [{"topic_name": name, "partitions": [{"partition_index": index}]}]}


def directories(path: str, **topics: list[int]) -> dict[str, Any]:
    wanted = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    return {"dirs": [{"path": path, "topics": wanted}]}


K = ApiKey
STORY: list[tuple[ApiKey, int, dict[str, Any]]] = [
    *((K.DESCRIBE_ACLS, version, ANY_ACL) for version in (1, 2, 3)),
    *((K.CREATE_ACLS, version, {"creations": [NEW_ACL, NEW_ACL]}) for version in (1, 3)),
    *((K.DELETE_ACLS, version, {"filters": [ANY_ACL]}) for version in (1, 3)),
    (K.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": MINUTE_MS, "topics": None}),
    (
        K.LIST_PARTITION_REASSIGNMENTS,
        0,
        {"timeout": MINUTE_MS, "topics": [{"name": name, "partition_indexes": [0, 9]} for name in ("orders", "nope")]},
    ),
    (K.ALTER_PARTITION_REASSIGNMENTS, 0, moves(("orders", {0: [1], 1: None, 2: [2]}))),
    (K.ALTER_PARTITION_REASSIGNMENTS, 1, moves(("orders", {0: [1, 1], 1: [], 2: [1, 2], 9: [1], -1: None}))),
    (K.ALTER_PARTITION_REASSIGNMENTS, 1, moves(("nope", {0: [1], 1: None}))),
    (K.ALTER_PARTITION_REASSIGNMENTS, 1, moves(("orders", {0: [1], 1: [1, 2], 2: [-1]}), change_factor=False)),
    (K.ALTER_PARTITION_REASSIGNMENTS, 1, moves()),
    (K.ELECT_LEADERS, 0, election({"orders": [0, 1]})),
    (K.ELECT_LEADERS, 1, election({"orders": [0, 9, -1], "nope": [0]})),
    (K.ELECT_LEADERS, 2, election({"orders": [0]}, kind=1)),
    (K.ELECT_LEADERS, 2, election({"orders": [0]}, kind=7)),
    (K.ELECT_LEADERS, 2, election(None)),
    (K.ELECT_LEADERS, 2, election({})),
    *((K.DESCRIBE_CLIENT_QUOTAS, version, quotas()) for version in (0, 1)),
    (K.DESCRIBE_CLIENT_QUOTAS, 1, quotas(("user", 2), ("client-id", 1))),
    *((K.DESCRIBE_CLIENT_QUOTAS, 1, quotas((kind, match))) for kind, match in (("x", 2), ("user", 9), ("", 2))),
    *((K.DESCRIBE_CLIENT_QUOTAS, 1, quotas(("user", 2), (kind, 2))) for kind in ("ip", "user")),
    *((K.ALTER_CLIENT_QUOTAS, version, no_quota("user")) for version in (0, 1)),
    (K.ALTER_CLIENT_QUOTAS, 1, no_quota("nonsense")),
    (K.ALTER_CLIENT_QUOTAS, 1, no_quota()),
    (K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None}),
    (K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": []}),
    (K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": [{"name": name} for name in ("a", "", "b", "b")]}),
    (
        K.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        {
            "deletions": [{"name": name, "mechanism": kind} for name, kind in (("a", 1), ("", 1), ("c", 9))],
            "upsertions": [{"name": "d", "mechanism": 9, "iterations": 4096, "salt": b"1", "salted_password": b"2"}],
        },
    ),
    *((K.UPDATE_FEATURES, version, features(("transaction.version", 2, 1))) for version in (0, 1, 2)),
    *((K.UPDATE_FEATURES, version, features(("nonsense", 1, 1))) for version in (0, 1, 2)),
    *(
        (K.UPDATE_FEATURES, 2, features(("transaction.version", level, kind)))
        for level, kind in ((9, 1), (1, 1), (-1, 1), (2, 7))
    ),
    (K.UPDATE_FEATURES, 2, features(("transaction.version", 2, 1), ("nonsense", 1, 1))),
    (K.UPDATE_FEATURES, 2, features()),
    *((K.UNREGISTER_BROKER, 0, {"broker_id": number}) for number in (7, -1)),
    *((K.DESCRIBE_QUORUM, version, quorum()) for version in (0, 1, 2)),
    (K.DESCRIBE_QUORUM, 2, quorum("orders")),
    (K.DESCRIBE_QUORUM, 2, quorum(index=1)),
    (K.DESCRIBE_QUORUM, 2, {"topics": []}),
    (K.LIST_CONFIG_RESOURCES, 0, {}),
    *((K.LIST_CONFIG_RESOURCES, 1, {"resource_types": kinds}) for kinds in ([2], [4], [16], [32], [2, 4], [99])),
    *((K.ALTER_REPLICA_LOG_DIRS, v, directories(DATA_DIRECTORY, orders=[0, 9], nope=[0])) for v in (1, 2)),
    *((K.ALTER_REPLICA_LOG_DIRS, 2, directories(path, orders=[0, 9], nope=[0])) for path in ("/nope", "relative", "")),
]
_UNLIKE = {
    "error_message",
    "host",
    "port",
    "high_watermark",
    "log_end_offset",
    "last_fetch_timestamp",
    "last_caught_up_timestamp",
    "listeners",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Any, Any]]]:
    """Return Kafka's responses and ours to each request of the story."""
    directory = tmp_path_factory.mktemp("brokers")

    def tell(address: str, data_directory: str) -> list[Any]:
        wire = Wire(address)
        wait_until_ready(wire)
        wire.ask(ApiKey.CREATE_TOPICS, 7, creation(topic("orders", 3)))
        while len(wire.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, page("orders")).topics[0].partitions) < 3:
            time.sleep(0.05)
        told = [wire.ask(key, version, _in_place(fields, data_directory)) for key, version, fields in STORY]
        wire.close()
        return told

    with KafkaServer(directory / "kafka") as kafka, BrokerProcess(directory / "ours", {}) as ours:
        with ThreadPoolExecutor(2) as pool:
            addresses = [kafka.bootstrap, ours.address]
            told = pool.map(tell, addresses, [str(kafka.data_dir.absolute()), str(ours.data_dir.absolute())])
        yield list(zip(*told, strict=True))


def _in_place(fields: dict[str, Any], data_directory: str) -> dict[str, Any]:
    if "dirs" not in fields:
        return fields
    return {"dirs": [{**each, "path": each["path"].replace(DATA_DIRECTORY, data_directory)} for each in fields["dirs"]]}


def comparable(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            member.name: comparable(getattr(value, member.name))
            for member in dataclasses.fields(value)
            if member.name not in _UNLIKE
        }
    if isinstance(value, tuple):
        return sorted((comparable(each) for each in value), key=lambda each: str(each))
    return value


@pytest.mark.parametrize("number", range(len(STORY)), ids=lambda n: f"{n}-{STORY[n][0].name}-v{STORY[n][1]}")
def test_both_brokers_respond_alike(answers: list[tuple[Any, Any]], number: int) -> None:
    kafka, ours = answers[number]
    assert comparable(ours) == comparable(kafka)


def test_acl_requests_get_kafkas_messages(answers: list[tuple[Any, Any]]) -> None:
    for (kafka, ours), (key, *_) in zip(answers, STORY, strict=True):
        if key in (K.DESCRIBE_ACLS, K.CREATE_ACLS, K.DELETE_ACLS):
            assert ours == kafka
