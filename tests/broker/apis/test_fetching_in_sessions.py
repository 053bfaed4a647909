"""Fetch with sessions: requests and responses have changes only."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stratalog.broker import fetch_sessions
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from tests.broker.apis.test_fetch import of, request
from tests.broker.data_lab import DataLab


class Consumer:
    """A client with a session."""

    def __init__(self, lab: DataLab, version: int = 18) -> None:
        self.lab = lab
        self.version = version
        self.session_id = 0
        self.epoch = 0

    def fetch(self, *topics: dict[str, Any], forget: tuple[dict[str, Any], ...] = (), **given: Any) -> dict[int, Any]:
        """Return the reported partitions by number."""
        return asyncio.run(self.fetching(*topics, forget=forget, **given))

    async def fetching(
        self, *topics: dict[str, Any], forget: tuple[dict[str, Any], ...] = (), **given: Any
    ) -> dict[int, Any]:
        session = {"session_id": self.session_id, "session_epoch": self.epoch, "forgotten_topics_data": forget}
        answer = await self.lab.asking(ApiKey.FETCH, request(*topics, **session, **given), self.version)
        assert answer.error_code == ErrorCode.none, answer
        self.session_id = answer.session_id
        self.epoch += 1
        return {each.partition_index: each for topic in answer.responses for each in topic.partitions}


@pytest.fixture
def lab(data_lab: DataLab) -> DataLab:
    data_lab.create("orders", 4)
    for index in range(4):
        data_lab.append("orders", b"value", partition=index)
    return data_lab


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
def test_only_changes_are_reported(lab: DataLab, version: int) -> None:
    consumer = Consumer(lab, version)
    assert set(consumer.fetch(of(lab, "orders", (0, 0), (1, 1), (2, 1)))) == {0, 1, 2}
    assert consumer.session_id > 0
    assert consumer.fetch(of(lab, "orders", (0, 1))) == {}
    new = lab.append("orders", b"more", partition=1)
    assert {index: bytes(each.records) for index, each in consumer.fetch().items()} == {1: new}
    assert set(consumer.fetch(of(lab, "orders", (1, 2), (3, 1)))) == {3}
    assert len(lab.sessions) == 1


def test_records_that_were_not_fetched_are_returned_again(lab: DataLab) -> None:
    consumer = Consumer(lab)
    consumer.fetch(of(lab, "orders", (0, 0)))
    assert set(consumer.fetch()) == {0}
    assert set(consumer.fetch(of(lab, "orders", (0, 1)))) == set()


def test_a_moved_log_start_offset_is_reported(lab: DataLab) -> None:
    consumer = Consumer(lab)
    consumer.fetch(of(lab, "orders", (0, 1)))
    lab.partition("orders").log.advance_start(1)
    (told,) = consumer.fetch().values()
    assert (told.log_start_offset, told.records) == (1, b"")
    assert consumer.fetch() == {}


def test_forgotten_partitions_are_not_reported(lab: DataLab) -> None:
    consumer = Consumer(lab)
    wanted = of(lab, "orders", (0, 1), (1, 1))
    consumer.fetch(wanted)
    consumer.fetch(forget=({"topic": "orders", "topic_id": wanted["topic_id"], "partitions": [0, 99]},))
    for index in range(2):
        lab.append("orders", b"more", partition=index)
    assert set(consumer.fetch()) == {1}


def test_an_error_is_reported_until_it_is_fixed(lab: DataLab) -> None:
    consumer = Consumer(lab)
    consumer.fetch(of(lab, "orders", (0, 1), (9, 0)))
    for _ in range(2):
        (told,) = consumer.fetch(max_wait=60_000).values()
        assert (told.partition_index, told.error_code) == (9, ErrorCode.unknown_topic_or_partition)


def test_a_topic_that_is_created_again_is_unknown_by_its_old_topic_id(lab: DataLab) -> None:
    by_id, by_name = Consumer(lab), Consumer(lab, 12)
    for consumer in (by_id, by_name):
        consumer.fetch(of(lab, "orders", (0, 1)))
    lab.topics.delete("orders")
    lab.create("orders")
    assert by_id.fetch()[0].error_code == ErrorCode.unknown_topic_id
    assert by_name.fetch()[0].error_code == ErrorCode.offset_out_of_range


def test_partitions_with_records_move_behind_the_others(lab: DataLab) -> None:
    """Otherwise a partition with many records could keep the others from being read."""
    consumer = Consumer(lab)
    first = consumer.fetch(of(lab, "orders", (0, 0), (1, 0), (2, 0)), max_bytes=1)
    seen = [index for index, each in first.items() if each.records]
    for _ in range(2):
        seen += [index for index, each in consumer.fetch(max_bytes=1).items() if each.records]
    assert seen == [0, 1, 2]


def test_a_poll_in_a_session_is_woken_by_any_of_its_partitions(lab: DataLab) -> None:
    consumer = Consumer(lab)
    consumer.fetch(of(lab, "orders", *((index, 1) for index in range(4))))

    async def scenario() -> dict[int, Any]:
        polling = asyncio.create_task(consumer.fetching(max_wait=60_000))
        await asyncio.sleep(0)
        assert lab.fetch.waiting == 1
        lab.append("orders", b"more", partition=3)
        return await asyncio.wait_for(polling, 10)

    assert set(asyncio.run(scenario())) == {3}


def test_a_session_that_is_closed_is_gone(lab: DataLab) -> None:
    consumer = Consumer(lab)
    consumer.fetch(of(lab, "orders", (0, 0)))
    closing = request(session_id=consumer.session_id, session_epoch=-1)
    assert lab.ask(ApiKey.FETCH, closing).session_id == 0
    assert len(lab.sessions) == 0
    again = request(session_id=consumer.session_id, session_epoch=1)
    assert lab.ask(ApiKey.FETCH, again).error_code == ErrorCode.fetch_session_id_not_found


def test_a_full_fetch_that_names_a_session_replaces_it(lab: DataLab) -> None:
    consumer = Consumer(lab)
    consumer.fetch(of(lab, "orders", (0, 0)))
    first, consumer.epoch = consumer.session_id, 0
    consumer.fetch(of(lab, "orders", (1, 0)))
    assert consumer.session_id not in (0, first)
    assert len(lab.sessions) == 1


def test_without_a_session_every_response_is_full(lab: DataLab) -> None:
    wanted = request(of(lab, "orders", (0, 1), (1, 1)), session_epoch=-1)
    for _ in range(2):
        answer = lab.ask(ApiKey.FETCH, wanted)
        assert answer.session_id == 0
        assert len(answer.responses[0].partitions) == 2


def test_fetch_is_served_without_a_session_if_there_is_no_room(lab: DataLab) -> None:
    lab.sessions._slots = 0
    consumer = Consumer(lab)
    assert set(consumer.fetch(of(lab, "orders", (0, 0)))) == {0}
    assert consumer.session_id == 0


def test_a_session_that_exceeds_the_limits_is_closed(lab: DataLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MOST_CACHED_PARTITIONS", 3)
    consumer = Consumer(lab)
    consumer.fetch(of(lab, "orders", (0, 0), (1, 0)))
    more = request(of(lab, "orders", (2, 0), (3, 0)), session_id=consumer.session_id, session_epoch=1)
    assert lab.ask(ApiKey.FETCH, more).error_code == ErrorCode.fetch_session_id_not_found
    assert len(lab.sessions) == 0
