"""The event loop serves every client: no call that waits for a disk, and none that takes long, may run on it.

tests/compat/test_event_loop_calls.py asks the kernel the same question.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.broker.groups.topic_pattern import TopicPattern
from stratalog.broker.worker_threads import WorkerThreads
from stratalog.client import Admin, Consumer, Producer, TopicPartition
from stratalog.client.administration.configs import ConfigResource
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import decode_response
from stratalog.records import compression
from stratalog.records.builder import build_batch
from stratalog.storage.disk import Disk
from stratalog.storage.log import Log
from stratalog.storage.producers import ProducerTracker
from tests.broker.bad_input.attack import Attack, prepare
from tests.broker.bad_input.client import RawClient
from tests.broker.bad_input.fuzzer import Fuzzer
from tests.broker.bad_input.healthy import topic
from tests.broker.broker_thread import SECONDS, BrokerThread
from tests.protocol.kio_messages import framed, request_body, request_header

MB = 1024 * 1024


class DiskWaits:
    """The calls with which one thread waits for a disk or may have to: syncs, changes of directories, and locks that
    another thread may hold while it syncs."""

    WAITING_CALLS = (
        (os, ("fsync", "fdatasync", "sync", "rename", "replace", "unlink", "remove", "mkdir", "rmdir")),
        (os, ("scandir", "listdir")),
        (Disk, ("sync_mapping", "make_directory", "replace")),
        (
            Log,
            ("roll", "flush", "get_ready", "truncate", "apply_retention", "advance_start", "find_timestamp", "warm_up"),
        ),
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.thread_id: int | None = None
        self.seen: list[str] = []
        self.elsewhere = 0
        for owner, functions in self.WAITING_CALLS:
            for name in functions:
                monkeypatch.setattr(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() == self.thread_id:
                self.seen.append("".join(traceback.format_stack(limit=12)))
            elif self.thread_id is not None:
                self.elsewhere += 1
            return call(*arguments, **named)

        return watched


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> DiskWaits:
    return DiskWaits(monkeypatch)


@pytest.fixture
def broker(tmp_path: Path, waits: DiskWaits) -> Iterator[BrokerThread]:
    settings: dict[str, object] = {
        "log.segment.bytes": 16_384,
        "log.index.size.max.bytes": 4096,
        "log.flush.scheduler.interval.ms": 200,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    with BrokerThread(tmp_path / "data", settings) as running:
        waits.thread_id = running.thread_id
        yield running
        waits.thread_id = None


def create(broker: BrokerThread, name: str, partitions: int = 1, **settings: str) -> None:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
    with RawClient(broker.port) as client:
        wanted = {**topic(name, partitions), "configs": configs}
        (answer,) = client.request(ApiKey.CREATE_TOPICS, {"topics": [wanted], "timeout": 30_000}).topics
    assert answer.error_code == ErrorCode.none


def produce(client: RawClient, name: str, data: bytes, partitions: int = 1) -> list[ErrorCode]:
    (answer,) = client.request(ApiKey.PRODUCE, produce_request(name, data, partitions), version=12).responses
    return [each.error_code for each in answer.partition_responses]


def send_produce(client: RawClient, name: str, data: bytes, acks: int = -1) -> None:
    body = request_body(ApiKey.PRODUCE, 12, produce_request(name, data, acks=acks))
    client.send(framed(request_header(ApiKey.PRODUCE, 12, correlation_id=1, client_id=None) + body))


def produce_request(name: str, data: bytes, partitions: int = 1, acks: int = -1) -> dict[str, Any]:
    batches = [{"index": index, "records": data} for index in range(partitions)]
    return {"acks": acks, "timeout": 1000, "topic_data": [{"name": name, "partition_data": batches}]}


def test_no_request_makes_the_event_loop_wait_for_a_disk(broker: BrokerThread, waits: DiskWaits) -> None:
    """Send half-meaningful requests to every API, then do what real clients do: rolls, flushes, groups, transactions,
    also in the topics that hold the broker's own state, and reads of segments that are closed."""
    Attack(broker.port, Fuzzer(11, prepare(broker.port))).run(range(1_500))
    create(broker, "flushed", flush_messages="1")
    create(broker, "stamped", message_timestamp_type="LogAppendTime", compression_type="gzip")
    create(broker, "compacted", 3, cleanup_policy="compact", segment_ms="1")
    address = f"127.0.0.1:{broker.port}"
    with Producer(address, transactional_id="t") as producer, Producer(address) as plain:
        for _ in range(30):
            for name in ("flushed", "stamped", "compacted"):
                plain.send(name, bytes(1000), key=b"key")
            plain.flush()
            with producer.transaction():
                for name in ("compacted", "flushed"):
                    producer.send(name, bytes(1000), key=b"other")
    with Consumer(address, group_id="group", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["flushed", "compacted"])
        assert consumer.poll(10)
        consumer.commit()
    with Admin(address) as admin:
        for name in ("__consumer_offsets", "__transaction_state"):
            admin.alter_configs({ConfigResource.topic(name): {"flush.messages": "1", "segment.bytes": "16384"}})
    with Producer(address, transactional_id="t") as producer, Consumer(address, group_id="group") as consumer:
        for number in range(300):
            with producer.transaction():
                producer.send("flushed", b"value")
            consumer.commit({TopicPartition("flushed", 0): number})
    assert all(len(state_log(broker, name).segments) > 1 for name in ("__consumer_offsets", "__transaction_state"))
    for partition in broker.broker.topics.partitions("flushed"):
        for segment in partition.log.segments:
            segment.release()
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("flushed", 0)])
        assert consumer.poll(10)
    with Admin(address) as admin:
        admin.delete_records({TopicPartition("flushed", 0): 3})
        admin.delete_topics(["stamped", "compacted"])
    assert waits.elsewhere > 0
    assert not waits.seen, f"{len(waits.seen)} times, first:\n{waits.seen[0]}"


def state_log(broker: BrokerThread, name: str) -> Log:
    partition = broker.broker.topics.partition(name, 0)
    assert partition is not None
    return partition.log


def test_a_first_record_for_each_of_many_partitions_waits_for_no_disk(broker: BrokerThread, waits: DiskWaits) -> None:
    create(broker, "wide", 200)
    with RawClient(broker.port) as client:
        assert produce(client, "wide", bytes(build_batch([(None, b"value")])), 200) == [ErrorCode.none] * 200
    assert waits.seen == []


class Held:
    """Holds the calls of a method: they set `begun`, and go on when `release` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.begun = threading.Event()
        self.release = threading.Event()
        original = getattr(owner, name)

        def held(*arguments: Any, **named: Any) -> Any:
            self.begun.set()
            assert self.release.wait(SECONDS)
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, held)


@pytest.mark.parametrize(
    ("settings", "data", "step"),
    [
        ({}, build_batch([(None, bytes(64 * MB))], codec="zstd"), "prepare"),
        ({"compression_type": "gzip"}, build_batch([(None, bytes(MB))], codec="lz4"), "prepare"),
        ({"flush_messages": "1"}, build_batch([(None, b"value")]), "flush"),
        ({"segment_bytes": "1024"}, build_batch([(None, bytes(900))]), "get_ready"),
    ],
    ids=["bomb", "other codec", "flush", "roll"],
)
def test_others_are_served_while_one_waits_for_its_batch(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], data: bytearray, step: str
) -> None:
    create(broker, "slow", 1, **settings)
    create(broker, "quick")
    with RawClient(broker.port) as slow, RawClient(broker.port) as other:
        if step == "get_ready":
            assert produce(slow, "slow", bytes(data)) == [ErrorCode.none]
        held = Held(monkeypatch, Log, step)
        send_produce(slow, "slow", bytes(data))
        assert held.begun.wait(SECONDS)
        assert produce(other, "quick", bytes(build_batch([(None, b"value")]))) == [ErrorCode.none]
        held.release.set()
        slow.receive()
        monkeypatch.undo()
        assert broker.broker.topics.partition("slow", 0).log.log_end_offset == (2 if step == "get_ready" else 1)  # type: ignore[union-attr]


def test_others_are_served_while_a_marker_waits_for_a_log_that_a_thread_holds(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A roll syncs with the log's write lock held. The transaction ends as soon as its log is free again."""
    create(broker, "rolling")
    create(broker, "quick")
    log = broker.broker.topics.partition("rolling", 0).log  # type: ignore[union-attr]
    with Producer(f"127.0.0.1:{broker.port}", transactional_id="t") as producer, RawClient(broker.port) as other:
        producer.begin()
        producer.send("rolling", b"value")
        producer.flush()
        held = Held(monkeypatch, ProducerTracker, "save")
        roll = threading.Thread(target=log.roll)
        roll.start()
        assert held.begun.wait(SECONDS)
        producer.commit()  # is decided, and so acknowledged, without the marker
        assert produce(other, "quick", bytes(build_batch([(None, b"value")]))) == [ErrorCode.none]
        assert log.producers.first_open_transaction == 0
        held.release.set()
        roll.join()
        with producer.transaction():  # the broker lets the next begin when the first has its marker
            producer.send("quick", b"value")
        assert log.producers.first_open_transaction is None


def test_others_are_served_while_batches_are_read_from_the_disk(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(broker, "cold")
    create(broker, "quick")
    with RawClient(broker.port) as slow, RawClient(broker.port) as other:
        data = bytes(build_batch([(None, bytes(1000))]))
        for _ in range(20):
            assert produce(slow, "cold", data) == [ErrorCode.none]
        log = broker.broker.topics.partition("cold", 0).log  # type: ignore[union-attr]
        assert len(log.segments) > 1
        log.segments[0].release()  # as after a restart
        monkeypatch.setattr(log, "_warm_from", log.log_end_offset)
        held = Held(monkeypatch, Log, "warm_up")
        send_fetch(slow, "cold", max_wait=0)
        assert held.begun.wait(SECONDS)
        assert produce(other, "quick", data) == [ErrorCode.none]
        send_fetch(other, "quick", "cold", max_wait=60_000)  # has enough without the cold partition
        assert {name: len(records) > 0 for name, records in receive_fetch(other)} == {"quick": True, "cold": False}
        held.release.set()
        assert [(name, len(records) > 0) for name, records in receive_fetch(slow)] == [("cold", True)]
        send_fetch(slow, "cold", max_wait=0)
        receive_fetch(slow)


def send_fetch(client: RawClient, *names: str, max_wait: int) -> None:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100_000}
    topics = [{"topic": name, "partitions": [partition]} for name in names]
    body = request_body(ApiKey.FETCH, 11, {"max_wait": max_wait, "min_bytes": 1, "max_bytes": 10**6, "topics": topics})
    client.send(framed(request_header(ApiKey.FETCH, 11, correlation_id=1, client_id=None) + body))


def receive_fetch(client: RawClient) -> list[tuple[str, bytes]]:
    answer = decode_response(ApiKey.FETCH, 11, memoryview(client.receive())[4:])
    return [(topic.topic, topic.partitions[0].records or b"") for topic in answer.responses]


def test_a_commit_is_refused_and_can_be_retried_while_a_thread_syncs_the_offsets_log(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A roll syncs with the log's write lock held: a commit that waited for it would keep every client waiting."""
    create(broker, "orders")
    offset = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    commit = {
        "group_id": "group",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "orders", "partitions": [offset]}],
    }

    def committed(client: RawClient) -> ErrorCode:
        answer = client.request(ApiKey.OFFSET_COMMIT, commit, version=7)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    with RawClient(broker.port) as client:
        client.request(ApiKey.FIND_COORDINATOR, {"key": "group", "key_type": 0}, version=3)
        deadline = time.monotonic() + SECONDS
        while committed(client) is not ErrorCode.none and time.monotonic() < deadline:
            threading.Event().wait(0.01)  # the topic is being created
        held = Held(monkeypatch, ProducerTracker, "save")
        roll = threading.Thread(target=state_log(broker, "__consumer_offsets").roll)
        roll.start()
        assert held.begun.wait(SECONDS)
        assert committed(client) is ErrorCode.not_coordinator
        assert produce(client, "orders", bytes(build_batch([(None, b"value")]))) == [ErrorCode.none]
        held.release.set()
        roll.join()
        assert committed(client) is ErrorCode.none


def test_others_are_served_while_a_consumers_pattern_is_matched(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(broker, "orders")
    held = Held(monkeypatch, TopicPattern, "matching")
    member = {"group_id": "group", "member_id": "m"}
    joining = {
        "member_epoch": 0,
        "rebalance_timeout": 60_000,
        "subscribed_topic_regex": "o.*",
        "topic_partitions": [],
    }
    with RawClient(broker.port) as client, RawClient(broker.port) as other:
        joined = client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, member | joining)
        assert (joined.error_code, joined.assignment.topic_partitions) == (ErrorCode.none, ())
        assert held.begun.wait(SECONDS)
        assert produce(other, "orders", bytes(build_batch([(None, b"value")]))) == [ErrorCode.none]
        assignment, epoch = None, joined.member_epoch
        held.release.set()
        deadline = time.monotonic() + SECONDS
        while assignment is None and time.monotonic() < deadline:
            beat = client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, member | {"member_epoch": epoch})
            assignment, epoch = beat.assignment, beat.member_epoch
            threading.Event().wait(0.01)
        assert assignment is not None
        assert [topic.partitions for topic in assignment.topic_partitions] == [(0,)]


class CountedBytes(bytearray):
    """The memory that a batch is decompressed into."""

    made = alive = 0

    def __init__(self, size: int) -> None:
        super().__init__(size)
        CountedBytes.made += 1
        CountedBytes.alive += 1

    def __del__(self) -> None:
        CountedBytes.alive -= 1


def test_batches_that_wait_for_a_thread_hold_no_decompressed_bytes(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a hundred requests of a few kilobytes would take gigabytes."""
    waiting: list[asyncio.Future[None]] = []

    async def wait(_: WorkerThreads, call: Callable[[], object]) -> object:
        waiting.append(asyncio.get_running_loop().create_future())
        await waiting[-1]
        return call()

    monkeypatch.setattr(compression, "uninitialized", CountedBytes)
    monkeypatch.setattr(WorkerThreads, "check_large", wait)
    create(broker, "orders")
    data = bytes(build_batch([(None, bytes(64 * MB))], codec="zstd"))
    clients = [RawClient(broker.port) for _ in range(5)]
    try:
        for client in clients:
            send_produce(client, "orders", data)
        deadline = time.monotonic() + SECONDS
        while len(waiting) < len(clients) and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        gc.collect()
        assert (len(waiting), CountedBytes.made > 0, CountedBytes.alive) == (5, True, 0)
    finally:
        broker.run(release(waiting))
        for client in clients:
            client.receive()
            client.close()


async def release(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        future.set_result(None)


def test_records_of_a_client_that_did_not_wait_are_there(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    create(broker, "orders", compression_type="gzip")
    held = Held(monkeypatch, Log, "prepare")
    with RawClient(broker.port) as client:
        data = bytes(build_batch([(None, b"value")]))
        send_produce(client, "orders", data, acks=0)
        assert held.begun.wait(SECONDS)
    held.release.set()
    with Consumer(f"127.0.0.1:{broker.port}", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        assert next(iter(consumer)).value == b"value"


def test_offsets_by_time_are_looked_up_while_others_are_served(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(broker, "orders")
    held = Held(monkeypatch, Log, "find_timestamp")
    wanted = {"replica_id": -1, "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": 5}]}]}
    with RawClient(broker.port) as slow, RawClient(broker.port) as other:
        body = request_body(ApiKey.LIST_OFFSETS, 7, wanted)
        slow.send(framed(request_header(ApiKey.LIST_OFFSETS, 7, correlation_id=1, client_id=None) + body))
        assert held.begun.wait(SECONDS)
        assert produce(other, "orders", bytes(build_batch([(None, b"value")]))) == [ErrorCode.none]
        held.release.set()
        slow.receive()
