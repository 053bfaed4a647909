"""Produce, in every version: where batches are appended, acknowledgements, and errors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from stratalog.broker.partition import Partition
from stratalog.net.connection import RefusedConnectionError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records import Record
from stratalog.records.builder import build_batch
from stratalog.records.reader import read_records
from stratalog.storage.appending import Appended
from stratalog.storage.log import Log
from tests.broker.data_lab import START_MS, DataLab, joined
from tests.protocol.kio_messages import framed, request_frame

VERSIONS = range(3, 14)
FIRST_BY_ID = 13


def batch(*values: bytes, **fields: Any) -> bytes:
    return bytes(build_batch([(b"key", value) for value in values or (b"value",)], **fields))


def data(lab: DataLab, name: str, *partitions: tuple[int, bytes | None]) -> dict[str, Any]:
    found = lab.topics.get(name)
    given = [{"index": index, "records": records} for index, records in partitions]
    return {"name": name, "topic_id": None if found is None else found.id, "partition_data": given}


def produce(lab: DataLab, *topics: dict[str, Any], version: int = 13, **given: Any) -> list[list[Any]]:
    request = {"acks": -1, "timeout": 1000, "topic_data": topics} | given
    answer = lab.ask(ApiKey.PRODUCE, request, version)
    return [list(each.partition_responses) for each in answer.responses]


def values_in(lab: DataLab, name: str, index: int = 0) -> list[bytes | None]:
    return [each.value for each in read_records(lab.partition(name, index).log.read(0, 10**6).slice.read())]


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_are_appended_and_their_base_offsets_returned(data_lab: DataLab, version: int) -> None:
    data_lab.create("orders", 2)
    data_lab.create("events")
    wanted = [
        data(data_lab, "orders", (0, batch(b"a", b"b")), (1, batch(b"c"))),
        data(data_lab, "events", (0, batch())),
    ]
    for first in (0, 2):
        answers = produce(data_lab, *wanted, version=version)
        assert [[(each.index, each.error_code) for each in topic] for topic in answers] == [[(0, 0), (1, 0)], [(0, 0)]]
        assert answers[0][0].base_offset == first
    assert values_in(data_lab, "orders") == [b"a", b"b"] * 2
    assert values_in(data_lab, "orders", 1) == [b"c"] * 2
    assert data_lab.counters.records_in == 8


def test_topics_in_the_response_have_the_names_of_the_request(data_lab: DataLab) -> None:
    topic = data_lab.create("orders")
    request = {"acks": 1, "topic_data": [data(data_lab, "orders", (0, batch()))]}
    assert data_lab.ask(ApiKey.PRODUCE, request, 12).responses[0].name == "orders"
    assert data_lab.ask(ApiKey.PRODUCE, request, 13).responses[0].topic_id == topic.id


def test_acks_0_gets_no_response_and_appends_the_records(data_lab: DataLab) -> None:
    data_lab.create("orders")
    request = {"acks": 0, "topic_data": [data(data_lab, "orders", (0, batch(b"quiet")))]}
    assert data_lab.serve(request_frame(ApiKey.PRODUCE, 9, request)) is None
    assert values_in(data_lab, "orders") == [b"quiet"]


@pytest.mark.parametrize("transactional_id", [None, "mine"])
def test_error_with_acks_0_closes_the_connection(data_lab: DataLab, transactional_id: str | None) -> None:
    data_lab.create("orders")
    request = {"acks": 0, "topic_data": [data(data_lab, "nope", (0, batch()))], "transactional_id": transactional_id}
    with pytest.raises(RefusedConnectionError, match="acks=0 failed: "):
        data_lab.serve(request_frame(ApiKey.PRODUCE, 9, request))


@pytest.mark.parametrize("values", [{"acks": 0, "transactional_id": "mine"}, {"acks": 0}, {"acks": 1}, {"acks": 7}])
def test_a_request_without_partitions_succeeds(data_lab: DataLab, values: dict[str, Any]) -> None:
    response = data_lab.serve(request_frame(ApiKey.PRODUCE, 9, values | {"topic_data": []}))
    assert (response is None) == (values["acks"] == 0)


def test_one_partition_that_fails_does_not_stop_the_others(data_lab: DataLab) -> None:
    data_lab.create("orders", 3)
    bad = bytearray(batch())
    bad[20] ^= 1
    answers = produce(data_lab, data(data_lab, "orders", (0, batch()), (1, bytes(bad)), (7, batch()), (2, batch())))
    assert [each.error_code for each in answers[0]] == [
        ErrorCode.none,
        ErrorCode.corrupt_message,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.none,
    ]
    assert answers[0][1].error_message
    assert answers[0][1].base_offset == -1


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_topic_gets_the_error_of_its_version(data_lab: DataLab, version: int) -> None:
    unknown = {"name": "nope", "topic_id": data_lab.create("gone").id, "partition_data": [{"index": 0}]}
    data_lab.topics.delete("gone")
    answers = produce(data_lab, unknown, version=version)
    expected = ErrorCode.unknown_topic_id if version >= FIRST_BY_ID else ErrorCode.unknown_topic_or_partition
    assert answers[0][0].error_code == expected


def test_a_duplicate_batch_is_acknowledged_with_its_base_offset(data_lab: DataLab) -> None:
    data_lab.create("orders")
    data_lab.append("orders", b"before")
    sent = batch(b"a", b"b", producer_id=5, producer_epoch=0, base_sequence=0)
    for _ in range(3):
        (answer,) = produce(data_lab, data(data_lab, "orders", (0, sent)))[0]
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 1)
    assert data_lab.partition("orders").high_watermark == 3
    gap = batch(producer_id=5, producer_epoch=0, base_sequence=9)
    (answer,) = produce(data_lab, data(data_lab, "orders", (0, gap)))[0]
    assert answer.error_code == ErrorCode.out_of_order_sequence_number


def test_the_append_time_is_returned_if_the_log_stamps_it(data_lab: DataLab) -> None:
    data_lab.create("stamped", message_timestamp_type="LogAppendTime")
    data_lab.create("created")
    stamped, created = produce(
        data_lab, data(data_lab, "stamped", (0, batch())), data(data_lab, "created", (0, batch()))
    )
    assert stamped[0].log_append_time.timestamp() * 1000 == START_MS
    assert created[0].log_append_time is None


def test_min_insync_replicas_above_one_fails_acks_all_only(data_lab: DataLab) -> None:
    data_lab.create("careful", min_insync_replicas=2)
    wanted = data(data_lab, "careful", (0, batch()))
    assert produce(data_lab, wanted, acks=-1)[0][0].error_code == ErrorCode.not_enough_replicas
    assert produce(data_lab, wanted, acks=1)[0][0].error_code == ErrorCode.none


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_not_written_to(data_lab: DataLab, name: str) -> None:
    data_lab.create(name)
    (answer,) = produce(data_lab, data(data_lab, name, (0, batch())))[0]
    assert answer.error_code == ErrorCode.invalid_topic_exception
    assert data_lab.partition(name).high_watermark == 0


def test_a_batch_that_is_too_large_for_the_topic(data_lab: DataLab) -> None:
    data_lab.create("small", max_message_bytes=200)
    (answer,) = produce(data_lab, data(data_lab, "small", (0, batch(b"x" * 300))))[0]
    assert answer.error_code == ErrorCode.message_too_large


@pytest.mark.parametrize("version", range(3))
def test_old_versions_get_an_error_for_each_partition(data_lab: DataLab, version: int) -> None:
    data_lab.create("orders")
    topic_data = b"\0\0\0\1\0\6orders\0\0\0\2" + b"\0\0\0\0\0\0\0\0" + b"\0\0\0\1\xff\xff\xff\xff"
    header = Struct(">hhih").pack(0, version, 9, -1) + Struct(">hi").pack(1, 100)
    answer = joined(data_lab.serve(framed(header + topic_data)))
    failed = Struct(">h").pack(ErrorCode.unsupported_version)
    assert answer.count(b"\0\0\0\0" + failed) == 1
    assert answer.count(b"\0\0\0\1" + failed) == 1


def test_zstd_needs_version_7(data_lab: DataLab) -> None:
    data_lab.create("orders")
    wanted = data(data_lab, "orders", (0, batch(codec="zstd")))
    assert produce(data_lab, wanted, version=6)[0][0].error_code == ErrorCode.unsupported_compression_type
    assert produce(data_lab, wanted, version=7)[0][0].error_code == ErrorCode.none


def test_response_has_the_log_start_offset(data_lab: DataLab) -> None:
    data_lab.create("orders")
    data_lab.append("orders", b"a", b"b", b"c")
    data_lab.partition("orders").log.advance_start(2)
    assert produce(data_lab, data(data_lab, "orders", (0, batch())), version=5)[0][0].log_start_offset == 2


def test_error_messages_fit_into_a_string(tmp_path: Path) -> None:
    with DataLab(tmp_path) as lab:
        unknown = {"name": "x" + "ü" * 16_000, "partition_data": [{"index": 0, "records": batch()}]}
        for version in (8, 9):
            (answer,) = produce(lab, unknown, version=version)[0]
            assert answer.error_code == ErrorCode.unknown_topic_or_partition


# Records that a topic refuses


def refused_records(lab: DataLab, records: bytes, version: int) -> tuple[Any, list[int]]:
    ((answer,),) = produce(lab, data(lab, "orders", (0, records)), version=version)
    return answer, [each.batch_index for each in answer.record_errors]


@pytest.mark.parametrize("version", range(8, 14))
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_records_without_a_key_are_listed_in_record_errors(data_lab: DataLab, version: int, codec: str) -> None:
    data_lab.create("orders", cleanup_policy="compact")
    mixed = build_batch([(b"key", b"a"), (None, b"b"), (b"key", b"c"), (None, b"d")], codec=codec)
    answer, named = refused_records(data_lab, bytes(mixed), version)
    assert (answer.error_code, named) == (ErrorCode.invalid_record, [1, 3])
    assert {each.batch_index_error_message for each in answer.record_errors} == {"the key is missing"}
    assert answer.log_start_offset == 0


def test_records_with_an_invalid_timestamp_are_listed_in_record_errors(data_lab: DataLab) -> None:
    day = 24 * 3600 * 1000
    data_lab.create("orders", message_timestamp_before_max_ms=day, message_timestamp_after_max_ms=day)
    for times, wrong in (((-2, 0, -3), [0, 2]), ((0, 2), [1]), ((2, -2, 0), [0, 1])):
        records = [Record(value=b"value", timestamp=START_MS + days * day) for days in times]
        answer, named = refused_records(data_lab, bytes(build_batch(records)), 13)
        assert (answer.error_code, named) == (ErrorCode.invalid_timestamp, wrong)
        messages = [each.batch_index_error_message for each in answer.record_errors]
        assert all(
            f"timestamp {START_MS + times[index] * day} is " in text
            for index, text in zip(wrong, messages, strict=True)
        )


def test_record_errors_are_limited(data_lab: DataLab) -> None:
    data_lab.create("orders", cleanup_policy="compact")
    _, named = refused_records(data_lab, bytes(build_batch([(None, b"value")] * 1500)), 13)
    assert named == list(range(1000))


def test_errors_have_the_log_start_offset_if_kafkas_have_it(data_lab: DataLab) -> None:
    data_lab.create("orders", max_message_bytes=500)
    data_lab.append("orders", b"a", b"b")
    data_lab.partition("orders").log.advance_start(1)
    stale = batch(producer_id=9, producer_epoch=0, base_sequence=5)
    for records, error, start in (
        (stale, ErrorCode.none, 1),
        (batch(producer_id=9, producer_epoch=0, base_sequence=50), ErrorCode.out_of_order_sequence_number, 1),
        (batch(bytes(600)), ErrorCode.message_too_large, -1),
        (batch()[:-1] + b"x", ErrorCode.corrupt_message, -1),
    ):
        answer, named = refused_records(data_lab, records, 13)
        assert (answer.error_code, answer.log_start_offset, named) == (error, start, [])


# While a batch is checked in a thread


def test_a_topic_that_is_deleted_during_the_check_gets_no_records(
    data_lab: DataLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_lab.create("orders", compression_type="gzip")
    prepare = Log.prepare

    def deleting(log: Log, *arguments: Any, **named: Any) -> Any:
        data_lab.topics.delete("orders")
        return prepare(log, *arguments, **named)

    monkeypatch.setattr(Log, "prepare", deleting)
    ((answer,),) = produce(data_lab, data(data_lab, "orders", (0, batch())), version=12)
    assert answer.error_code == ErrorCode.unknown_topic_or_partition


def test_a_long_request_makes_way_for_other_requests(data_lab: DataLab, monkeypatch: pytest.MonkeyPatch) -> None:
    data_lab.create("orders", 12)
    turns = 0
    append = Partition.append

    def slow(partition: Partition, records: memoryview) -> Appended:
        data_lab.clock.advance(4)
        return append(partition, records)

    async def counted(seconds: float) -> None:
        nonlocal turns
        turns += seconds == 0

    monkeypatch.setattr(Partition, "append", slow)
    monkeypatch.setattr(asyncio, "sleep", counted)
    (answers,) = produce(data_lab, data(data_lab, "orders", *((index, batch()) for index in range(12))))
    assert turns >= 2
    assert [(each.index, each.error_code, each.base_offset) for each in answers] == [
        (index, 0, 0) for index in range(12)
    ]
