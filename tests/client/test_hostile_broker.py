"""Clients of a broker that is broken, or not a broker at all. Whatever its responses are, each call raises one of our
errors or returns without records, and memory stays limited. When the broker works again, the clients continue."""

from __future__ import annotations

import gzip
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stratalog import Admin, Consumer, Producer
from stratalog.client.admin import ConfigResource, OffsetSpec
from stratalog.client.errors import ClientError
from stratalog.client.groups.member_data import (
    MemberAssignment,
    MemberSubscription,
    encode_assignment,
    encode_subscription,
)
from stratalog.client.metadata import TopicPartition
from stratalog.errors import MalformedResponseError, StratalogError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.fields import write_varint
from stratalog.records._crc32c import crc32c
from stratalog.records.builder import BATCH_HEADER, build_batch
from stratalog.records.format import Codec
from tests.net.fake_broker import CLOSE, SILENCE, TOPIC_ID, Answer, FakeBroker, Request, partition, topic, versions

ORDERS = TopicPartition("orders", 0)
FAST: dict[str, Any] = {
    "request_timeout_ms": 100,
    "default_api_timeout_ms": 250,
    "retry_backoff_ms": 10,
    "retry_backoff_max_ms": 50,
    "reconnect_backoff_ms": 10,
    "reconnect_backoff_max_ms": 50,
}
# Low limits of memory: otherwise it would depend on how many fetches fit into the time of a test.
READING: dict[str, Any] = FAST | {
    "fetch_max_wait_ms": 30,
    "queued_max_messages_kbytes": 256,
    "max_inflated_batch_bytes": 8_000_000,
}
MOST_MEMORY = 64_000_000

Damage = Callable[[Request, dict[str, Any]], Answer]


def _resized(request: Request, good: dict[str, Any], size: int) -> bytes:
    return size.to_bytes(4, "big", signed=True) + request.encoded(good)[4:]


def _body_of(request: Request, good: dict[str, Any]) -> bytes:
    whole = request.encoded(good)
    return whole[len(request.framed(b"")) :]


def _noise(request: Request, good: dict[str, Any]) -> bytes:
    return request.framed(random.Random(request.correlation_id).randbytes(300))


DAMAGES: dict[str, Damage] = {
    "a size of 2 GB": lambda request, good: _resized(request, good, 2**31 - 1),
    "a size just allowed": lambda request, good: _resized(request, good, 99_999_999),
    "a negative size": lambda request, good: _resized(request, good, -1),
    "a size of nothing": lambda request, good: _resized(request, good, 0),
    "no body": lambda request, good: request.framed(b""),
    "zeros": lambda request, good: request.framed(bytes(64)),
    "nulls": lambda request, good: request.framed(b"\xff" * 64),
    "large counts": lambda request, good: request.framed(b"\x7f\xff\xff\xff" * 16),
    "large varints": lambda request, good: request.framed(b"\0" * 6 + b"\xff\xff\xff\xff\x07" * 16),
    "noise": _noise,
    "half an answer": lambda request, good: request.framed(
        _body_of(request, good)[: len(_body_of(request, good)) // 2]
    ),
    "another request's answer": lambda request, good: request.framed(b"", correlation_id=request.correlation_id + 7),
    "two answers": lambda request, good: request.encoded(good) * 2,
    "a web server": lambda request, good: b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "silence": lambda request, good: SILENCE,
    "a closed connection": lambda request, good: CLOSE,
}


UNREADABLE = [DAMAGES[name] for name in ("a size of 2 GB", "a negative size", "no body", "nulls", "a web server")]


def produced(**changed: Any) -> dict[str, Any]:
    fields = {"index": 0, "error_code": 0, "base_offset": 0, "log_append_time": -1, "record_errors": []} | changed
    return {"responses": [{"name": "orders", "topic_id": TOPIC_ID, "partition_responses": [fields]}]}


def fetched(records: bytes | None, **changed: Any) -> dict[str, Any]:
    fields = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 100,
        "last_stable_offset": 100,
        "log_start_offset": 0,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": records,
    } | changed
    return {"session_id": 0, "responses": [{"topic": "orders", "topic_id": TOPIC_ID, "partitions": [fields]}]}


def listed(**changed: Any) -> dict[str, Any]:
    fields = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": 0, "leader_epoch": 0} | changed
    return {"topics": [{"name": "orders", "partitions": [fields]}]}


def committed(**changed: Any) -> dict[str, Any]:
    fields = {"partition_index": 0, "committed_offset": 0, "metadata": "", "error_code": 0} | changed
    topics = [{"name": "orders", "topic_id": TOPIC_ID, "partitions": [fields]}]
    return {"topics": topics, "error_code": 0, "groups": [{"group_id": "g", "topics": topics, "error_code": 0}]}


def joined(**changed: Any) -> dict[str, Any]:
    """Return a JoinGroup response for the only member, which leads the group."""
    metadata = encode_subscription(MemberSubscription(("orders",)))
    return {
        "error_code": 0,
        "generation_id": 1,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": "m",
        "member_id": "m",
        "members": [{"member_id": "m", "group_instance_id": None, "metadata": metadata}],
    } | changed


def synced(assignment: bytes, **changed: Any) -> dict[str, Any]:
    return {"error_code": 0, "protocol_type": "consumer", "protocol_name": "range", "assignment": assignment} | changed


def beaten(**changed: Any) -> dict[str, Any]:
    assignment = {"topic_partitions": [{"topic_id": TOPIC_ID, "partitions": [0]}]}
    return {
        "error_code": 0,
        "error_message": None,
        "member_id": "m",
        "member_epoch": 1,
        "heartbeat_interval": 50,
        "assignment": assignment,
    } | changed


GOOD_BATCH = bytes(build_batch([(b"key", b"value")] * 5))
GOOD: dict[ApiKey, dict[str, Any]] = {
    ApiKey.INIT_PRODUCER_ID: {"error_code": 0, "producer_id": 7, "producer_epoch": 0},
    ApiKey.PRODUCE: produced(),
    ApiKey.FETCH: fetched(GOOD_BATCH),
    ApiKey.LIST_OFFSETS: listed(),
    ApiKey.LIST_GROUPS: {"error_code": 0, "groups": []},
    ApiKey.CREATE_TOPICS: {"topics": []},
    ApiKey.DELETE_TOPICS: {"responses": []},
    ApiKey.DESCRIBE_CONFIGS: {"results": []},
    ApiKey.DESCRIBE_CLUSTER: {"error_code": 0, "cluster_id": "fake", "controller_id": 1, "brokers": []},
    ApiKey.DESCRIBE_LOG_DIRS: {"error_code": 0, "results": []},
    ApiKey.DELETE_GROUPS: {"results": []},
    ApiKey.CONSUMER_GROUP_DESCRIBE: {"groups": []},
    ApiKey.OFFSET_FETCH: committed(),
    ApiKey.JOIN_GROUP: joined(),
    ApiKey.SYNC_GROUP: synced(encode_assignment(MemberAssignment((ORDERS,)))),
    ApiKey.HEARTBEAT: {"error_code": 0},
    ApiKey.LEAVE_GROUP: {"error_code": 0, "members": []},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: beaten(),
    ApiKey.OFFSET_COMMIT: {"topics": []},
}


def found_at(broker: FakeBroker) -> dict[str, Any]:
    at = {"key": "g", "node_id": 1, "host": "127.0.0.1", "port": broker.port, "error_code": 0, "error_message": None}
    return at | {"coordinators": [at]}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({"orders": 1}) as fake:
        fake.say(ApiKey.FIND_COORDINATOR, found_at(fake))
        for key, good in GOOD.items():
            fake.say(key, good)
        yield fake


def damage(broker: FakeBroker, key: ApiKey, how: Damage) -> None:
    good = {
        ApiKey.METADATA: broker.metadata(),
        ApiKey.API_VERSIONS: versions(),
        ApiKey.FIND_COORDINATOR: found_at(broker),
    }
    broker.say(key, lambda request: how(request, (GOOD | good)[key]))


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Limit the peak of the memory that Python allocates. Unlike the process's size, it depends on this test alone."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEMORY


@pytest.fixture(params=DAMAGES, ids=lambda name: name.replace(" ", "-"))
def how(request: pytest.FixtureRequest) -> Damage:
    return DAMAGES[request.param]


ADMIN_CALLS: dict[ApiKey, Callable[[Admin], Any]] = {
    ApiKey.METADATA: lambda admin: admin.list_topics(),
    ApiKey.CREATE_TOPICS: lambda admin: admin.create_topic("new"),
    ApiKey.DELETE_TOPICS: lambda admin: admin.delete_topic("orders"),
    ApiKey.DESCRIBE_CONFIGS: lambda admin: admin.describe_config(ConfigResource.topic("orders")),
    ApiKey.LIST_GROUPS: lambda admin: admin.list_groups(),
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda admin: admin.describe_group("g"),
    ApiKey.DELETE_GROUPS: lambda admin: admin.delete_group("g"),
    ApiKey.OFFSET_FETCH: lambda admin: admin.list_group_offsets("g"),
    ApiKey.OFFSET_COMMIT: lambda admin: admin.alter_group_offsets("g", {ORDERS: 1}).check(),
    ApiKey.LIST_OFFSETS: lambda admin: admin.list_offsets({ORDERS: OffsetSpec.LATEST}).check(),
    ApiKey.DESCRIBE_CLUSTER: lambda admin: admin.describe_cluster(),
    ApiKey.DESCRIBE_LOG_DIRS: lambda admin: admin.describe_log_dirs().check(),
    ApiKey.FIND_COORDINATOR: lambda admin: admin.describe_group("g"),
    ApiKey.API_VERSIONS: lambda admin: admin.list_topics(),
}


@pytest.mark.parametrize("key", ADMIN_CALLS, ids=lambda key: key.name)
def test_an_admins_call_returns_or_raises(broker: FakeBroker, how: Damage, key: ApiKey) -> None:
    damage(broker, key, how)
    with Admin(broker.address, socket_connection_setup_timeout_ms=200, **FAST) as admin:
        try:
            ADMIN_CALLS[key](admin)  # for some requests, zeros are a valid empty response
        except ClientError as error:
            assert str(error)


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE], ids=lambda key: key.name)
def test_every_record_of_a_producer_gets_an_outcome(broker: FakeBroker, how: Damage, key: ApiKey) -> None:
    damage(broker, key, how)
    options = FAST | {"delivery_timeout_ms": 250, "max_block_ms": 200, "linger_ms": 0}
    with Producer(broker.address, **options) as producer:
        try:
            deliveries = [producer.send("orders", b"value") for _ in range(3)]
        except ClientError as error:
            assert key is ApiKey.METADATA, error
            return
        for delivery in deliveries:
            error_of_it = delivery.exception(timeout=20)
            assert error_of_it is None or isinstance(error_of_it, ClientError)


@pytest.mark.parametrize(
    "changed", [{"index": 9}, {"base_offset": -5}, {"base_offset": 2**63 - 1}, {"error_code": 120}]
)
def test_a_producer_survives_an_impossible_acknowledgement(broker: FakeBroker, changed: dict[str, Any]) -> None:
    broker.say(ApiKey.PRODUCE, produced(**changed))
    options = FAST | {"delivery_timeout_ms": 250, "linger_ms": 0}
    with Producer(broker.address, **options) as producer:
        error = producer.send("orders", b"value").exception(timeout=20)
        assert error is None or isinstance(error, ClientError)


@pytest.mark.parametrize("left", [0, 1])
def test_a_producer_survives_a_topic_that_loses_partitions(broker: FakeBroker, left: int) -> None:
    broker.topics["orders"] = 3
    options = FAST | {"delivery_timeout_ms": 250, "max_block_ms": 200, "linger_ms": 0, "metadata_max_age_ms": 20}
    with Producer(broker.address, **options) as producer:
        for number in range(13):
            if number == 10:
                broker.topics["orders"] = left
            requests_before = broker.requests.count(ApiKey.METADATA)
            try:
                error = producer.send("orders", b"value").exception(timeout=20)
                assert error is None or isinstance(error, ClientError)
            except ClientError as raised:
                assert str(raised)
                break
            while number >= 10 and broker.requests.count(ApiKey.METADATA) < requests_before + 2:
                time.sleep(0.002)


def polled(broker: FakeBroker, *, arrow: bool, seconds: float = 1.0, **options: Any) -> list[bytes | None]:
    """Return the values that a consumer gets from offset 0 on. Raises the consumer's error."""
    with Consumer(broker.address, **(READING | options)) as consumer:
        consumer.assign([ORDERS])
        consumer.seek(ORDERS, 0)
        if arrow:
            return consumer.poll_arrow(seconds)["value"].to_pylist()  # type: ignore[no-any-return]
        return [record.value for records in consumer.poll(seconds).values() for record in records]


@pytest.mark.parametrize("arrow", [False, True], ids=["records", "arrow"])
def test_a_consumers_poll_returns_or_raises(broker: FakeBroker, how: Damage, arrow: bool) -> None:
    damage(broker, ApiKey.FETCH, how)
    try:
        values = polled(broker, arrow=arrow, seconds=0.2)
    except StratalogError as error:
        assert str(error)
    else:
        assert values in ([], [b"value"] * 5)  # the first of two responses is valid
    if how in UNREADABLE:
        with pytest.raises(MalformedResponseError):
            polled(broker, arrow=arrow, seconds=20)


def test_a_consumer_continues_when_the_broker_works_again(broker: FakeBroker, how: Damage) -> None:
    damage(broker, ApiKey.FETCH, how)
    with Consumer(broker.address, **READING) as consumer:
        consumer.assign([ORDERS])
        consumer.seek(ORDERS, 0)
        try:
            consumer.poll(0.2)
        except StratalogError:
            pass
        broker.say(ApiKey.FETCH, GOOD[ApiKey.FETCH])
        consumer.seek(ORDERS, 0)
        for _ in range(100):
            try:
                if consumer.poll(1.0):
                    return
            except StratalogError:
                pass
        raise AssertionError("it never came back")


def stamped(batch: bytes, **changed: int) -> bytes:
    """Change fields in the batch's header, and correct its checksum."""
    names = "base_offset length leader_epoch magic crc attributes last_offset_delta base_timestamp max_timestamp"
    names += " producer_id producer_epoch base_sequence count"
    fields = dict(zip(names.split(), BATCH_HEADER.unpack_from(batch), strict=True)) | changed
    again = bytearray(BATCH_HEADER.pack(*fields.values()) + batch[BATCH_HEADER.size :])
    if "crc" not in changed:
        struct.pack_into(">I", again, 17, crc32c(memoryview(again)[21:]))
    return bytes(again)


def bomb() -> bytes:
    """Return a small batch whose decompressed size is a gigabyte."""
    inside = bytearray()
    write_varint(inside, 0)
    packed = gzip.compress(bytes(1 << 20), 9) * 1024
    header = stamped(GOOD_BATCH, attributes=int(Codec.GZIP), length=49 + len(packed))[: BATCH_HEADER.size]
    return stamped(header + packed, count=1)


BATCHES: dict[str, Callable[[], bytes]] = {
    "a wrong checksum": lambda: stamped(GOOD_BATCH, crc=1),
    "two billion records": lambda: stamped(GOOD_BATCH, count=2**31 - 1),
    "a negative count": lambda: stamped(GOOD_BATCH, count=-1),
    "fewer records than there are": lambda: stamped(GOOD_BATCH, count=2),
    "a negative length": lambda: stamped(GOOD_BATCH, length=-1),
    "a length beyond the end": lambda: stamped(GOOD_BATCH, length=2**31 - 1),
    "a length that is too small": lambda: stamped(GOOD_BATCH, length=10),
    "an unknown magic": lambda: stamped(GOOD_BATCH, magic=9),
    "an unknown codec": lambda: stamped(GOOD_BATCH, attributes=7),
    "a codec that it is not packed with": lambda: stamped(GOOD_BATCH, attributes=int(Codec.ZSTD)),
    "offsets before the requested one": lambda: stamped(GOOD_BATCH, base_offset=-100),
    "offsets at the end of all numbers": lambda: stamped(GOOD_BATCH, base_offset=2**63 - 3),
    "an offset delta that goes back": lambda: stamped(GOOD_BATCH, last_offset_delta=-5),
    "lengths inside that can not be": lambda: GOOD_BATCH[:61] + b"\xff" * (len(GOOD_BATCH) - 61),
    "noise": lambda: random.Random(1).randbytes(500),
    "a decompression bomb": bomb,
    "a control batch without a marker": lambda: stamped(GOOD_BATCH, attributes=0x30),
}


@pytest.mark.parametrize("arrow", [False, True], ids=["records", "arrow"])
@pytest.mark.parametrize("name", BATCHES, ids=lambda name: name.replace(" ", "-"))
def test_batches_that_are_not_valid_cause_an_error_or_no_records(broker: FakeBroker, name: str, arrow: bool) -> None:
    batch = BATCHES[name]()
    if name == "lengths inside that can not be":
        batch = stamped(batch)
    broker.say(ApiKey.FETCH, fetched(batch))
    try:
        values = polled(broker, arrow=arrow, seconds=0.2)
    except StratalogError as error:
        assert str(error)
    else:
        assert set(values) <= {b"value"}


@pytest.mark.parametrize(
    "changed",
    [
        {"partition_index": 9},
        {"high_watermark": -1, "last_stable_offset": -1},
        {"log_start_offset": 2**63 - 1},
        {"preferred_read_replica": 99},
        {"error_code": 1},
        {"error_code": 74},
        {"error_code": 100},
        {"error_code": 133},
        {"records": None},
        {"records": b""},
        {"aborted_transactions": [{"producer_id": -1, "first_offset": -1}]},
    ],
    ids=str,
)
def test_a_consumer_survives_nonsense_about_a_partition(broker: FakeBroker, changed: dict[str, Any]) -> None:
    broker.say(ApiKey.FETCH, fetched(**({"records": GOOD_BATCH} | changed)))
    try:
        assert set(polled(broker, arrow=False, seconds=0.2, isolation_level="read_committed")) <= {b"value"}
    except StratalogError as error:
        assert str(error)


def test_a_consumer_survives_fetch_responses_with_changed_bytes(broker: FakeBroker) -> None:
    bent = random.Random(7)

    def bend(request: Request) -> bytes:
        body = bytearray(_body_of(request, GOOD[ApiKey.FETCH]))
        at = bent.randrange(len(body))
        for number in range(at, min(at + bent.choice([1, 2, 4]), len(body))):
            body[number] = bent.choice([0, 0x7F, 0x80, 0xFF])
        return request.framed(body)

    broker.say(ApiKey.FETCH, bend)
    deadline = time.monotonic() + 60
    with Consumer(broker.address, **READING) as consumer:
        consumer.assign([ORDERS])
        while broker.requests.count(ApiKey.FETCH) < 60:
            assert time.monotonic() < deadline, "the consumer fetches no more"
            consumer.seek(ORDERS, 0)
            try:
                consumer.poll(0.02)
            except StratalogError as error:
                assert str(error)


@pytest.mark.parametrize(
    "changed",
    [
        {"brokers": [{"node_id": 1, "host": "", "port": 0, "rack": None}]},
        {"brokers": [{"node_id": 1, "host": "127.0.0.1", "port": -1, "rack": None}]},
        {"brokers": [{"node_id": 1, "host": "x" * 5000, "port": 1, "rack": None}]},
        {"brokers": [{"node_id": -5, "host": "127.0.0.1", "port": 1, "rack": None}]},
        {"brokers": []},
        {"topics": [topic("orders", 0)]},
        {"topics": [topic("other", 1)]},
        {"topics": [topic("orders", partitions=[partition(0, leader_id=55)])]},
        {"topics": [topic("orders", partitions=[partition(5)])]},
        {"topics": [topic("orders", 1, error_code=29)]},
        {"topics": [topic("orders", 1, topic_id=None)] * 3},
        {"controller_id": 2**31 - 1, "cluster_id": None},
    ],
    ids=lambda changed: str(changed)[:60],
)
def test_metadata_that_is_not_usable_causes_an_error(broker: FakeBroker, changed: dict[str, Any]) -> None:
    broker.say(ApiKey.METADATA, broker.metadata(**changed))
    options = FAST | {"delivery_timeout_ms": 250, "max_block_ms": 200, "linger_ms": 0}
    with Producer(broker.address, **options) as producer:
        try:
            error = producer.send("orders", b"value").exception(timeout=20)
        except ClientError as raised:
            error = raised
        assert error is None or isinstance(error, ClientError)
    try:
        assert set(polled(broker, arrow=False, seconds=0.2)) <= {b"value"}
    except StratalogError as raised:
        assert str(raised)


def subscribed(broker: FakeBroker, protocol: str, seconds: float) -> list[bytes | None]:
    """Return the values that a member of group g gets. Raises the member's error."""
    options: dict[str, Any] = {"group_id": "g", "group_protocol": protocol, "enable_auto_commit": False}
    if protocol == "classic":
        options |= {"heartbeat_interval_ms": 50}
    with Consumer(broker.address, **(READING | options)) as consumer:
        consumer.subscribe(["orders"])
        return [record.value for records in consumer.poll(seconds).values() for record in records]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_of_a_valid_group_gets_records(broker: FakeBroker, protocol: str) -> None:
    assert subscribed(broker, protocol, 20) == [b"value"] * 5


GROUP_CALLS = [
    ("classic", ApiKey.FIND_COORDINATOR),
    ("classic", ApiKey.JOIN_GROUP),
    ("classic", ApiKey.SYNC_GROUP),
    ("classic", ApiKey.HEARTBEAT),
    ("classic", ApiKey.LEAVE_GROUP),
    ("classic", ApiKey.OFFSET_FETCH),
    ("consumer", ApiKey.CONSUMER_GROUP_HEARTBEAT),
]


@pytest.mark.parametrize(("protocol", "key"), GROUP_CALLS, ids=str)
def test_a_members_poll_and_close_return_or_raise(broker: FakeBroker, how: Damage, protocol: str, key: ApiKey) -> None:
    damage(broker, key, how)
    try:
        assert set(subscribed(broker, protocol, 0.15)) <= {b"value"}
    except StratalogError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("key", "response"),
    [
        (ApiKey.JOIN_GROUP, joined(members=[{"member_id": "m", "group_instance_id": None, "metadata": b"\xff" * 9}])),
        (ApiKey.JOIN_GROUP, joined(members=[])),
        (ApiKey.JOIN_GROUP, joined(protocol_name="unheard-of")),
        (ApiKey.JOIN_GROUP, joined(protocol_name=None, protocol_type=None)),
        (ApiKey.JOIN_GROUP, joined(generation_id=-7, member_id="")),
        (ApiKey.JOIN_GROUP, joined(error_code=int(ErrorCode.member_id_required), member_id="")),
        (ApiKey.SYNC_GROUP, synced(b"")),
        (ApiKey.SYNC_GROUP, synced(b"\0\1\x7f\xff\xff\xff")),
        (ApiKey.SYNC_GROUP, synced(b"\xff" * 50)),
        (ApiKey.SYNC_GROUP, synced(encode_assignment(MemberAssignment((TopicPartition("orders", 2**31 - 1),))))),
        (ApiKey.SYNC_GROUP, synced(encode_assignment(MemberAssignment((TopicPartition("never-subscribed", 0),))))),
        (ApiKey.OFFSET_FETCH, committed(committed_offset=-2)),
        (ApiKey.OFFSET_FETCH, committed(committed_offset=2**63 - 1)),
        (ApiKey.OFFSET_FETCH, committed(partition_index=5)),
        (ApiKey.OFFSET_FETCH, committed(error_code=int(ErrorCode.unstable_offset_commit))),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, beaten(heartbeat_interval=0)),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, beaten(heartbeat_interval=-1)),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, beaten(member_epoch=-9, member_id=None)),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, beaten(assignment={"topic_partitions": []})),
        (
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            beaten(assignment={"topic_partitions": [{"topic_id": None, "partitions": [-1, 2**31 - 1]}]}),
        ),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, beaten(error_code=int(ErrorCode.fenced_member_epoch))),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, beaten(error_code=int(ErrorCode.unknown_member_id))),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else str(value)[-50:],
)
def test_a_member_survives_a_coordinators_nonsense_without_a_busy_loop(
    broker: FakeBroker, key: ApiKey, response: dict[str, Any]
) -> None:
    broker.say(key, response)
    protocol = "consumer" if key is ApiKey.CONSUMER_GROUP_HEARTBEAT else "classic"
    started = time.monotonic()
    try:
        assert set(subscribed(broker, protocol, 0.15)) <= {b"value"}
    except StratalogError as error:
        assert str(error)
    seconds = time.monotonic() - started
    # Each retry waits for 8 ms or more, however slow the machine is. A fetch that gets records is repeated at once.
    requests = [request for request in broker.requests if request is not ApiKey.FETCH]
    assert len(requests) < 30 + seconds * 500, "it retries without a pause"
