"""Fetch, in every version: which records are returned, how many, long polls, and transactions."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.format import ControlType
from tests.broker.data_lab import DataLab, end_transaction, joined
from tests.protocol.kio_messages import request_frame

VERSIONS = range(4, 19)
FIRST_BY_ID = 13
MOST = 2**31 - 1


def of(lab: DataLab, name: str, *partitions: tuple[int, int], max_bytes: int = 10**6, **given: Any) -> dict[str, Any]:
    """Return the topic of a request, by name and topic id, with these (partition, offset) pairs."""
    found = lab.topics.get(name)
    wanted = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": max_bytes, **given}
        for index, offset in partitions
    ]
    return {"topic": name, "topic_id": None if found is None else found.id, "partitions": wanted}


def request(*topics: dict[str, Any], **given: Any) -> dict[str, Any]:
    return {"min_bytes": 1, "max_bytes": MOST, "max_wait": 0, "topics": topics} | given


def fetch(lab: DataLab, *topics: dict[str, Any], version: int = 18, **given: Any) -> list[Any]:
    """Return the partitions of all topics in the response."""
    answer = lab.ask(ApiKey.FETCH, request(*topics, **given), version)
    assert answer.error_code == ErrorCode.none if version >= 7 else True
    return [partition for topic in answer.responses for partition in topic.partitions]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_bytes_that_were_appended_are_read(data_lab: DataLab, version: int) -> None:
    data_lab.create("orders", 2)
    first, second = data_lab.append("orders", b"a", b"b"), data_lab.append("orders", b"c")
    other = data_lab.append("orders", b"d", partition=1)
    answers = fetch(data_lab, of(data_lab, "orders", (0, 0), (1, 0)), version=version)
    assert [bytes(each.records) for each in answers] == [first + second, other]
    assert [(each.error_code, each.high_watermark, each.last_stable_offset) for each in answers] == [
        (0, 3, 3),
        (0, 1, 1),
    ]
    assert bytes(fetch(data_lab, of(data_lab, "orders", (0, 2)), version=version)[0].records) == second
    assert not fetch(data_lab, of(data_lab, "orders", (0, 3)), version=version)[0].records


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_partition_gets_its_own_error(data_lab: DataLab, version: int) -> None:
    data_lab.create("orders")
    data_lab.create("gone")
    gone = of(data_lab, "gone", (0, 0))
    data_lab.topics.delete("gone")
    data_lab.append("orders", b"a")
    answers = fetch(data_lab, of(data_lab, "orders", (0, 0), (1, 0), (-1, 0)), gone, version=version)
    unknown = ErrorCode.unknown_topic_or_partition
    of_topic = ErrorCode.unknown_topic_id if version >= FIRST_BY_ID else unknown
    assert [each.error_code for each in answers] == [ErrorCode.none, unknown, unknown, of_topic]
    assert answers[0].records


@pytest.mark.parametrize("offset", [-1, 3, 10**15, 2**63 - 1, -(2**63)])
def test_an_offset_outside_the_log_is_out_of_range(data_lab: DataLab, offset: int) -> None:
    data_lab.create("orders")
    data_lab.append("orders", b"a", b"b")
    (answer,) = fetch(data_lab, of(data_lab, "orders", (0, offset)))
    assert answer.error_code == ErrorCode.offset_out_of_range


def test_an_offset_before_the_start_is_out_of_range(data_lab: DataLab) -> None:
    data_lab.create("orders")
    data_lab.append("orders", b"a", b"b")
    data_lab.partition("orders").log.advance_start(1)
    assert fetch(data_lab, of(data_lab, "orders", (0, 0)))[0].error_code == ErrorCode.offset_out_of_range
    assert fetch(data_lab, of(data_lab, "orders", (0, 1)))[0].log_start_offset == 1


# How much


def test_the_first_batch_is_read_even_if_it_is_larger_than_the_limit(data_lab: DataLab) -> None:
    data_lab.create("orders", 2)
    for index in range(2):
        data_lab.append("orders", b"x" * 1000, partition=index)
    for sizes in ({"max_bytes": 10}, {"max_bytes": 0}, {"max_bytes": -5}):
        answers = fetch(data_lab, of(data_lab, "orders", (0, 0), (1, 0)), **sizes)
        assert [bool(each.records) for each in answers] == [True, False]
    answers = fetch(data_lab, of(data_lab, "orders", (0, 0), (1, 0), max_bytes=10))
    assert [bool(each.records) for each in answers] == [True, False]


def test_sizes_limit_the_records_and_the_last_batch_may_be_cut(data_lab: DataLab) -> None:
    data_lab.create("orders", 2)
    size = len(data_lab.append("orders", b"x" * 500))
    for index in (0, 0, 1, 1):
        data_lab.append("orders", b"x" * 500, partition=index)
    wanted = of(data_lab, "orders", (0, 0), (1, 0), max_bytes=2 * size + 10)
    assert [len(each.records) for each in fetch(data_lab, wanted)] == [2 * size + 10, 2 * size]
    assert [len(each.records) for each in fetch(data_lab, wanted, max_bytes=3 * size)] == [2 * size + 10, 0]


def test_the_brokers_limit_applies_to_larger_requests(tmp_path: Path) -> None:
    with DataLab(tmp_path, fetch_max_bytes=3000) as lab:
        lab.create("orders")
        for _ in range(5):
            lab.append("orders", b"x" * 1000)
        (answer,) = fetch(lab, of(lab, "orders", (0, 0), max_bytes=MOST))
        assert len(answer.records) == 3000


def test_a_repeated_partition_is_read_once(data_lab: DataLab) -> None:
    data_lab.create("orders")
    data_lab.append("orders", b"a")
    assert len(fetch(data_lab, of(data_lab, "orders", (0, 0), (0, 0)), of(data_lab, "orders", (0, 0)))) == 1


# Long polls


def test_a_poll_waits_until_enough_is_appended(data_lab: DataLab) -> None:
    data_lab.create("orders", 2)

    async def scenario() -> None:
        size = len(data_lab.append("orders", b"value"))
        wanted = request(of(data_lab, "orders", (0, 1), (1, 0)), min_bytes=size + 1, max_wait=60_000)
        polling = asyncio.create_task(data_lab.asking(ApiKey.FETCH, wanted))
        for index in range(2):
            await asyncio.sleep(0)
            assert not polling.done()
            assert data_lab.fetch.waiting == 1
            data_lab.append("orders", b"value", partition=index)
        answer = await asyncio.wait_for(polling, 10)
        assert [len(each.records) for each in answer.responses[0].partitions] == [size, size]
        assert data_lab.fetch.waiting == 0

    asyncio.run(scenario())


def test_a_poll_ends_when_its_time_is_over(data_lab: DataLab) -> None:
    data_lab.create("orders")
    (answer,) = fetch(data_lab, of(data_lab, "orders", (0, 0)), max_wait=20)
    assert answer.error_code == ErrorCode.none
    assert not answer.records


@pytest.mark.parametrize("given", [{"max_wait": 0}, {"max_wait": -1}, {"min_bytes": 0}, {"min_bytes": -1}])
def test_fetch_without_max_wait_does_not_wait(data_lab: DataLab, given: dict[str, int]) -> None:
    data_lab.create("orders")
    assert len(fetch(data_lab, of(data_lab, "orders", (0, 0)), **{"max_wait": 60_000} | given)) == 1


def test_an_error_does_not_wait(data_lab: DataLab) -> None:
    data_lab.create("orders")
    answers = fetch(data_lab, of(data_lab, "orders", (0, 0), (5, 0)), max_wait=60_000)
    assert [each.error_code for each in answers] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]


def test_fetch_without_partitions_does_not_wait(data_lab: DataLab) -> None:
    assert fetch(data_lab, max_wait=60_000) == []


def test_a_poll_of_a_deleted_topic_gets_an_error(data_lab: DataLab) -> None:
    data_lab.create("orders")

    async def scenario() -> None:
        wanted = request(of(data_lab, "orders", (0, 0)), max_wait=60_000)
        polling = asyncio.create_task(data_lab.asking(ApiKey.FETCH, wanted))
        await asyncio.sleep(0)
        data_lab.topics.delete("orders")
        answer = await asyncio.wait_for(polling, 10)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.unknown_topic_id

    asyncio.run(scenario())


def test_drain_answers_polls_and_no_fetch_waits_after_it(data_lab: DataLab) -> None:
    data_lab.create("orders")

    async def scenario() -> None:
        wanted = request(of(data_lab, "orders", (0, 0)), max_wait=60_000)
        polling = asyncio.create_task(data_lab.asking(ApiKey.FETCH, wanted))
        await asyncio.sleep(0)
        data_lab.fetch.drain()
        assert (await asyncio.wait_for(polling, 10)).responses
        assert (await asyncio.wait_for(data_lab.asking(ApiKey.FETCH, wanted), 10)).responses

    asyncio.run(scenario())


def test_a_poll_of_a_disconnected_client_leaves_nothing_behind(data_lab: DataLab) -> None:
    data_lab.create("orders")

    async def scenario() -> None:
        wanted = request(of(data_lab, "orders", (0, 0)), max_wait=60_000)
        polling = asyncio.create_task(data_lab.asking(ApiKey.FETCH, wanted))
        await asyncio.sleep(0)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        assert data_lab.fetch.waiting == 0
        assert not data_lab.partition("orders").waiting
        data_lab.append("orders", b"nobody waits")

    asyncio.run(scenario())


def poll_frame(lab: DataLab) -> bytes:
    return request_frame(ApiKey.FETCH, 18, request(of(lab, "orders", (0, 0)), max_wait=60_000), correlation_id=9)


def test_a_record_that_is_appended_right_after_a_poll_wakes_it(data_lab: DataLab) -> None:
    """The append is in the same turn of the event loop. A fetch that registered later would wait for max_wait."""
    data_lab.create("orders")

    async def scenario() -> None:
        response = data_lab.serve(poll_frame(data_lab))
        batch = data_lab.append("orders", b"value")
        assert batch in joined(await asyncio.wait_for(response, 10))
        assert data_lab.fetch.waiting == 0

    asyncio.run(scenario())


def test_a_poll_that_is_cancelled_at_once_leaves_nothing_behind(data_lab: DataLab) -> None:
    data_lab.create("orders")

    async def scenario() -> None:
        response = data_lab.serve(poll_frame(data_lab))
        assert data_lab.partition("orders").waiting
        response.cancel()
        await asyncio.gather(response, return_exceptions=True)
        await asyncio.sleep(0)
        assert not data_lab.partition("orders").waiting
        assert data_lab.fetch.waiting == 0

    asyncio.run(scenario())


def test_a_partition_that_is_never_in_the_page_cache_starves(
    data_lab: DataLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may drop pages as fast as a thread reads them, while another partition always has records."""
    data_lab.create("orders", 2)
    cold = data_lab.append("orders", b"old")
    data_lab.append("orders", b"new", partition=1)
    log = data_lab.partition("orders").log
    monkeypatch.setattr(log, "_warm_from", log.log_end_offset)
    monkeypatch.setattr(type(log.segments[0]), "is_in_memory", lambda *_: False)
    wanted = request(of(data_lab, "orders", (0, 0), (1, 0)), max_wait=60_000)
    frame = request_frame(ApiKey.FETCH, 11, wanted, correlation_id=9)

    async def scenario() -> None:
        for _ in range(1000):
            response = data_lab.serve(frame)
            if cold in joined(await response if isinstance(response, asyncio.Future) else response):
                return
            await asyncio.sleep(0.001)
        raise AssertionError("the fetch is answered without the cold partition each time")

    asyncio.run(scenario())


@pytest.mark.parametrize("max_bytes", [-5, 0, 1, MOST])
def test_a_cold_fetch_with_an_odd_size_is_never_answered(
    data_lab: DataLab, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    data_lab.create("orders")
    batch = data_lab.append("orders", b"value")
    log = data_lab.partition("orders").log
    monkeypatch.setattr(log, "_warm_from", log.log_end_offset)
    monkeypatch.setattr(type(log.segments[0]), "is_in_memory", lambda *_: False)
    wanted = request(of(data_lab, "orders", (0, 0)), max_wait=60_000, max_bytes=max_bytes)

    async def scenario() -> None:
        response = data_lab.serve(request_frame(ApiKey.FETCH, 11, wanted, correlation_id=9))
        assert batch in joined(await asyncio.wait_for(response, 30))

    asyncio.run(scenario())


def test_a_response_to_a_cold_fetch_keeps_a_segments_descriptor_open(
    data_lab: DataLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not take the garbage collector to close it: an idle broker may not collect for minutes."""
    data_lab.create("orders")
    batch = data_lab.append("orders", b"value")
    log = data_lab.partition("orders").log
    monkeypatch.setattr(log, "_warm_from", log.log_end_offset)
    log.segments[0].release()  # not open: the fetch has to wait for a thread

    async def scenario() -> None:
        response = await asyncio.wait_for(data_lab.serve(poll_frame(data_lab)), 10)
        assert batch in joined(response)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
        descriptor = weakref.ref(log.segments[0].file)
        log.segments[0].release()
        assert descriptor() is None
    finally:
        gc.enable()


# Transactions, epochs, replicas


def test_committed_readers_get_records_to_the_last_stable_offset_and_aborted_transactions(data_lab: DataLab) -> None:
    data_lab.create("topic")
    before = data_lab.append("topic", b"before")
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    data_lab.append("topic", b"aborted", **producer)
    for isolation, records in ((1, 1), (0, 2)):
        (answer,) = fetch(data_lab, of(data_lab, "topic", (0, 0)), isolation_level=isolation)
        assert len(answer.records) == len(before) * records + (len(b"aborted") - len(b"before")) * (records - 1)
        assert answer.last_stable_offset == 1
        assert (answer.aborted_transactions == ()) == (isolation == 1)
    end_transaction(data_lab, 7, ControlType.ABORT)
    (answer,) = fetch(data_lab, of(data_lab, "topic", (0, 0)), isolation_level=1)
    assert [(each.producer_id, each.first_offset) for each in answer.aborted_transactions] == [(7, 1)]
    (answer,) = fetch(data_lab, of(data_lab, "topic", (0, 0)), isolation_level=0)
    assert answer.aborted_transactions is None


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, "none"),
        (3, "none"),
        (2, "fenced_leader_epoch"),
        (4, "unknown_leader_epoch"),
        (MOST, "unknown_leader_epoch"),
    ],
)
def test_the_leader_epoch_that_a_client_knows_is_checked(data_lab: DataLab, epoch: int, error: str) -> None:
    data_lab.create("orders")
    data_lab.partition("orders").leader_epoch = 3
    data_lab.append("orders", b"a")
    for version in (9, 12, 18):
        wanted = of(data_lab, "orders", (0, 0), current_leader_epoch=epoch)
        assert fetch(data_lab, wanted, version=version)[0].error_code.name == error


def test_a_client_with_a_diverging_log_gets_the_diverging_epoch(data_lab: DataLab) -> None:
    data_lab.create("orders")
    for epoch in (1, 4):
        data_lab.partition("orders").leader_epoch = epoch
        data_lab.append("orders", b"a", b"b")
    (same,) = fetch(data_lab, of(data_lab, "orders", (0, 2), last_fetched_epoch=1))
    assert (same.error_code, same.diverging_epoch.end_offset, bool(same.records)) == (ErrorCode.none, -1, True)
    for last_epoch, offset in ((1, 3), (3, 2)):
        (parted,) = fetch(data_lab, of(data_lab, "orders", (0, offset), last_fetched_epoch=last_epoch), max_wait=60_000)
        assert (parted.diverging_epoch.epoch, parted.diverging_epoch.end_offset) == (1, 2)
        assert not parted.records


def test_a_replica_gets_no_records(data_lab: DataLab) -> None:
    data_lab.create("orders")
    data_lab.append("orders", b"a")
    wanted = of(data_lab, "orders", (0, 0))
    for version, replica in (
        (4, {"replica_id": 2}),
        (14, {"replica_id": 0}),
        (15, {"replica_state": {"replica_id": 2}}),
    ):
        (answer,) = fetch(data_lab, wanted, version=version, **replica)
        assert answer.error_code == ErrorCode.not_leader_or_follower
        assert not answer.records
