"""Transactions of the producer: commits are atomic, aborted records stay invisible, and refused calls have advice."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pyarrow as pa
import pytest

from stratalog.client import Admin, Consumer, Producer, TopicPartition, transaction_requests
from stratalog.client.errors import (
    ClientClosedError,
    ClientError,
    CommitFailedError,
    ProducerFailedError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionStateError,
)
from stratalog.client.offsets import GroupMetadata
from stratalog.errors import ConfigError
from tests.client.conftest import NewTopic
from tests.client.read_committed import expect_committed, read_values
from tests.clients.waiting import wait_until

pytestmark = pytest.mark.any_broker


@pytest.fixture(params=["transaction.version 2", "the older protocol"])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with both protocols of transactions. A client that does not find the feature uses the older one."""
    if request.param == "the older protocol":
        monkeypatch.setattr(transaction_requests, "FEATURE", "a feature that no broker has")
    return str(request.param)


@pytest.fixture
def producers(bootstrap: str, name: str) -> Iterator[Callable[..., Producer]]:
    """Return a function that creates producers with the same transactional id."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Producer(bootstrap, transactional_id=name, **settings))


def numbers(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


@pytest.mark.usefixtures("protocol")
def test_committed_records_of_all_partitions_are_visible_and_aborted_ones_are_not(
    producers: Callable[..., Producer], bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    producer = producers()
    for round_ in range(4):
        producer.begin()
        for value in range(30):
            producer.send(topic, b"%d-%d" % (round_, value), partition=value % 3)
        if round_ % 2:
            producer.flush()  # so that the record is in the log
            producer.abort()
        else:
            producer.commit()
    expected = [b"%d-%d" % (round_, value) for round_ in (0, 2) for value in range(30)]
    expect_committed(bootstrap, topic, expected, partitions=3)
    assert len(read_values(bootstrap, topic, 3, "read_uncommitted")) == 120


@pytest.mark.usefixtures("protocol")
def test_sequence_numbers_after_an_abort_with_records_in_flight_are_accepted(
    producers: Callable[..., Producer], bootstrap: str, topic: str
) -> None:
    """Neither records that were never sent nor records in flight leave a gap of sequence numbers."""
    producer = producers(linger_ms=0, batch_size=200)
    committed = []
    for round_ in range(10):
        producer.begin()
        values = [b"%d-%d" % (round_, value) for value in range(20)]
        deliveries = [producer.send(topic, value) for value in values]
        if round_ % 3 == 1:
            deliveries[0].result(60)
        if round_ % 3:
            producer.abort()
        else:
            producer.commit()
            assert [delivery.exception(0) for delivery in deliveries] == [None] * 20
            committed += values
    expect_committed(bootstrap, topic, committed)


def test_a_table_is_part_of_the_transaction(producers: Callable[..., Producer], bootstrap: str, topic: str) -> None:
    producer = producers()
    for value, ends in ((b"aborted", producer.abort), (b"committed", producer.commit)):
        producer.begin()
        delivery = producer.send_arrow(topic, pa.table({"value": [value] * 1000}))
        producer.flush()
        assert delivery.acknowledged() == 1000
        ends()
    expect_committed(bootstrap, topic, [b"committed"] * 1000)


def test_every_delivery_of_an_aborted_transaction_fails_with_that_reason(
    producers: Callable[..., Producer], new_topic: NewTopic
) -> None:
    topic, other = new_topic(), new_topic()
    producer = producers(linger_ms=60_000, delivery_timeout_ms=120_000)
    called: list[BaseException | None] = []
    producer.begin()
    deliveries = [
        producer.send(topic, b"never sent", on_delivery=lambda delivery: called.append(delivery.exception(0)))
    ]
    table = producer.send_arrow(other, pa.table({"value": [b"perhaps sent"]}))
    producer.abort()
    for error in (*(delivery.exception(0) for delivery in deliveries), *called):
        assert isinstance(error, TransactionAbortedError)
        assert "was aborted" in str(error)
    assert table.exception(0) is None or isinstance(table.exception(0), TransactionAbortedError)
    assert len(called) == 1


def test_a_with_statement_commits_or_aborts(producers: Callable[..., Producer], bootstrap: str, topic: str) -> None:
    producer = producers()
    with producer.transaction():
        producer.send(topic, b"1")
    with pytest.raises(ZeroDivisionError), producer.transaction():
        producer.send(topic, b"2")
        producer.flush()
        1 / 0  # noqa: B018
    with producer.transaction():
        producer.send(topic, b"3")
    expect_committed(bootstrap, topic, numbers(1, 3))


def test_a_with_statement_without_records_sends_no_request(producers: Callable[..., Producer]) -> None:
    producer = producers()
    for _ in range(3):
        with producer.transaction():
            pass
    producer.begin()
    producer.abort()


def test_a_refused_record_dooms_the_transaction_and_not_the_producer(
    producers: Callable[..., Producer], bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(1, {"max.message.bytes": "2000"})
    producer = producers()
    again = r"Call abort\(\), then repeat it"
    with pytest.raises(TransactionAbortableError, match=again) as doomed, producer.transaction():
        producer.send(topic, b"1").result(60)
        large = producer.send(topic, b"x" * 5000)
    assert isinstance(doomed.value.__cause__, RecordTooLargeError)
    assert isinstance(large.exception(0), RecordTooLargeError)
    with producer.transaction():
        producer.send(topic, b"2")
    expect_committed(bootstrap, topic, numbers(2))


def test_a_doomed_transaction_accepts_only_abort(producers: Callable[..., Producer], new_topic: NewTopic) -> None:
    topic = new_topic(1, {"max.message.bytes": "2000"})
    producer = producers()
    producer.begin()
    producer.send(topic, b"x" * 5000).exception(60)
    calls: list[Callable[[], object]] = [
        producer.begin,
        producer.commit,
        producer.flush,
        producer.prepare_transaction,
        lambda: producer.send(topic, b"1"),
        lambda: producer.send_arrow(topic, pa.table({"value": [b"1"]})),
        lambda: producer.send_offsets_to_transaction({}, GroupMetadata("group", -1, "")),
    ]
    for call in calls:
        with pytest.raises(TransactionAbortableError, match="MESSAGE_TOO_LARGE"):
            call()
    producer.abort()
    producer.begin()
    producer.abort()


# Two producers with one transactional id


def _send_and_flush(producer: Producer, topic: str) -> None:
    producer.send(topic, b"late")
    producer.flush()


Call = Callable[[Producer, str], object]
FIRST_CALLS: dict[str, Call] = {
    "send": lambda producer, topic: producer.send(topic, b"late").result(60),
    "send_arrow": lambda producer, topic: producer.send_arrow(topic, pa.table({"value": [b"late"]})).result(60),
    "flush": lambda producer, topic: _send_and_flush(producer, topic),
    "commit": lambda producer, topic: producer.commit(),
    "abort": lambda producer, topic: producer.abort(),
    "send_offsets": lambda producer, topic: producer.send_offsets_to_transaction(
        {TopicPartition(topic, 0): 1}, GroupMetadata("fenced", -1, "")
    ),
}


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize("first", FIRST_CALLS)
def test_the_older_of_two_producers_is_fenced_in_every_call(
    producers: Callable[..., Producer], bootstrap: str, topic: str, first: str
) -> None:
    older = producers()
    older.begin()
    older.send(topic, b"older").result(60)
    newer = producers()
    newer.init_transactions()
    with pytest.raises(ProducerFencedError, match="a newer producer has claimed the transactional id"):
        FIRST_CALLS[first](older, topic)
    for call in FIRST_CALLS.values():
        with pytest.raises(ProducerFencedError):
            call(older, topic)
    for own in (older.begin, older.flush):
        with pytest.raises(ProducerFencedError):
            own()
    with newer.transaction():
        newer.send(topic, b"newer")
    expect_committed(bootstrap, topic, [b"newer"])


def test_an_idle_older_producer_is_fenced_in_its_next_transaction(
    producers: Callable[..., Producer], topic: str
) -> None:
    older = producers()
    with older.transaction():
        older.send(topic, b"1")
    producers().init_transactions()
    with pytest.raises(ProducerFencedError), older.transaction():
        older.send(topic, b"2")


# Calls that are not valid


def test_calls_out_of_order_are_refused_with_the_valid_call(
    producers: Callable[..., Producer], bootstrap: str, topic: str
) -> None:
    producer = producers()
    offsets = {TopicPartition(topic, 0): 1}
    group = GroupMetadata("group", -1, "")
    calls: list[Callable[[], object]] = [
        producer.commit,
        producer.abort,
        producer.prepare_transaction,
        lambda: producer.send(topic, b"1"),
        lambda: producer.send_arrow(topic, pa.table({"value": [b"1"]})),
        lambda: producer.send_offsets_to_transaction(offsets, group),
    ]
    for initialize in (False, True):
        if initialize:
            producer.init_transactions()
        for call in calls:
            with pytest.raises(TransactionStateError, match=r"no transaction is open; call begin\(\)"):
                call()
    producer.begin()
    with pytest.raises(TransactionStateError, match=r"call commit\(\) or abort\(\) before the next begin\(\)"):
        producer.begin()
    producer.init_transactions()
    with pytest.raises(TransactionStateError, match="nothing was sent"):
        producer.prepare_transaction()
    producer.send(topic, b"1")
    producer.commit()
    expect_committed(bootstrap, topic, [b"1"])
    assert producer.partitions_for(topic)


@pytest.mark.usefixtures("protocol")
def test_an_empty_set_of_offsets_commits_nothing(
    producers: Callable[..., Producer], bootstrap: str, topic: str
) -> None:
    producer = producers()
    with producer.transaction():
        producer.send_offsets_to_transaction({}, GroupMetadata("group", -1, ""))
    with producer.transaction():
        producer.send_offsets_to_transaction({}, GroupMetadata("group", -1, ""))
        producer.send(topic, b"1")
    expect_committed(bootstrap, topic, [b"1"])


def test_a_timeout_longer_than_the_broker_allows_is_named(producers: Callable[..., Producer]) -> None:
    producer = producers(transaction_timeout_ms=2**31 - 1)
    with pytest.raises(ProducerFailedError, match=r"timeout\.ms is 2147483647; .*transaction\.max\.timeout"):
        producer.begin()


def test_a_transactional_id_that_is_not_valid_is_refused(bootstrap: str) -> None:
    with pytest.raises(ConfigError, match=r"transactional\.id is '.ud800', which can't be encoded as UTF-8"):
        Producer(bootstrap, transactional_id="\ud800")


def test_offsets_and_groups_that_are_not_valid_are_refused(producers: Callable[..., Producer], topic: str) -> None:
    producer = producers()
    producer.begin()
    with pytest.raises(ValueError, match=r"offset of .*-0 is -1"):
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): -1}, GroupMetadata("group", -1, ""))
    with pytest.raises(TypeError, match="group is 'group'"):
        producer.send_offsets_to_transaction({}, "group")  # type: ignore[arg-type]
    producer.abort()


def test_a_producer_without_a_transactional_id_refuses_transactional_calls(bootstrap: str) -> None:
    with Producer(bootstrap) as producer:
        for call in (producer.begin, producer.commit, producer.abort, producer.init_transactions):
            with pytest.raises(ClientError, match="set transactional_id"):
                call()


def test_a_transaction_timeout_above_the_brokers_limit_fails_at_the_start(producers: Callable[..., Producer]) -> None:
    producer = producers(transaction_timeout_ms=2_000_000_000)
    with pytest.raises(ClientError, match="INVALID_TRANSACTION_TIMEOUT"):
        producer.begin()


# Offsets


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_offsets_are_committed_by_the_commit_and_not_by_an_abort(
    producers: Callable[..., Producer], bootstrap: str, new_topic: NewTopic, name: str, group_protocol: str
) -> None:
    source, target = new_topic(), new_topic()
    producer = producers()
    with producer.transaction():
        for value in range(10):
            producer.send(source, b"%d" % value)
    with Consumer(
        bootstrap,
        group_id=name,
        group_protocol=group_protocol,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        consumer.subscribe([source])
        partition = TopicPartition(source, 0)
        seen: list[bytes | None] = []
        while len(seen) < 10:
            seen += [record.value for records in consumer.poll(60).values() for record in records]
        for end, ends, committed in ((4, producer.abort, None), (7, producer.commit, 7), (9, producer.abort, 7)):
            producer.begin()
            producer.send(target, b"%d" % end)
            producer.send_offsets_to_transaction({partition: end}, consumer.group_metadata())
            ends()
            stored = consumer.committed([partition])[partition]
            assert (None if stored is None else stored.offset) == committed
    expect_committed(bootstrap, target, [b"7"])


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_offsets_of_a_removed_member_doom_the_transaction(
    producers: Callable[..., Producer], bootstrap: str, new_topic: NewTopic, name: str, group_protocol: str
) -> None:
    source, target = new_topic(), new_topic()
    with Consumer(bootstrap, group_id=name, group_protocol=group_protocol, enable_auto_commit=False) as consumer:
        consumer.subscribe([source])
        wait_until(lambda: bool(consumer.poll(0.1) or consumer.assignment()), "an assignment")
        before = consumer.group_metadata()
    producer = producers()
    with pytest.raises(TransactionAbortableError, match="has rebalanced since") as doomed, producer.transaction():
        producer.send(target, b"1")
        producer.send_offsets_to_transaction({TopicPartition(source, 0): 1}, before)
    assert isinstance(doomed.value.__cause__, CommitFailedError)
    with producer.transaction():
        producer.send(target, b"2")
    expect_committed(bootstrap, target, [b"2"])


# Closing and preparing


def test_close_aborts_an_open_transaction(bootstrap: str, topic: str, name: str) -> None:
    with Producer(bootstrap, transactional_id=name, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        producer.begin()
        producer.send(topic, b"open")
        producer.flush()
        never = producer.send(topic, b"never sent")
    assert isinstance(never.exception(60), TransactionAbortedError)
    for call in (producer.begin, producer.commit, lambda: producer.send(topic, b"1")):
        with pytest.raises(ClientClosedError):
            call()
    with Admin(bootstrap) as admin:
        wait_until(lambda: admin.describe_transactions([name])[name].state == "CompleteAbort", "the abort")


def test_a_prepared_transaction_outlives_its_producer(bootstrap: str, topic: str, name: str) -> None:
    with Producer(bootstrap, transactional_id=name) as producer:
        producer.begin()
        delivery = producer.send(topic, b"1")
        prepared = producer.prepare_transaction()
        assert delivery.result(0).topic == topic
        for call in (producer.begin, producer.prepare_transaction, lambda: producer.send(topic, b"2")):
            with pytest.raises(TransactionStateError, match="is prepared"):
                call()
    assert pickle.loads(pickle.dumps(prepared)) == prepared
    with Admin(bootstrap) as admin:
        [described] = admin.describe_transactions([name]).values()
        assert described.state == "Ongoing"
        assert (described.producer_id, described.producer_epoch) == (prepared.producer_id, prepared.producer_epoch)
    assert read_values(bootstrap, topic) == []


def test_a_producer_may_end_its_prepared_transaction(
    producers: Callable[..., Producer], bootstrap: str, topic: str
) -> None:
    producer = producers()
    for value, ends in ((b"1", producer.commit), (b"2", producer.abort), (b"3", producer.commit)):
        producer.begin()
        producer.send(topic, value)
        producer.prepare_transaction()
        ends()
    expect_committed(bootstrap, topic, numbers(1, 3))
