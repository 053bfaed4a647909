from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.transactions.state import ProducerIdAndEpoch
from stratalog.protocol.api_keys import ApiKey
from tests.broker.apis.admin_lab import AdminLab, versions
from tests.broker.apis.test_transactions import GROUP, SETTINGS, add, begin, commit_offset, end, fetched
from tests.storage.hand_made import START_MS, batch_of


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[AdminLab]:
    with AdminLab(tmp_path / "data", **SETTINGS) as lab:
        lab.topics.create("orders", 2, {})
        yield lab


def listed(lab: AdminLab, version: int = 2, **filters: Any) -> dict[str, str]:
    asked = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, "transactional_id_pattern": None}
    answer = lab.answer(ApiKey.LIST_TRANSACTIONS, version, **(asked | filters))
    assert answer.error_code is ErrorCode.none
    return {one.transactional_id: one.transaction_state for one in answer.transaction_states}


def mark(
    lab: AdminLab, producer: ProducerIdAndEpoch, *partitions: int, commit: bool = False, **more: Any
) -> list[ErrorCode]:
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "transaction_result": commit,
        "topics": [{"name": more.get("topic", "orders"), "partition_indexes": list(partitions)}],
        "coordinator_epoch": more.get("coordinator_epoch", 0),
    }
    (answer,) = lab.answer(ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker]).markers
    return [each.error_code for topic in answer.topics for each in topic.partitions]


class TestList:
    @pytest.mark.parametrize("version", versions(ApiKey.LIST_TRANSACTIONS))
    def test_all_are_told_with_their_states(self, lab: AdminLab, version: int) -> None:
        begin(lab, "idle")
        add(lab, begin(lab), 0, version=3)
        assert listed(lab, version) == {"idle": "Empty", "t": "Ongoing"}

    def test_filters(self, lab: AdminLab) -> None:
        idle = begin(lab, "idle")
        add(lab, begin(lab), 0, version=3)
        lab.clock.advance(5000)
        assert set(listed(lab, state_filters=["Ongoing", "CompleteAbort"])) == {"t"}
        assert set(listed(lab, producer_id_filters=[idle.producer_id])) == {"idle"}
        assert "t" in listed(lab, duration_filter=4999)
        assert "t" not in listed(lab, duration_filter=5000)
        assert set(listed(lab, transactional_id_pattern="id.*")) == {"idle"}

    def test_unknown_state_and_unreadable_pattern_are_told(self, lab: AdminLab) -> None:
        begin(lab)
        asked: dict[str, Any] = {"producer_id_filters": [], "duration_filter": -1, "state_filters": ["Odd"]}
        answer = lab.answer(ApiKey.LIST_TRANSACTIONS, transactional_id_pattern=None, **asked)
        assert (answer.unknown_state_filters, answer.transaction_states) == (("Odd",), ())
        answer = lab.answer(ApiKey.LIST_TRANSACTIONS, transactional_id_pattern="(", **asked)
        assert answer.error_code is ErrorCode.invalid_regular_expression


class TestDescribe:
    def test_open_transaction_is_told_whole(self, lab: AdminLab) -> None:
        who = begin(lab)
        add(lab, who, 1, 0, version=3)
        (one,) = lab.answer(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["t"]).transaction_states
        assert (one.error_code, one.transaction_state) == (ErrorCode.none, "Ongoing")
        assert (one.producer_id, one.producer_epoch) == who
        assert [(topic.topic, topic.partitions) for topic in one.topics] == [("orders", (0, 1))]
        assert one.transaction_timeout.total_seconds() == 60
        assert int(one.transaction_start_time.timestamp() * 1000) == lab.clock.now_ms()

    def test_unknown_and_empty_ids_are_told_so(self, lab: AdminLab) -> None:
        answer = lab.answer(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["nobody", ""])
        assert [one.error_code for one in answer.transaction_states] == [
            ErrorCode.transactional_id_not_found,
            ErrorCode.invalid_request,
        ]


class TestMarkers:
    def test_hanging_transaction_is_found_and_ended(self, lab: AdminLab) -> None:
        """One that no coordinator knows: its batches came another way."""
        hanging = {"producer_id": 99, "producer_epoch": 2, "base_sequence": 0, "is_transactional": True}
        log = lab.append("orders", batch_of(START_MS, **hanging))
        topics = [{"name": "orders", "partition_indexes": [0]}]
        (partition,) = lab.answer(ApiKey.DESCRIBE_PRODUCERS, topics=topics).topics[0].partitions
        (found,) = partition.active_producers
        assert (found.producer_id, found.producer_epoch, found.current_txn_start_offset) == (99, 2, 0)
        assert mark(lab, ProducerIdAndEpoch(99, 2), 0) == [ErrorCode.none]
        assert log.producers.first_open_transaction is None
        assert [one.producer_id for one in log.aborted_transactions(0, 9)] == [99]

    def test_errors_are_kafkas(self, lab: AdminLab) -> None:
        plain = {"producer_id": 99, "producer_epoch": 2, "base_sequence": 0, "is_transactional": True}
        lab.append("orders", batch_of(START_MS, **plain))
        assert mark(lab, ProducerIdAndEpoch(99, 1), 0) == [ErrorCode.invalid_producer_epoch]
        assert mark(lab, ProducerIdAndEpoch(99, 2), 7) == [ErrorCode.unknown_topic_or_partition]
        assert mark(lab, ProducerIdAndEpoch(99, 2), 0, coordinator_epoch=5) == [ErrorCode.none]
        assert mark(lab, ProducerIdAndEpoch(99, 2), 0, coordinator_epoch=4) == [
            ErrorCode.transaction_coordinator_fenced
        ]

    def test_offsets_of_a_transaction_go_with_it(self, lab: AdminLab) -> None:
        who = begin(lab)
        commit_offset(lab, who, 5)
        index = lab.transactions.groups.partition_of(GROUP)
        assert mark(lab, who, index, topic="__consumer_offsets") == [ErrorCode.none]
        assert fetched(lab, stable=True) == (-1, ErrorCode.none)
        assert end(lab, who).error_code is ErrorCode.none
        assert fetched(lab, stable=True) == (-1, ErrorCode.none)
