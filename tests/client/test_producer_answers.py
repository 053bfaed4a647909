"""A producer's reactions to a broker's responses: sequence numbers, epochs, order, retries."""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from stratalog.client.errors import (
    BrokerError,
    ClientError,
    DeliveryTimeoutError,
    RecordTooLargeError,
    TopicAuthorizationError,
)
from stratalog.client.producer import Delivery, Producer
from stratalog.protocol._wire import parse_produce
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.produce import ProducedPartition, encode_produce_response
from stratalog.records.batch import batches
from stratalog.records.reader import read_records
from tests.clients.waiting import wait_until
from tests.net.fake_broker import CLOSE, Answer, FakeBroker, Request, partition, topic

SECONDS = 30.0
QUICK: dict[str, Any] = {
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 1,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 1,
}


@dataclass
class Sent:
    """A batch as the broker received it."""

    partition: int
    producer_id: int
    epoch: int
    sequence: int
    values: list[bytes]


class PickyBroker:
    """A broker that responds to Produce with `answer(batch)`: an error code, 0, or CLOSE. Records what it receives."""

    def __init__(self, partitions: int = 1) -> None:
        self.fake = FakeBroker({"topic": partitions})
        self.fake.say(ApiKey.PRODUCE, self._produce)
        self.fake.say(ApiKey.INIT_PRODUCER_ID, self._init)
        self.got: list[Sent] = []
        self.stored: list[bytes] = []
        self.answer: Callable[[Sent], object] = lambda batch: 0
        self.ids = 0
        self._lock = threading.Lock()

    def _init(self, request: Request) -> Answer:
        self.ids += 1
        return {"throttle_time": 0, "error_code": 0, "producer_id": 99 + self.ids, "producer_epoch": 0}

    def _produce(self, request: Request) -> Answer:
        _, _, _, topics = parse_produce(request.body, 0, request.version)
        answers = []
        with self._lock:
            for topic, partitions in topics:
                responses = []
                for partition, start, end in partitions:
                    data = bytes(request.body[start:end])
                    [batch] = batches(data)
                    batch.check_crc()
                    values = [record.value or b"" for record in read_records(data)]
                    header = batch.header
                    sent = Sent(partition, header.producer_id, header.producer_epoch, header.base_sequence, values)
                    self.got.append(sent)
                    outcome = self.answer(sent)
                    if outcome is CLOSE:
                        return CLOSE
                    assert isinstance(outcome, int)
                    if not outcome:
                        self.stored += values
                    responses.append(
                        ProducedPartition(partition, outcome, len(self.stored) - len(values) if not outcome else -1)
                    )
                answers.append((topic, responses))
        return request.framed(encode_produce_response(request.version, answers))


@pytest.fixture
def picky() -> Iterator[PickyBroker]:
    broker = PickyBroker()
    with broker.fake:
        yield broker


def producer_for(broker: PickyBroker, **settings: Any) -> Producer:
    return Producer(broker.fake.address, linger_ms=0, **(QUICK | settings))


def numbered(producer: Producer, count: int, start: int = 0) -> list[Delivery]:
    """Send each value in a batch of its own."""
    return [producer.send("topic", b"%d" % number) for number in range(start, start + count)]


def in_turn(*codes: object) -> Callable[[Sent], object]:
    """Return an `answer` that returns these codes one after the other, then 0."""
    left = list(codes)
    return lambda batch: left.pop(0) if left else 0


def test_sequence_numbers_count_records(picky: PickyBroker) -> None:
    with producer_for(picky, batch_size=0) as producer:
        for delivery in numbered(producer, 5):
            delivery.result(SECONDS)
    assert [(batch.producer_id, batch.epoch, batch.sequence) for batch in picky.got] == [
        (100, 0, number) for number in range(5)
    ]


def test_the_first_batch_of_a_producer_is_sent_alone(picky: PickyBroker) -> None:
    """A broker without state of a producer accepts any sequence number, so a second batch must not arrive first."""
    failures = in_turn(ErrorCode.not_leader_or_follower, ErrorCode.not_leader_or_follower)
    picky.answer = failures
    with producer_for(picky, batch_size=0) as producer:
        for delivery in numbered(producer, 5):
            delivery.result(SECONDS)
    assert [batch.sequence for batch in picky.got] == [0, 0, 0, 1, 2, 3, 4]
    assert picky.stored == [b"%d" % number for number in range(5)]


def test_order_is_kept_when_one_of_several_in_flight_fails(picky: PickyBroker) -> None:
    """Later batches are refused as out of order, and are sent again after the failed one with the same numbers."""
    expected = 0
    failed = False

    def answer(batch: Sent) -> object:
        nonlocal expected, failed
        if batch.sequence == 3 and not failed:
            failed = True
            return int(ErrorCode.not_enough_replicas)
        if batch.sequence != expected:
            return int(ErrorCode.out_of_order_sequence_number)
        expected += len(batch.values)
        return 0

    picky.answer = answer
    with producer_for(picky, batch_size=0) as producer:
        deliveries = numbered(producer, 40)
        assert [delivery.result(SECONDS).offset for delivery in deliveries] == list(range(40))
    assert picky.stored == [b"%d" % number for number in range(40)]
    assert {batch.epoch for batch in picky.got} == {0}


def test_a_lost_connection_has_all_batches_sent_again_in_order(picky: PickyBroker) -> None:
    cuts = expected = 0

    def answer(batch: Sent) -> object:
        nonlocal cuts, expected
        if batch.sequence in (2, 7, 8) and cuts < 10:
            cuts += 1
            return CLOSE
        if batch.sequence < expected:  # its response was lost with the connection
            return int(ErrorCode.duplicate_sequence_number)
        if batch.sequence > expected:
            return int(ErrorCode.out_of_order_sequence_number)
        expected += 1
        return 0

    picky.answer = answer
    with producer_for(picky, batch_size=0) as producer:
        for delivery in numbered(producer, 20):
            delivery.result(SECONDS)
    assert picky.stored == [b"%d" % number for number in range(20)]
    assert picky.fake.connections > 5


@pytest.mark.parametrize(("seconds", "reports"), [(5.0, 0), (0.0, 1)])
def test_refusals_are_reported_once_and_only_when_they_last(
    picky: PickyBroker,
    seconds: float,
    reports: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stratalog.client.batch_completion.REPORT_REFUSALS_AFTER", seconds)
    picky.answer = in_turn(*[int(ErrorCode.not_enough_replicas)] * 5)
    with producer_for(picky) as producer:
        producer.send("topic", b"value").result(SECONDS)
    assert sum("NOT_ENOUGH_REPLICAS" in record.message for record in caplog.records) == reports


@pytest.mark.parametrize("code", [ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id])
def test_a_broker_that_has_lost_the_producers_state_gets_a_new_epoch(picky: PickyBroker, code: ErrorCode) -> None:
    with producer_for(picky, batch_size=0) as producer:
        for delivery in numbered(producer, 3):
            delivery.result(SECONDS)
        picky.answer = lambda batch: 0 if batch.epoch == 1 else int(code)
        for delivery in numbered(producer, 3, 3):
            delivery.result(SECONDS)
    assert picky.stored == [b"%d" % number for number in range(6)]
    assert [(batch.epoch, batch.sequence) for batch in picky.got if batch.epoch == 1] == [(1, 0), (1, 1), (1, 2)]


def test_an_exhausted_epoch_gets_a_new_producer_id(picky: PickyBroker) -> None:
    with producer_for(picky) as producer:
        producer.send("topic", b"first").result(SECONDS)
        producer._accumulator.topics["topic"].partitions[0].begin_epoch(100, 32766)
        picky.answer = in_turn(int(ErrorCode.unknown_producer_id))
        producer.send("topic", b"second").result(SECONDS)
    assert [(batch.producer_id, batch.epoch, batch.sequence) for batch in picky.got] == [
        (100, 0, 0),
        (100, 32766, 0),
        (101, 0, 0),
    ]


def test_a_duplicate_that_the_broker_recognizes_counts_as_acknowledged(picky: PickyBroker) -> None:
    picky.answer = in_turn(int(ErrorCode.duplicate_sequence_number))
    with producer_for(picky) as producer:
        assert producer.send("topic", b"value").result(SECONDS).offset == -1


def test_a_fatal_error_fails_one_batch_and_not_the_next(picky: PickyBroker) -> None:
    picky.answer = in_turn(int(ErrorCode.topic_authorization_failed))
    with producer_for(picky) as producer:
        with pytest.raises(TopicAuthorizationError, match="topic-0"):
            producer.send("topic", b"first").result(SECONDS)
        producer.send("topic", b"second").result(SECONDS)
    assert picky.stored == [b"second"]
    assert (picky.got[-1].epoch, picky.got[-1].sequence) == (1, 0)  # number 0 of epoch 0 was never written


def test_retries_are_limited_by_the_setting(picky: PickyBroker) -> None:
    picky.answer = lambda batch: int(ErrorCode.not_enough_replicas)
    with producer_for(picky, retries=3) as producer, pytest.raises(BrokerError, match="NOT_ENOUGH_REPLICAS"):
        producer.send("topic", b"value").result(SECONDS)
    assert len(picky.got) == 4


def test_retries_end_after_delivery_timeout_ms(picky: PickyBroker) -> None:
    picky.answer = lambda batch: int(ErrorCode.not_enough_replicas)
    with (
        producer_for(picky, request_timeout_ms=1000, delivery_timeout_ms=2000) as producer,
        pytest.raises(DeliveryTimeoutError, match=r"may be in the log.*NOT_ENOUGH_REPLICAS"),
    ):
        producer.send("topic", b"value").result(SECONDS)
    assert len(picky.got) > 1


def test_records_without_a_response_fail_after_delivery_timeout_ms(picky: PickyBroker) -> None:
    picky.fake.say(ApiKey.PRODUCE, None)
    with producer_for(picky, request_timeout_ms=100, delivery_timeout_ms=300) as producer:
        deliveries = numbered(producer, 10)
        assert all(isinstance(delivery.exception(SECONDS), DeliveryTimeoutError) for delivery in deliveries)


def test_a_response_without_the_partition_is_no_acknowledgement(picky: PickyBroker) -> None:
    picky.fake.say(ApiKey.PRODUCE, lambda request: request.framed(encode_produce_response(request.version, [])))
    with producer_for(picky, retries=2) as producer, pytest.raises(Exception, match="missing in the broker's response"):
        producer.send("topic", b"value").result(SECONDS)


@pytest.mark.parametrize("body", [b"", b"\xff" * 50, struct.pack(">b", 2) + b"\x06topic\xff\xff\xff\xff\x0f"])
def test_a_malformed_response_is_an_error(picky: PickyBroker, body: bytes) -> None:
    picky.fake.say(ApiKey.PRODUCE, lambda request: request.framed(body))
    with producer_for(picky, retries=2) as producer, pytest.raises(Exception, match="Produce"):
        producer.send("topic", b"value").result(SECONDS)


def test_batches_are_split_until_they_fit(picky: PickyBroker) -> None:
    picky.answer = lambda batch: 0 if len(batch.values) <= 3 else int(ErrorCode.message_too_large)
    with Producer(picky.fake.address, linger_ms=200, **QUICK) as producer:
        deliveries = numbered(producer, 50)
        assert [delivery.result(SECONDS).offset for delivery in deliveries] == list(range(50))
    assert picky.stored == [b"%d" % number for number in range(50)]
    stored = [batch for batch in picky.got if len(batch.values) <= 3]
    assert [batch.sequence for batch in stored] == [int(batch.values[0]) for batch in stored]


def test_a_single_record_that_is_too_large_fails(picky: PickyBroker) -> None:
    picky.answer = lambda batch: int(ErrorCode.message_too_large)
    with producer_for(picky) as producer:
        with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
            producer.send("topic", b"value").result(SECONDS)
        assert producer._accumulator.used == 0


def test_no_more_than_five_requests_are_in_flight(picky: PickyBroker) -> None:
    gate = threading.Event()

    def answer(batch: Sent) -> object:
        if batch.sequence:
            gate.wait(SECONDS)
        return 0

    picky.answer = answer
    with producer_for(picky, batch_size=0) as producer:
        numbered(producer, 1)[0].result(SECONDS)
        deliveries = numbered(producer, 30, 1)
        in_flight = producer._sender._brokers[1]
        wait_until(lambda: in_flight.in_flight == 5, "five requests in flight")
        producer.send("topic", b"31")  # makes the sender look for batches again
        with pytest.raises(TimeoutError):
            deliveries[0].result(0.1)
        assert in_flight.in_flight == 5
        gate.set()
        for delivery in deliveries:
            delivery.result(SECONDS)
    assert picky.stored == [b"%d" % number for number in range(32)]


def test_a_producer_id_that_is_not_available_yet_is_waited_for(picky: PickyBroker) -> None:
    answers = [int(ErrorCode.coordinator_load_in_progress)] * 3
    init = picky._init

    def loading(request: Request) -> Answer:
        if answers:
            return {"throttle_time": 0, "error_code": answers.pop(), "producer_id": -1, "producer_epoch": -1}
        return init(request)

    picky.fake.say(ApiKey.INIT_PRODUCER_ID, loading)
    with producer_for(picky) as producer:
        producer.send("topic", b"value").result(SECONDS)


def test_a_table_changed_after_send_fails_without_failing_later_records(picky: PickyBroker) -> None:
    gate = threading.Event()
    init = picky._init

    def waits(request: Request) -> Answer:
        gate.wait(SECONDS)
        return init(request)

    picky.fake.say(ApiKey.INIT_PRODUCER_ID, waits)
    offsets = array("i", [0, 3, 6, 9])
    value = pa.Array.from_buffers(pa.binary(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(b"aaabbbccc")])
    with producer_for(picky) as producer:
        changed = producer.send_arrow("topic", pa.table({"value": value}))
        offsets[1] = 2**30  # Arrow forbids such a change
        sound = producer.send_arrow("topic", pa.table({"value": [b"sound"]}))
        gate.set()
        with pytest.raises(ClientError, match=r"topic-0: a batch could not be encoded: .* memory changed"):
            changed.result(SECONDS)
        assert [part.rows for part in sound.result(SECONDS)] == [1]
        assert producer._accumulator.used == 0
    assert picky.stored == [b"sound"]


def test_a_producer_id_that_is_refused_fails_records(picky: PickyBroker) -> None:
    refusal = {"throttle_time": 0, "error_code": 31, "producer_id": -1, "producer_epoch": -1}
    picky.fake.say(ApiKey.INIT_PRODUCER_ID, refusal)
    with producer_for(picky) as producer, pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        producer.send("topic", b"value").result(SECONDS)


def test_without_idempotence_no_producer_id_is_requested(picky: PickyBroker) -> None:
    with producer_for(picky, enable_idempotence=False, batch_size=0) as producer:
        for delivery in numbered(producer, 3):
            delivery.result(SECONDS)
    assert [(batch.producer_id, batch.epoch, batch.sequence) for batch in picky.got] == [(-1, -1, -1)] * 3
    assert picky.ids == 0


def test_a_moved_leader_is_followed(picky: PickyBroker) -> None:
    """The old leader refuses batches, metadata names another broker, and the batches are sent there in order."""
    other = PickyBroker()
    other.stored = picky.stored  # both share one log
    with other.fake:
        brokers = [
            {"node_id": number, "host": "127.0.0.1", "port": fake.fake.port, "rack": None}
            for number, fake in ((1, picky), (2, other))
        ]
        leader = 1

        def metadata(request: Request) -> Answer:
            moved = topic("topic", 1, partitions=[partition(0, leader_id=leader, leader_epoch=leader)])
            return picky.fake.metadata(brokers=brokers, topics=[moved])

        picky.fake.say(ApiKey.METADATA, metadata)
        other.fake.say(ApiKey.METADATA, metadata)
        with producer_for(picky, batch_size=0) as producer:
            numbered(producer, 1)[0].result(SECONDS)
            leader = 2
            picky.answer = lambda batch: int(ErrorCode.not_leader_or_follower)
            for delivery in numbered(producer, 20, 1):
                delivery.result(SECONDS)
    assert picky.stored == [b"%d" % number for number in range(21)]
    assert [batch.sequence for batch in other.got] == list(range(1, 21))
    assert {batch.epoch for batch in other.got} == {0}


def test_a_partition_without_a_leader_waits_for_one(picky: PickyBroker) -> None:
    leader = 1

    def metadata(request: Request) -> Answer:
        moved = topic("topic", 1, partitions=[partition(0, leader_id=leader, error_code=0 if leader > 0 else 5)])
        return picky.fake.metadata(topics=[moved])

    picky.fake.say(ApiKey.METADATA, metadata)
    with producer_for(picky, metadata_max_age_ms=20) as producer:
        numbered(producer, 1)[0].result(SECONDS)
        leader = -1
        queue = producer._accumulator.topics["topic"].partitions[0]
        wait_until(lambda: queue.leader == -1, "the news that the leader is gone")
        delivery = numbered(producer, 1, 1)[0]
        with pytest.raises(TimeoutError):
            delivery.result(0.1)
        leader = 1
        delivery.result(SECONDS)
    assert picky.stored == [b"0", b"1"]


def test_a_throttling_broker_gets_no_request_for_that_time(picky: PickyBroker) -> None:
    def throttling(request: Request) -> Answer:
        answer = picky._produce(request)
        assert isinstance(answer, bytes)
        # The throttle time and an empty tag section end the response.
        return answer[:-5] + struct.pack(">i", 300 if len(picky.got) == 1 else 0) + answer[-1:]

    picky.fake.say(ApiKey.PRODUCE, throttling)
    with producer_for(picky) as producer:
        numbered(producer, 1)[0].result(SECONDS)
        delivery = numbered(producer, 1, 1)[0]
        with pytest.raises(TimeoutError):
            delivery.result(0.1)
        delivery.result(SECONDS)
