"""Produce of transactional batches: which are let in, and Kafka's error for each of the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stratalog.broker.transactions.state import ProducerIdAndEpoch
from stratalog.broker.transactions.two_phase import PreparedProducer, TwoPhase
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.builder import build_batch
from stratalog.storage.log import Log
from stratalog.storage.names import TopicPartition
from tests.broker.apis.test_fetch import of, request
from tests.broker.data_lab import DataLab

VERSIONS = range(3, 14)
FIRST_THAT_ADDS = 12
PLACE = TopicPartition("orders", 0)
TIMEOUT_MS = 60_000


@pytest.fixture
def lab(data_lab: DataLab) -> DataLab:
    data_lab.create("orders", 2)
    return data_lab


def begin(lab: DataLab) -> ProducerIdAndEpoch:
    answer = asyncio.run(lab.transactions.coordinator.initialize("t", TIMEOUT_MS, None))
    assert answer.error is ErrorCode.none
    return answer.producer


def add(lab: DataLab, who: ProducerIdAndEpoch) -> None:
    assert lab.transactions.coordinator.add("t", who, [PLACE], 0) is ErrorCode.none


def end(lab: DataLab, who: ProducerIdAndEpoch, *, commit: bool, version: int) -> ProducerIdAndEpoch:
    answer = asyncio.run(lab.transactions.coordinator.end("t", who, commit=commit, version=version))
    assert answer.error is ErrorCode.none
    return answer.producer if version >= 2 else who


def produce(
    lab: DataLab,
    who: ProducerIdAndEpoch,
    sequence: int = 0,
    *,
    version: int,
    transactional_id: str | None = "t",
    count: int = 1,
) -> ErrorCode:
    fields: dict[str, Any] = {"producer_id": who.producer_id, "producer_epoch": who.epoch, "is_transactional": True}
    records = bytes(build_batch([(b"k", b"v")] * count, base_sequence=sequence, **fields))
    topic = lab.topics.get("orders")
    assert topic is not None
    part = {"name": "orders", "topic_id": topic.id, "partition_data": [{"index": 0, "records": records}]}
    request = {"acks": -1, "timeout": 1000, "topic_data": [part], "transactional_id": transactional_id}
    (answer,) = lab.ask(ApiKey.PRODUCE, request, version).responses[0].partition_responses
    code: ErrorCode = answer.error_code
    return code


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_of_an_open_transaction_are_appended(lab: DataLab, version: int) -> None:
    who = begin(lab)
    if version < FIRST_THAT_ADDS:
        add(lab, who)
    for sequence in range(3):
        assert produce(lab, who, sequence, version=version) is ErrorCode.none
    partition = lab.partition("orders")
    assert (partition.high_watermark, partition.last_stable_offset) == (3, 0)
    known = lab.transactions.coordinator.get("t")
    assert known is not None
    assert known.partitions == {PLACE}


@pytest.mark.parametrize("version", range(3, FIRST_THAT_ADDS))
def test_partition_that_was_not_added_takes_nothing(lab: DataLab, version: int) -> None:
    who = begin(lab)
    expected = ErrorCode.transaction_abortable if version == 11 else ErrorCode.invalid_txn_state
    assert produce(lab, who, version=version) is expected
    assert lab.partition("orders").high_watermark == 0


@pytest.mark.parametrize("version", range(3, FIRST_THAT_ADDS))
def test_batch_that_comes_after_the_end_opens_no_transaction(lab: DataLab, version: int) -> None:
    who = begin(lab)
    add(lab, who)
    assert produce(lab, who, 0, version=version) is ErrorCode.none
    end(lab, who, commit=True, version=0)
    assert produce(lab, who, 1, version=version) is not ErrorCode.none
    assert lab.partition("orders").last_stable_offset == lab.partition("orders").high_watermark


@pytest.mark.parametrize("version", [12, 13])
def test_batch_of_the_last_epoch_is_refused_after_the_end(lab: DataLab, version: int) -> None:
    who = begin(lab)
    assert produce(lab, who, version=version) is ErrorCode.none
    later = end(lab, who, commit=True, version=2)
    assert produce(lab, who, 1, version=version) is ErrorCode.invalid_producer_epoch
    assert produce(lab, later, 0, version=version) is ErrorCode.none


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_comes_into_a_transaction_that_was_prepared(lab: DataLab, version: int) -> None:
    who = begin(lab)
    add(lab, who)
    assert produce(lab, who, version=version) is ErrorCode.none
    two_phase = TwoPhase(lab.transactions.coordinator, lab.transactions.ids, lab.clock)
    assert two_phase.prepare(PreparedProducer("t", who), TIMEOUT_MS) is None
    assert produce(lab, who, 1, version=version) is ErrorCode.invalid_txn_state
    assert lab.partition("orders").high_watermark == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_others_are_kept_out_with_kafkas_errors(lab: DataLab, version: int) -> None:
    old = begin(lab)
    new = begin(lab)
    unnamed = ErrorCode.transactional_id_authorization_failed
    assert produce(lab, new, version=version, transactional_id=None) is unnamed
    assert produce(lab, new, version=version, transactional_id="x") is ErrorCode.invalid_producer_id_mapping
    other = ProducerIdAndEpoch(new.producer_id + 1, 0)
    assert produce(lab, other, version=version) is ErrorCode.invalid_producer_id_mapping
    assert produce(lab, old, version=version) is ErrorCode.invalid_producer_epoch
    assert lab.partition("orders").high_watermark == 0


def test_transaction_that_is_being_ended_is_waited_for(lab: DataLab, monkeypatch: pytest.MonkeyPatch) -> None:
    who = begin(lab)
    add(lab, who)
    markers = lab.transactions.coordinator.markers
    monkeypatch.setattr(markers, "write", lambda *_: ErrorCode.kafka_storage_error)
    end(lab, who, commit=True, version=0)
    assert produce(lab, who, version=11) is ErrorCode.not_enough_replicas
    assert produce(lab, who, version=12) is ErrorCode.concurrent_transactions


def test_unknown_producer_of_a_newer_client_begins_with_its_first_batch(lab: DataLab) -> None:
    who = begin(lab)
    assert produce(lab, who, 5, version=12) is ErrorCode.out_of_order_sequence_number
    assert produce(lab, who, 0, version=12) is ErrorCode.none


def test_sequence_wraps_within_a_transaction(lab: DataLab) -> None:
    who = begin(lab)
    add(lab, who)
    last = 2**31 - 1
    assert produce(lab, who, last - 1, version=9, count=2) is ErrorCode.none
    assert produce(lab, who, 0, version=9) is ErrorCode.none
    assert produce(lab, who, 0, version=9) is ErrorCode.none  # the same again
    assert produce(lab, who, last, version=9) is ErrorCode.out_of_order_sequence_number
    assert lab.partition("orders").high_watermark == 3


def test_unverified_batches_are_taken_where_that_is_set(tmp_path: Any) -> None:
    with DataLab(tmp_path / "data", transaction_partition_verification_enable=False) as lab:
        lab.create("orders", 2)
        assert produce(lab, begin(lab), version=9) is ErrorCode.none


@pytest.mark.parametrize("commit", [True, False])
def test_reader_of_committed_records_waits_for_the_end_however_much_comes_before(lab: DataLab, commit: bool) -> None:
    who = begin(lab)
    coordinator = lab.transactions.coordinator
    wanted = request(of(lab, "orders", (0, 0)), max_wait=60_000, min_bytes=50, isolation_level=1)

    async def run() -> Any:
        polling = asyncio.create_task(lab.asking(ApiKey.FETCH, wanted))
        await asyncio.sleep(0)
        assert coordinator.add("t", who, [PLACE], 2) is ErrorCode.none
        for sequence in range(3):
            fields: dict[str, Any] = {"producer_id": who.producer_id, "producer_epoch": who.epoch}
            lab.append("orders", b"v" * 100, base_sequence=sequence, is_transactional=True, **fields)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not polling.done()
        await coordinator.end("t", who, commit=commit, version=2)
        return await asyncio.wait_for(polling, 10)

    (answer,) = asyncio.run(run()).responses[0].partitions
    assert (answer.last_stable_offset, answer.high_watermark) == (4, 4)
    assert [one.producer_id for one in answer.aborted_transactions or ()] == ([] if commit else [who.producer_id])


def test_a_transaction_that_ends_while_its_batch_is_checked_takes_it_no_more(
    lab: DataLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the batch would lie behind the marker, open for ever."""
    lab.topics.alter_settings("orders", {"compression.type": "gzip"})
    who = begin(lab)
    add(lab, who)
    prepare = Log.prepare

    def ending(log: Log, *arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()  # the marker is prepared, too
        end(lab, who, commit=False, version=0)
        return prepare(log, *arguments, **named)

    monkeypatch.setattr(Log, "prepare", ending)
    assert produce(lab, who, version=5) is ErrorCode.invalid_txn_state
    partition = lab.partition("orders")
    assert partition.last_stable_offset == partition.high_watermark == 1  # the marker
