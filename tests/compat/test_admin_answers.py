"""The same admin requests, byte for byte, to Apache Kafka and to our broker, which must respond alike.

Left out of the comparison are messages, ids, addresses, and the settings that come with a created topic.
"""

from __future__ import annotations

import dataclasses
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.encoding import compile_encoder
from stratalog.records.builder import build_batch
from tests.broker.process import BrokerProcess
from tests.compat.kafka_server import KafkaServer

pytestmark = pytest.mark.compat

MINUTE_MS = 60_000
UNKNOWN_ID = uuid.UUID(int=0x123456789ABCDEF0123456789ABCDEF0)


class Wire:
    """A connection whose requests are created from dicts."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        return entity_reader(load_response_schema(int(key), version))(self.ask_raw(key, version, fields), 0)[0]

    def ask_raw(self, key: ApiKey, version: int, fields: dict[str, Any]) -> memoryview:
        """Return the bytes of a response: kio can't parse times before 1970, which some responses use for no time."""
        flexible = version >= VERSIONS[key].first_flexible
        frame = bytearray(struct.pack(">hhihs", key, version, 7, 1, b"t") + (b"\0" if flexible else b""))
        compile_encoder(load_request_schema(int(key), version))(frame, fields)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._read(4))
        return memoryview(self._read(size))[5 if flexible else 4 :]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the broker closed the connection"
            data += more
        return data


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Wire, Wire]]:
    directory = tmp_path_factory.mktemp("brokers")
    settings = {"num.partitions": "3", "auto.create.topics.enable": "false"}
    with KafkaServer(directory / "kafka", settings) as kafka, BrokerProcess(directory / "ours", settings) as ours:
        both = Wire(kafka.bootstrap), Wire(ours.address)
        yield both
        for wire in both:
            wire.close()


def topic(name: str, partitions: int = 1, factor: int = 1, **fields: Any) -> dict[str, Any]:
    settings = [{"name": key, "value": value} for key, value in fields.pop("settings", {}).items()]
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [
            {"partition_index": index, "broker_ids": brokers} for index, brokers in fields.pop("assigned", ())
        ],
        "configs": settings,
    }


def creation(*topics: dict[str, Any], validate_only: bool = False) -> dict[str, Any]:
    return {"topics": topics, "timeout": MINUTE_MS, "validate_only": validate_only}


def growth(*topics: tuple[Any, ...], validate_only: bool = False) -> dict[str, Any]:
    wanted = [
        {
            "name": name,
            "count": count,
            "assignments": None if not assigned else [{"broker_ids": brokers} for brokers in assigned[0]],
        }
        for name, count, *assigned in topics
    ]
    return {"topics": wanted, "timeout": MINUTE_MS, "validate_only": validate_only}


def page(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> dict[str, Any]:
    return {
        "topics": [{"name": name} for name in names],
        "response_partition_limit": limit,
        "cursor": None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
    }


def deletion(*names: str, ids: tuple[uuid.UUID, ...] = ()) -> dict[str, Any]:
    by_name = [{"name": name, "topic_id": None} for name in names]
    return {"topics": [*by_name, *({"name": None, "topic_id": each} for each in ids)], "timeout": MINUTE_MS}


def records(*offsets: tuple[str, int, int]) -> dict[str, Any]:
    wanted = [{"name": name, "partitions": [{"partition_index": i, "offset": at}]} for name, i, at in offsets]
    return {"topics": wanted, "timeout": MINUTE_MS}


def epochs(*asked: tuple[str, int, int, int]) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "topics": [
            {"topic": name, "partitions": [{"partition": i, "current_leader_epoch": current, "leader_epoch": epoch}]}
            for name, i, current, epoch in asked
        ],
    }


def batch(*, producer_id: int = -1, sequence: int = -1) -> bytes:
    epoch = -1 if producer_id < 0 else 0
    values = [(None, b"value")] * 5
    return bytes(build_batch(values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))


def produce(name: str, data: bytes) -> dict[str, Any]:
    partition = {"index": 0, "records": data}
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": MINUTE_MS,
        "topic_data": [{"name": name, "partition_data": [partition]}],
    }


K = ApiKey
CHANGES: list[tuple[ApiKey, int, dict[str, Any]]] = [
    *((K.CREATE_TOPICS, version, creation(topic(f"v{version}", 2))) for version in range(2, 8)),
    (K.CREATE_TOPICS, 7, creation(topic("orders", -1, -1), topic("events", 2, 1, settings={"retention.ms": "9000"}))),
    (K.CREATE_TOPICS, 7, creation(topic("orders"))),
    (K.CREATE_TOPICS, 7, creation(topic("a.b"), topic("fresh", 2))),
    (K.CREATE_TOPICS, 7, creation(topic("a_b"))),
    (K.CREATE_TOPICS, 7, creation(topic("twice"), topic("once"), topic("twice", 2))),
    (K.CREATE_TOPICS, 7, creation(*(topic(name) for name in ("..", ".", "", "a/b", "a b", "ü", "x" * 250)))),
    (K.CREATE_TOPICS, 7, creation(*(topic(f"f{n}", 1, n) for n in (0, 2, 3)), topic("f-2", 1, -2))),
    (K.CREATE_TOPICS, 7, creation(topic("p0", 0), topic("p-2", -2), topic("fp", 0, 0))),
    (K.CREATE_TOPICS, 7, creation(topic("c1", settings={"nonsense": "1"}))),
    (K.CREATE_TOPICS, 7, creation(topic("c2", settings={"retention.ms": "x"}))),
    (K.CREATE_TOPICS, 7, creation(topic("c3", settings={"retention.ms": None}))),
    (K.CREATE_TOPICS, 7, creation(topic("m1", -1, -1, assigned=[(0, (1,)), (1, (1,))]))),
    (K.CREATE_TOPICS, 7, creation(topic("m2", -1, -1, assigned=[(1, (1,))]), topic("m3", 1, -1, assigned=[(0, (1,))]))),
    (K.CREATE_TOPICS, 7, creation(topic("m4", -1, 1, assigned=[(0, (1,))]), topic("m5", -1, -1, assigned=[(0, (2,))]))),
    (K.CREATE_TOPICS, 7, creation(topic("m6", -1, -1, assigned=[(0, (1, 1))]))),
    (K.CREATE_TOPICS, 7, creation(topic("m7", -1, -1, assigned=[(0, ())]))),
    (K.CREATE_TOPICS, 7, creation(topic("m8", -1, -1, assigned=[(0, (1,)), (0, (1,))]))),
    (K.CREATE_TOPICS, 7, creation(topic("dry", 2), topic("orders"), topic("dry2", 0), validate_only=True)),
    (K.CREATE_TOPICS, 7, creation(topic("__cluster_metadata"))),
    (K.CREATE_TOPICS, 7, creation()),
    *((K.CREATE_PARTITIONS, version, growth((f"v{version + 2}", 4))) for version in range(4)),
    (K.CREATE_PARTITIONS, 3, growth(("orders", 3), ("events", 1), ("nope", 3), ("m1", 0), ("v7", -1))),
    (K.CREATE_PARTITIONS, 3, growth(("orders", 5, [(1,), (1,)]))),
    (K.CREATE_PARTITIONS, 3, growth(("orders", 7, [(1,)]), ("events", 3, [(2,)]), ("m1", 3, [()]))),
    (K.CREATE_PARTITIONS, 3, growth(("events", 3, []))),
    (K.CREATE_PARTITIONS, 3, growth(("events", 4), ("v6", 3), ("events", 5))),
    (K.CREATE_PARTITIONS, 3, growth(("events", 8), ("v7", 1), validate_only=True)),
]
QUESTIONS: list[tuple[ApiKey, int, dict[str, Any]]] = [
    (K.DESCRIBE_TOPIC_PARTITIONS, 0, page()),
    (K.DESCRIBE_TOPIC_PARTITIONS, 0, page("orders", "nope", "a/b", "events", "orders")),
    (K.DESCRIBE_TOPIC_PARTITIONS, 0, page("orders", "events", "v2", limit=4)),
    (K.DESCRIBE_TOPIC_PARTITIONS, 0, page("orders", "events", "v2", limit=2)),
    (K.DESCRIBE_TOPIC_PARTITIONS, 0, page("orders", "events", limit=0)),
    (K.DESCRIBE_TOPIC_PARTITIONS, 0, page("orders", "events", "v2", limit=3, cursor=("orders", 4))),
    (K.DESCRIBE_TOPIC_PARTITIONS, 0, page(limit=5, cursor=("m0", 1))),
    (K.DESCRIBE_TOPIC_PARTITIONS, 0, page("orders", "v2", cursor=("orders", 99))),
    (K.DESCRIBE_TOPIC_PARTITIONS, 0, page("orders", "v2", cursor=("nope", 0))),
    (K.DESCRIBE_TOPIC_PARTITIONS, 0, page("orders", "v2", cursor=("orders", -1))),
    *(
        (K.DESCRIBE_CLUSTER, version, {"include_cluster_authorized_operations": asked, "endpoint_type": 1})
        for version in (0, 1)
        for asked in (False, True)
    ),
    *(
        (
            K.DESCRIBE_CLUSTER,
            2,
            {"include_cluster_authorized_operations": True, "endpoint_type": kind, "include_fenced_brokers": True},
        )
        for kind in (1, 2, 3, 0)
    ),
    *((K.PRODUCE, 12, produce("orders", batch())) for _ in range(4)),
    (K.PRODUCE, 12, produce("events", batch(producer_id=70_000, sequence=0))),
    *((K.DELETE_RECORDS, version, records(("orders", 0, 3 + version))) for version in range(3)),
    (K.DELETE_RECORDS, 2, records(("orders", 0, 1), ("nope", 0, 1))),
    (K.DELETE_RECORDS, 2, records(("orders", 99, 1))),
    (K.DELETE_RECORDS, 2, records(("orders", 0, 21))),
    (K.DELETE_RECORDS, 2, records(("orders", 0, -2))),
    (K.DELETE_RECORDS, 2, records(("orders", 0, -1))),
    (K.DELETE_RECORDS, 2, records(("v2", 0, -1))),
    *((K.DESCRIBE_LOG_DIRS, version, {"topics": None}) for version in range(1, 5)),
    (K.DESCRIBE_LOG_DIRS, 4, {"topics": [{"topic": name, "partitions": [0, 1, 99]} for name in ("orders", "nope")]}),
    (K.DESCRIBE_LOG_DIRS, 4, {"topics": []}),
    (K.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": name, "partition_indexes": [0]} for name in ("events", "orders")]}),
    (K.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": name, "partition_indexes": [9]} for name in ("events", "nope")]}),
    *((K.OFFSET_FOR_LEADER_EPOCH, version, epochs(("orders", 0, -1, 0))) for version in range(2, 5)),
    (K.OFFSET_FOR_LEADER_EPOCH, 4, epochs(("orders", 0, 0, 0), ("events", 0, 1, 0))),
    (K.OFFSET_FOR_LEADER_EPOCH, 4, epochs(("orders", 0, -1, 5), ("events", 0, -1, -1), ("v2", 1, 0, 0))),
    (K.OFFSET_FOR_LEADER_EPOCH, 4, epochs(("orders", 99, -1, 0), ("nope", 0, -1, 0))),
    *(
        (K.INIT_PRODUCER_ID, version, {"transactional_id": None, "transaction_timeout": MINUTE_MS, **known})
        for version, known in (
            (0, {}),
            (2, {}),
            (3, {"producer_id": -1, "producer_epoch": -1}),
            (5, {"producer_id": 3, "producer_epoch": 2}),
            (5, {"producer_id": 3, "producer_epoch": -1}),
            (5, {"producer_id": -1, "producer_epoch": 3}),
        )
    ),
    (K.INIT_PRODUCER_ID, 5, {"transactional_id": "", "transaction_timeout": MINUTE_MS}),
    *((K.DELETE_TOPICS, n, {"topic_names": [f"v{n + 1}", f"no{n}"], "timeout": MINUTE_MS}) for n in range(1, 6)),
    (K.DELETE_TOPICS, 6, deletion("v7", "nope", "twice", "m1", "m1", ids=(UNKNOWN_ID,))),
    (K.DELETE_TOPICS, 6, {"topics": [{"name": None, "topic_id": None}], "timeout": MINUTE_MS}),
    (K.DELETE_TOPICS, 6, {"topics": [{"name": "once", "topic_id": UNKNOWN_ID}], "timeout": MINUTE_MS}),
]
STORY = CHANGES + QUESTIONS

_UNLIKE = {
    "error_message",
    "topic_id",
    "configs",
    "cluster_id",
    "host",
    "port",
    "log_dir",
    "total_bytes",
    "usable_bytes",
    "last_timestamp",
    "producer_id",
}


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


def wait_until_ready(wire: Wire) -> None:
    """Wait for Kafka: its broker is fenced for a while after its start, and reserves producer ids at the first
    request."""
    not_yet = (ErrorCode.invalid_replication_factor, ErrorCode.coordinator_load_in_progress)
    producer = {"transactional_id": None, "transaction_timeout": MINUTE_MS}
    while wire.ask(ApiKey.CREATE_TOPICS, 7, creation(topic("warm"))).topics[0].error_code in not_yet:
        time.sleep(0.05)
    while wire.ask(ApiKey.INIT_PRODUCER_ID, 2, producer).error_code in not_yet:
        time.sleep(0.05)


def wait_until_told(wire: Wire) -> None:
    """Wait until Kafka's broker has the latest changes of its controller."""
    last_grown = page("v6")
    while len(wire.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, last_grown).topics[0].partitions) < 3:
        time.sleep(0.05)
    leads = epochs(("v6", 2, -1, 0))
    while wire.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, leads).topics[0].partitions[0].error_code is not ErrorCode.none:
        time.sleep(0.05)


@pytest.fixture(scope="module")
def answers(wires: tuple[Wire, Wire]) -> list[tuple[Any, Any]]:
    """Return Kafka's responses and ours to each request of the story."""

    def tell(wire: Wire) -> list[Any]:
        wait_until_ready(wire)
        changed = [wire.ask(*request) for request in CHANGES]
        wait_until_told(wire)
        return changed + [wire.ask(*request) for request in QUESTIONS]

    with ThreadPoolExecutor(2) as pool:
        kafka, ours = pool.map(tell, wires)
    return list(zip(kafka, ours, strict=True))


def test_both_brokers_describe_the_same_settings(wires: tuple[Wire, Wire]) -> None:
    asked = ["fetch.max.bytes", "num.partitions", "max.connections"]
    resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": asked}

    def shown(wire: Wire) -> Any:
        [result] = wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [resource], "include_synonyms": True}).results
        configs = {one.name: (one.value, one.read_only, one.config_source, one.config_type) for one in result.configs}
        return result.error_code, result.error_message, configs

    kafka, ours = map(shown, wires)
    assert ours == kafka


@pytest.mark.parametrize("number", range(len(STORY)), ids=lambda n: f"{n}-{STORY[n][0].name}-v{STORY[n][1]}")
def test_both_brokers_respond_alike(answers: list[tuple[Any, Any]], number: int) -> None:
    kafka, ours = answers[number]
    assert comparable(ours) == comparable(kafka)
