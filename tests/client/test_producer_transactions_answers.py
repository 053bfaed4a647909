"""A transactional producer's reactions to responses of coordinators and brokers: retriable errors, errors that require
an abort, and errors that require a new producer (KIP-1050)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from stratalog.client import Producer, TopicPartition
from stratalog.client.errors import (
    ClientError,
    ProducerFailedError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionStateError,
    TransactionTimeoutError,
)
from stratalog.client.offsets import GroupMetadata
from stratalog.protocol._wire import parse_produce
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import decode_request
from stratalog.protocol.produce import ProducedPartition, encode_produce_response
from stratalog.records.batch import batches
from tests.clients.waiting import wait_until
from tests.net.fake_broker import SILENCE, Answer, FakeBroker, Request, versions

QUICK: dict[str, Any] = {
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 1,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 1,
    "linger_ms": 0,
}
GARBAGE = object()  # for EndTxn: a malformed response
SHORT = 0.3  # timeout of calls that can't complete
GROUP = GroupMetadata("group", 3, "member")
PLACE = TopicPartition("topic", 0)
FEATURES = {
    "finalized_features_epoch": 0,
    "finalized_features": [{"name": "transaction.version", "max_version_level": 2, "min_version_level": 2}],
}


class Sent(NamedTuple):
    producer_id: int
    epoch: int
    sequence: int
    is_transactional: bool
    version: int


class Coordinator:
    """A broker that leads and coordinates everything. It responds to each API with the codes in `errors`, one after the
    other, and then without an error. SILENCE means no response."""

    def __init__(self, *, version: int = 2) -> None:
        self.fake = FakeBroker({"topic": 1})
        self.fake.say(ApiKey.API_VERSIONS, versions() | (FEATURES if version == 2 else {}))
        self.fake.say(ApiKey.FIND_COORDINATOR, self._find)
        self.fake.say(ApiKey.INIT_PRODUCER_ID, self._init)
        self.fake.say(ApiKey.PRODUCE, self._produce)
        self.fake.say(ApiKey.ADD_PARTITIONS_TO_TXN, self._add)
        self.fake.say(ApiKey.ADD_OFFSETS_TO_TXN, lambda request: self._plain(request))
        self.fake.say(ApiKey.TXN_OFFSET_COMMIT, self._offsets)
        self.fake.say(ApiKey.END_TXN, self._end)
        self.errors: dict[ApiKey, list[object]] = {}
        self.sent: list[Sent] = []
        self.ends: list[tuple[int, int, bool]] = []  # producer id, epoch, committed
        self.claims: list[tuple[int, int]] = []
        self.epoch = -1
        self.version = version
        self._lock = threading.Lock()

    def _code(self, key: ApiKey) -> object:
        left = self.errors.get(key)
        return left.pop(0) if left else 0

    def _find(self, request: Request) -> Answer:
        body = decode_request(request.key, request.version, request.body)
        coordinators = [
            {"key": key, "node_id": 1, "host": "127.0.0.1", "port": self.fake.port, "error_code": 0}
            for key in body.coordinator_keys
        ]
        return {"coordinators": coordinators}

    def _init(self, request: Request) -> Answer:
        body = decode_request(request.key, request.version, request.body)
        self.claims.append((body.producer_id, body.producer_epoch))
        code = self._code(request.key)
        if not code:
            self.epoch += 1
        return code if code is SILENCE else {"error_code": code, "producer_id": 7, "producer_epoch": self.epoch}

    def _produce(self, request: Request) -> Answer:
        _, _, _, topics = parse_produce(request.body, 0, request.version)
        answers = []
        with self._lock:
            for topic, partitions in topics:
                responses = []
                for partition, start, end in partitions:
                    [batch] = batches(bytes(request.body[start:end]))
                    header = batch.header
                    self.sent.append(
                        Sent(
                            header.producer_id,
                            header.producer_epoch,
                            header.base_sequence,
                            bool(header.attributes & 0x10),
                            request.version,
                        )
                    )
                    code = self._code(request.key)
                    if code is SILENCE:
                        return SILENCE
                    assert isinstance(code, int)
                    responses.append(ProducedPartition(partition, code, -1 if code else 0))
                answers.append((topic, responses))
        return request.framed(encode_produce_response(request.version, answers))

    def _add(self, request: Request) -> Answer:
        results = [{"partition_index": 0, "partition_error_code": self._code(request.key)}]
        return {"results_by_topic_v3_and_below": [{"name": "topic", "results_by_partition": results}]}

    def _plain(self, request: Request) -> Answer:
        return {"error_code": self._code(request.key)}

    def _offsets(self, request: Request) -> Answer:
        code = self._code(request.key)
        if code is SILENCE:
            return code
        return {"topics": [{"name": "topic", "partitions": [{"partition_index": 0, "error_code": code}]}]}

    def _end(self, request: Request) -> Answer:
        body = decode_request(request.key, request.version, request.body)
        self.ends.append((body.producer_id, body.producer_epoch, body.committed))
        code = self._code(request.key)
        if code is SILENCE:
            return code
        if code is GARBAGE:
            return request.framed(b"")
        if not code and self.version == 2:
            self.epoch += 1
        return {"error_code": code, "producer_id": 7, "producer_epoch": self.epoch}


@pytest.fixture(params=[2, 1])
def either(request: pytest.FixtureRequest) -> Iterator[Coordinator]:
    """Run with a broker that has transaction.version 2, and with a broker that does not."""
    coordinator = Coordinator(version=request.param)
    with coordinator.fake:
        yield coordinator


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    coordinator = Coordinator()
    with coordinator.fake:
        yield coordinator


def producer_of(coordinator: Coordinator, **settings: Any) -> Producer:
    return Producer(coordinator.fake.address, transactional_id="id", **(QUICK | settings))


def one_transaction(producer: Producer) -> None:
    with producer.transaction():
        producer.send("topic", b"1")
        producer.send_offsets_to_transaction({PLACE: 1}, GROUP)


def test_the_protocol_follows_the_clusters_finalized_features(either: Coordinator) -> None:
    with producer_of(either) as producer:
        for _ in range(3):
            one_transaction(producer)
    added = {ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN} & set(either.fake.requests)
    if either.version == 2:
        assert added == set()
        assert either.sent == [Sent(7, epoch, 0, True, 12) for epoch in range(3)]
        assert either.ends == [(7, epoch, True) for epoch in range(3)]
    else:
        assert len(added) == 2
        assert either.sent == [Sent(7, 0, number, True, 11) for number in range(3)]
        assert either.ends == [(7, 0, True)] * 3


PASSES: list[tuple[ApiKey, ErrorCode]] = [
    (ApiKey.INIT_PRODUCER_ID, ErrorCode.concurrent_transactions),
    (ApiKey.INIT_PRODUCER_ID, ErrorCode.not_coordinator),
    (ApiKey.PRODUCE, ErrorCode.concurrent_transactions),
    (ApiKey.PRODUCE, ErrorCode.not_leader_or_follower),
    (ApiKey.PRODUCE, ErrorCode.coordinator_load_in_progress),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.concurrent_transactions),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.not_coordinator),
    (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.concurrent_transactions),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.coordinator_load_in_progress),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.concurrent_transactions),
    (ApiKey.END_TXN, ErrorCode.concurrent_transactions),
    (ApiKey.END_TXN, ErrorCode.coordinator_not_available),
]


def test_retriable_errors_are_retried(either: Coordinator) -> None:
    with producer_of(either) as producer:
        for api, code in PASSES:
            either.errors.setdefault(api, []).extend([int(code)] * 2)
        one_transaction(producer)
    used = {ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN} if either.version == 1 else set()
    assert {api for api, left in either.errors.items() if left} == ({api for api, _ in PASSES} - used) & {
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
    }
    assert either.ends[-1][2] is True


ABORTABLE: list[tuple[ApiKey, ErrorCode]] = [
    (ApiKey.PRODUCE, ErrorCode.transaction_abortable),
    (ApiKey.PRODUCE, ErrorCode.topic_authorization_failed),
    (ApiKey.PRODUCE, ErrorCode.out_of_order_sequence_number),
    (ApiKey.PRODUCE, ErrorCode.unknown_producer_id),
    (ApiKey.PRODUCE, ErrorCode.invalid_record),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.group_authorization_failed),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.illegal_generation),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.stale_member_epoch),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.fenced_instance_id),
    (ApiKey.END_TXN, ErrorCode.transaction_abortable),
]


@pytest.mark.parametrize(("api", "code"), ABORTABLE, ids=lambda value: value.name)
def test_a_transactions_error_is_gone_after_its_abort(either: Coordinator, api: ApiKey, code: ErrorCode) -> None:
    with producer_of(either) as producer:
        either.errors[api] = [int(code)]
        with pytest.raises(TransactionAbortableError, match=code.name.upper()):
            one_transaction(producer)
        one_transaction(producer)
    assert either.ends[-1][2] is True
    first, last = either.sent[0], either.sent[-1]
    assert last.sequence == 0 or (last.epoch == first.epoch and last.sequence == first.sequence + 1)


@pytest.mark.parametrize("code", [ErrorCode.topic_authorization_failed, ErrorCode.transaction_abortable])
def test_a_partition_that_can_not_be_added_dooms_the_transaction(code: ErrorCode) -> None:
    older = Coordinator(version=1)
    with older.fake, producer_of(older) as producer:
        older.errors[ApiKey.ADD_PARTITIONS_TO_TXN] = [int(code)]
        producer.begin()
        delivery = producer.send("topic", b"1")
        assert isinstance(delivery.exception(30), TransactionAbortedError)
        with pytest.raises(TransactionAbortableError, match=code.name.upper()):
            producer.commit()
        producer.abort()
        one_transaction(producer)


def test_abort_claims_an_id_again_that_the_coordinator_has_forgotten(either: Coordinator) -> None:
    api = ApiKey.PRODUCE if either.version == 2 else ApiKey.ADD_PARTITIONS_TO_TXN
    with producer_of(either) as producer:
        producer.init_transactions()
        either.errors[api] = [int(ErrorCode.invalid_producer_id_mapping)]
        with pytest.raises(TransactionAbortableError, match="INVALID_PRODUCER_ID_MAPPING"):
            one_transaction(producer)
        assert either.ends == []  # no coordinator knows a transaction to end
        assert either.claims == [(-1, -1), (-1, -1)]
        one_transaction(producer)


Errors = dict[ApiKey, list[ErrorCode]]
FATAL: list[tuple[Errors, type[ClientError]]] = [
    ({ApiKey.INIT_PRODUCER_ID: [ErrorCode.transactional_id_authorization_failed]}, ProducerFailedError),
    (
        {ApiKey.PRODUCE: [ErrorCode.invalid_producer_epoch], ApiKey.END_TXN: [ErrorCode.producer_fenced]},
        ProducerFencedError,
    ),
    ({ApiKey.PRODUCE: [ErrorCode.producer_fenced]}, ProducerFencedError),
    ({ApiKey.PRODUCE: [ErrorCode.invalid_txn_state]}, ProducerFailedError),
    ({ApiKey.PRODUCE: [ErrorCode.cluster_authorization_failed]}, ProducerFailedError),
    (
        {ApiKey.TXN_OFFSET_COMMIT: [ErrorCode.invalid_producer_epoch], ApiKey.END_TXN: [ErrorCode.producer_fenced]},
        ProducerFencedError,
    ),
    ({ApiKey.TXN_OFFSET_COMMIT: [ErrorCode.transactional_id_authorization_failed]}, ProducerFailedError),
    ({ApiKey.END_TXN: [ErrorCode.producer_fenced]}, ProducerFencedError),
    ({ApiKey.END_TXN: [ErrorCode.invalid_producer_epoch]}, ProducerFencedError),
    ({ApiKey.END_TXN: [ErrorCode.invalid_txn_state] * 2}, ProducerFailedError),
]


@pytest.mark.parametrize(("errors", "kind"), FATAL, ids=str)
def test_fatal_errors_of_the_producer_stay(coordinator: Coordinator, errors: Errors, kind: type[ClientError]) -> None:
    with producer_of(coordinator) as producer:
        coordinator.errors = {api: [int(code) for code in codes] for api, codes in errors.items()}
        with pytest.raises(kind, match=list(errors.values())[-1][-1].name.upper()):
            one_transaction(producer)
        calls: list[Callable[[], object]] = [
            producer.init_transactions,
            producer.begin,
            producer.commit,
            producer.abort,
            producer.flush,
            producer.prepare_transaction,
            lambda: producer.send("topic", b"2"),
            lambda: producer.send_offsets_to_transaction({PLACE: 1}, GROUP),
        ]
        ends_before = len(coordinator.ends)
        for call in calls:
            with pytest.raises(kind, match=r"(?i)close (it|this producer)"):
                call()
        assert len(coordinator.ends) == ends_before


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (ApiKey.PRODUCE, ErrorCode.invalid_producer_epoch),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.invalid_producer_epoch),
        (ApiKey.END_TXN, ErrorCode.invalid_txn_state),
    ],
    ids=lambda value: value.name,
)
def test_an_epoch_that_ended_by_the_transaction_timeout_is_not_fatal(
    coordinator: Coordinator, api: ApiKey, code: ErrorCode
) -> None:
    """The coordinator accepts the abort and returns the next epoch."""
    with producer_of(coordinator) as producer:
        coordinator.errors[api] = [int(code)]
        with pytest.raises(TransactionAbortableError, match=r"open for longer than transaction\.timeout\.ms = 60000"):
            one_transaction(producer)
        assert [committed for *_, committed in coordinator.ends][-1] is False
        one_transaction(producer)
    assert (coordinator.sent[-1].epoch, coordinator.sent[-1].sequence) == (1, 0)


def test_a_commit_with_a_lost_response_is_confirmed_by_another_request(either: Coordinator) -> None:
    with producer_of(either) as producer:
        producer.begin()
        producer.send("topic", b"1").result(30)
        either.errors[ApiKey.END_TXN] = [SILENCE]
        with pytest.raises(TransactionTimeoutError, match=r"commit\(\): .* has not confirmed it"):
            producer.commit(SHORT)
        for call in (producer.abort, producer.begin, lambda: producer.send("topic", b"2")):
            with pytest.raises(TransactionStateError, match=r"call commit\(\) again"):
                call()
        either.fake.cut()
        producer.commit()
        assert set(either.ends) == {(7, 0, True)}
        one_transaction(producer)


def test_a_commit_with_a_malformed_response_is_not_taken_for_aborted(either: Coordinator) -> None:
    """The transaction may be committed: aborting and repeating it would write its records twice."""
    with producer_of(either) as producer:
        producer.begin()
        producer.send("topic", b"1").result(30)
        either.errors[ApiKey.END_TXN] = [GARBAGE] * either.version  # with version 2 the request is repeated at once
        with pytest.raises(TransactionTimeoutError, match="call it again"):
            producer.commit()
        with pytest.raises(TransactionStateError, match=r"call commit\(\) again"):
            producer.abort()
        producer.commit()
        assert set(either.ends) == {(7, 0, True)}
        one_transaction(producer)


@pytest.mark.parametrize("settings", [{}, {"max_block_ms": 2**63 - 1}], ids=["timeout", "max_block_ms"])
def test_a_commit_accepts_an_infinite_timeout(coordinator: Coordinator, settings: dict[str, Any]) -> None:
    with producer_of(coordinator, **settings) as producer:
        producer.begin()
        producer.send("topic", b"1")
        producer.commit(None if settings else float("inf"))
    assert coordinator.ends == [(7, 0, True)]


def test_an_abort_of_a_committed_transaction_is_an_error(coordinator: Coordinator) -> None:
    with producer_of(coordinator) as producer:
        producer.begin()
        producer.send("topic", b"1").result(30)
        # As after a commit that the coordinator has carried out although it responded with an error.
        coordinator.errors[ApiKey.END_TXN] = [int(ErrorCode.unknown_server_error), int(ErrorCode.invalid_txn_state)]
        with pytest.raises(TransactionAbortableError):
            producer.commit()
        with pytest.raises(ProducerFailedError):
            producer.abort()


def test_an_abort_with_a_lost_response_is_continued_by_the_next_call(either: Coordinator) -> None:
    with producer_of(either) as producer:
        producer.begin()
        producer.send("topic", b"1").result(30)
        either.errors[ApiKey.END_TXN] = [SILENCE]
        with pytest.raises(TransactionTimeoutError, match=r"abort\(\): .* has not confirmed it"):
            producer.abort(SHORT)
        with pytest.raises(TransactionStateError, match=r"call abort\(\) again"):
            producer.begin()
        either.fake.cut()
        producer.abort()
        one_transaction(producer)


def test_a_commit_that_waits_for_acknowledgements_can_still_be_aborted(either: Coordinator) -> None:
    with producer_of(either) as producer:
        producer.init_transactions()
        producer.begin()
        either.errors[ApiKey.PRODUCE] = [SILENCE]
        delivery = producer.send("topic", b"1")
        with pytest.raises(TransactionTimeoutError, match=r"not all records .* were acknowledged"):
            producer.commit(SHORT)
        assert either.ends == []
        assert not delivery.done()
        either.fake.cut()
        producer.abort()
        assert isinstance(delivery.exception(0), TransactionAbortedError)
        one_transaction(producer)
    assert either.sent[-1].epoch > either.sent[0].epoch  # whatever happened to the batch in flight


def test_a_commit_interrupted_at_its_start_can_be_aborted(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producer_of(coordinator) as producer:
        producer.init_transactions()
        producer.begin()
        coordinator.errors[ApiKey.PRODUCE] = [SILENCE]
        producer.send("topic", b"1")
        wait_until(lambda: not coordinator.errors[ApiKey.PRODUCE], "the broker's silence")
        hand_in, interrupts = producer._io.call_soon, [KeyboardInterrupt]

        def interrupted(*call: Any) -> None:
            hand_in(*call)
            if interrupts:
                raise interrupts.pop()

        monkeypatch.setattr(producer._io, "call_soon", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.commit()
        coordinator.fake.cut()
        producer.abort()
        one_transaction(producer)


def test_offsets_that_take_too_long_doom_the_transaction(either: Coordinator) -> None:
    """The transaction must not be committed without its offsets."""
    with producer_of(either) as producer:
        either.errors[ApiKey.TXN_OFFSET_COMMIT] = [SILENCE]
        with pytest.raises(TransactionAbortableError, match="gave up after"), producer.transaction():
            producer.send("topic", b"1").result(30)
            try:
                producer.send_offsets_to_transaction({PLACE: 1}, GROUP, SHORT)
            finally:
                either.fake.cut()
        one_transaction(producer)
    assert [committed for *_, committed in either.ends] == [False, True]


def test_a_transaction_whose_partition_may_not_be_added_can_be_aborted() -> None:
    """The coordinator knows no transaction, and its response says so."""
    older = Coordinator(version=1)
    with older.fake, producer_of(older) as producer:
        producer.init_transactions()
        older.errors[ApiKey.ADD_PARTITIONS_TO_TXN] = [int(ErrorCode.coordinator_load_in_progress)] * 100_000
        older.errors[ApiKey.END_TXN] = [int(ErrorCode.invalid_txn_state)]
        producer.begin()
        producer.send("topic", b"1")
        with pytest.raises(TransactionTimeoutError):
            producer.commit(SHORT)
        producer.abort()
        assert older.claims == [(-1, -1), (7, 0)]  # a late batch has an old epoch
        older.errors.clear()
        one_transaction(producer)


def test_nothing_is_sent_before_the_transactional_id_is_claimed(coordinator: Coordinator) -> None:
    coordinator.errors[ApiKey.INIT_PRODUCER_ID] = [SILENCE]
    with producer_of(coordinator) as producer:
        with pytest.raises(TransactionTimeoutError, match=r"init_transactions\(\)"):
            producer.init_transactions(SHORT)
        with pytest.raises(TransactionStateError):
            producer.send("topic", b"1")
        coordinator.fake.cut()
        one_transaction(producer)
