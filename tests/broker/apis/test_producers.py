from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.metadata.store import METADATA_FILE
from stratalog.protocol.api_keys import ApiKey
from stratalog.records.builder import build_control_batch
from stratalog.records.format import ControlType
from stratalog.storage.appending import Origin
from tests.broker.apis.admin_lab import AdminLab, versions
from tests.broker.metadata.registry_lab import killed_copy
from tests.golden.test_opening_kafkas_directories import copy_data_directory
from tests.storage.faults.failing_disk import FailingDisk
from tests.storage.hand_made import START_MS, batch_of


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[AdminLab]:
    with AdminLab(tmp_path / "data") as lab:
        yield lab


def init(lab: AdminLab, version: int | None = None, **fields: Any) -> Any:
    return lab.answer(
        ApiKey.INIT_PRODUCER_ID, version, **{"transactional_id": None, "transaction_timeout": -1, **fields}
    )


def new_id(lab: AdminLab) -> int:
    answer = init(lab)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, 0)
    return int(answer.producer_id)


class TestInitProducerId:
    @pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
    def test_each_producer_gets_an_id_of_its_own(self, lab: AdminLab, version: int) -> None:
        answers = [init(lab, version) for _ in range(3)]
        assert [(each.error_code, each.producer_id, each.producer_epoch) for each in answers] == [
            (ErrorCode.none, number, 0) for number in range(3)
        ]

    def test_a_thousand_requests_at_once_get_different_ids(self, lab: AdminLab) -> None:
        async def ask_all() -> list[Any]:
            fields = {"transactional_id": None, "transaction_timeout": 0}
            return await asyncio.gather(*(lab.ask(ApiKey.INIT_PRODUCER_ID, 5, **fields) for _ in range(1500)))

        ids = {answer.producer_id for answer in asyncio.run(ask_all())}
        assert len(ids) == 1500
        assert lab.background_calls == 2

    def test_no_id_is_given_again_after_a_kill(self, lab: AdminLab, tmp_path: Path) -> None:
        given = {new_id(lab) for _ in range(1001)}
        for life in range(3):
            with AdminLab(killed_copy(tmp_path / "data", tmp_path / f"killed-{life}")) as restarted:
                given_now = {new_id(restarted) for _ in range(3)}
                assert not given & given_now
            given |= {new_id(lab) for _ in range(500)}

    def test_no_id_is_given_before_its_block_is_durable(self, tmp_path: Path) -> None:
        disk = FailingDisk()
        with AdminLab(tmp_path, disk) as lab:
            disk.arm("ENOSPC", 1, 1000)
            answer = init(lab)
            assert (answer.error_code, answer.producer_id) == (ErrorCode.coordinator_load_in_progress, -1)
            disk.heal()
            assert new_id(lab) == 0

    def test_client_that_disconnects_while_a_block_is_reserved_costs_only_ids(self, lab: AdminLab) -> None:
        async def run() -> list[int]:
            fields = {"transactional_id": None, "transaction_timeout": 0}
            first = asyncio.ensure_future(lab.ask(ApiKey.INIT_PRODUCER_ID, 5, **fields))
            await asyncio.sleep(0)
            first.cancel()
            answers = await asyncio.gather(*(lab.ask(ApiKey.INIT_PRODUCER_ID, 5, **fields) for _ in range(3)))
            return [answer.producer_id for answer in answers]

        ids = asyncio.run(run())
        assert len(set(ids)) == 3

    @pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
    def test_transactional_id_keeps_its_producer_id_and_gets_the_next_epoch(self, lab: AdminLab, version: int) -> None:
        for epoch in range(3):
            answer = init(lab, version, transactional_id="payments", transaction_timeout=60_000)
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.none, 0, epoch)

    def test_empty_transactional_id_is_refused(self, lab: AdminLab) -> None:
        assert init(lab, transactional_id="", transaction_timeout=1).error_code is ErrorCode.invalid_request

    @pytest.mark.parametrize("version", [3, 4, 5])
    def test_producer_that_sends_its_old_id_gets_a_new_one(self, lab: AdminLab, version: int) -> None:
        old = new_id(lab)
        answer = init(lab, version, producer_id=old, producer_epoch=3)
        assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, 0)
        assert answer.producer_id != old

    @pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5)])
    def test_id_without_epoch_and_epoch_without_id_are_refused(
        self, lab: AdminLab, producer_id: int, epoch: int
    ) -> None:
        assert init(lab, producer_id=producer_id, producer_epoch=epoch).error_code is ErrorCode.invalid_request

    def test_ids_in_kafkas_logs_are_not_given_to_others(self, tmp_path: Path) -> None:
        copy_data_directory(tmp_path)
        with AdminLab(tmp_path, log_retention_ms=-1) as lab:
            used = {each.producer_id for partition in lab.topics.all_partitions() for each in partition.log.producers}
            assert used
            assert new_id(lab) == max(used) + 1

    def test_ids_from_before_the_metadata_was_lost_are_not_given_again(self, tmp_path: Path) -> None:
        with AdminLab(tmp_path / "data") as lab:
            lab.topics.create("orders", 1, {})
            lab.append("orders", batch_of(START_MS, producer_id=41, producer_epoch=0, base_sequence=0))
        (tmp_path / "data" / METADATA_FILE).unlink()
        with AdminLab(tmp_path / "data") as lab:
            assert new_id(lab) == 42

    def test_forged_id_in_a_batch_does_not_use_up_all_ids(self, lab: AdminLab) -> None:
        lab.topics.create("orders", 1, {})
        for forged in (2**63 - 1, 2**62, 2**62 - 1):
            lab.append("orders", batch_of(START_MS, producer_id=forged, producer_epoch=0, base_sequence=0))
        assert [new_id(lab) for _ in range(1001)][-1] == 2**62 + 1000


class TestDescribeProducers:
    def describe(self, lab: AdminLab, *partitions: tuple[str, int]) -> list[Any]:
        topics = [{"name": name, "partition_indexes": [index]} for name, index in partitions]
        answer = lab.answer(ApiKey.DESCRIBE_PRODUCERS, topics=topics)
        return [each for topic in answer.topics for each in topic.partitions]

    def test_producers_are_described_with_their_last_batch(self, lab: AdminLab) -> None:
        lab.topics.create("orders", 2, {})
        lab.append(
            "orders",
            batch_of(START_MS, START_MS + 5, producer_id=3, producer_epoch=1, base_sequence=0),
            batch_of(START_MS + 9, producer_id=4, producer_epoch=0, base_sequence=7, is_transactional=True),
        )
        [partition, empty] = self.describe(lab, ("orders", 0), ("orders", 1))
        assert (partition.partition_index, partition.error_code) == (0, ErrorCode.none)
        assert [
            (
                each.producer_id,
                each.producer_epoch,
                each.last_sequence,
                each.last_timestamp,
                each.coordinator_epoch,
                each.current_txn_start_offset,
            )
            for each in partition.active_producers
        ] == [(3, 1, 1, START_MS + 5, -1, -1), (4, 0, 7, START_MS + 9, -1, 2)]
        assert (empty.partition_index, list(empty.active_producers)) == (1, [])

    def test_marker_ends_a_transaction_and_has_the_coordinator_epoch(self, lab: AdminLab) -> None:
        lab.topics.create("orders", 1, {})
        log = lab.append(
            "orders", batch_of(START_MS, producer_id=4, producer_epoch=0, base_sequence=0, is_transactional=True)
        )
        for producer_id in (4, 5):  # the log has only the marker of 5
            marker = build_control_batch(ControlType.COMMIT, producer_id, 0, 9, START_MS + 1)
            log.append(marker, origin=Origin.COORDINATOR)
        [partition] = self.describe(lab, ("orders", 0))
        assert [
            (each.producer_id, each.last_sequence, each.coordinator_epoch, each.current_txn_start_offset)
            for each in partition.active_producers
        ] == [(4, 0, 9, -1), (5, -1, 9, -1)]

    def test_repeated_partition_is_described_once(self, lab: AdminLab) -> None:
        lab.topics.create("orders", 1, {})
        topics = [{"name": "orders", "partition_indexes": [0] * 1000}] * 2
        answer = lab.answer(ApiKey.DESCRIBE_PRODUCERS, topics=topics)
        assert [len(topic.partitions) for topic in answer.topics] == [1]

    @pytest.mark.parametrize(("name", "index"), [("nope", 0), ("orders", 1), ("orders", -1)])
    def test_unknown_partitions_are_told(self, lab: AdminLab, name: str, index: int) -> None:
        lab.topics.create("orders", 1, {})
        [bad, good] = self.describe(lab, (name, index), ("orders", 0))
        assert (bad.partition_index, bad.error_code) == (index, ErrorCode.unknown_topic_or_partition)
        assert good.error_code is ErrorCode.none
