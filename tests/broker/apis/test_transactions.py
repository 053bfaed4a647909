from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.transactions.state import ProducerIdAndEpoch
from stratalog.protocol.api_keys import ApiKey
from tests.broker.apis.admin_lab import AdminLab, versions
from tests.broker.metadata.registry_lab import killed_copy

SETTINGS: dict[str, Any] = {"transaction_state_log_num_partitions": 2, "offsets_topic_num_partitions": 2}
GROUP = "readers"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[AdminLab]:
    with AdminLab(tmp_path / "data", **SETTINGS) as lab:
        lab.topics.create("orders", 2, {})
        yield lab


def begin(lab: AdminLab, transactional_id: str = "t") -> ProducerIdAndEpoch:
    answer = lab.answer(ApiKey.INIT_PRODUCER_ID, transactional_id=transactional_id, transaction_timeout=60_000)
    assert answer.error_code is ErrorCode.none
    return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)


def add(
    lab: AdminLab, who: ProducerIdAndEpoch, *partitions: int, version: int, topic: str = "orders", **more: Any
) -> list[ErrorCode]:
    topics = [{"name": topic, "partitions": list(partitions)}]
    fields = {"transactional_id": "t", "producer_id": who.producer_id, "producer_epoch": who.epoch, "topics": topics}
    if version < 4:
        old = {f"v3_and_below_{name}": value for name, value in (fields | more).items()}
        results = lab.answer(ApiKey.ADD_PARTITIONS_TO_TXN, version, **old).results_by_topic_v3_and_below
    else:
        one = {"verify_only": False, **fields, **more}
        (result,) = lab.answer(ApiKey.ADD_PARTITIONS_TO_TXN, version, transactions=[one]).results_by_transaction
        assert result.transactional_id == one["transactional_id"]
        results = result.topic_results
    return [each.partition_error_code for result in results for each in result.results_by_partition]


def end(
    lab: AdminLab, who: ProducerIdAndEpoch, *, commit: bool = True, version: int = 5, transactional_id: str = "t"
) -> Any:
    fields = {"transactional_id": transactional_id, "producer_id": who.producer_id, "producer_epoch": who.epoch}
    return lab.answer(ApiKey.END_TXN, version, **fields, committed=commit)


def commit_offset(
    lab: AdminLab, who: ProducerIdAndEpoch, offset: int, version: int = 5, **more: Any
) -> list[ErrorCode]:
    topic = {"name": more.pop("topic", "orders")}
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    fields = {
        "transactional_id": "t",
        "group_id": GROUP,
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{**topic, "partitions": [{**partition, "committed_leader_epoch": -1}]}],
    }
    answer = lab.answer(ApiKey.TXN_OFFSET_COMMIT, version, **(fields | more))
    return [each.error_code for one in answer.topics for each in one.partitions]


def fetched(lab: AdminLab, *, stable: bool) -> tuple[int, ErrorCode]:
    group = {"group_id": GROUP, "member_id": None, "member_epoch": -1}
    asked = {"groups": [{**group, "topics": [{"name": "orders", "partition_indexes": [0]}]}], "require_stable": stable}
    (one,) = lab.answer(ApiKey.OFFSET_FETCH, 9, **asked).groups[0].topics[0].partitions
    return one.committed_offset, one.error_code


class TestAddPartitions:
    @pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
    def test_partitions_become_part_of_the_transaction(self, lab: AdminLab, version: int) -> None:
        who = begin(lab)
        assert add(lab, who, 0, 1, version=version) == [ErrorCode.none] * 2
        known = lab.transactions.coordinator.get("t")
        assert known is not None
        assert sorted(known.partitions) == [("orders", 0), ("orders", 1)]

    @pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
    def test_one_that_does_not_exist_keeps_all_out(self, lab: AdminLab, version: int) -> None:
        who = begin(lab)
        assert add(lab, who, 0, 7, version=version) == [
            ErrorCode.operation_not_attempted,
            ErrorCode.unknown_topic_or_partition,
        ]

    @pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
    def test_replaced_instance_is_told_in_words_that_it_knows(self, lab: AdminLab, version: int) -> None:
        old = begin(lab)
        begin(lab)
        fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
        assert add(lab, old, 0, version=version) == [fenced]

    def test_verification_adds_nothing(self, lab: AdminLab) -> None:
        who = begin(lab)
        assert add(lab, who, 0, version=5, verify_only=True) == [ErrorCode.transaction_abortable]
        add(lab, who, 0, version=5)
        assert add(lab, who, 0, 1, version=5, verify_only=True) == [ErrorCode.none, ErrorCode.transaction_abortable]


class TestEnd:
    @pytest.mark.parametrize("version", versions(ApiKey.END_TXN))
    def test_newer_clients_get_their_next_epoch(self, lab: AdminLab, version: int) -> None:
        who = begin(lab)
        add(lab, who, 0, version=3)
        answer = end(lab, who, version=version)
        assert answer.error_code is ErrorCode.none
        if version >= 5:
            assert (answer.producer_id, answer.producer_epoch) == (who.producer_id, who.epoch + 1)

    @pytest.mark.parametrize("version", versions(ApiKey.END_TXN))
    def test_replaced_instance_is_told_in_words_that_it_knows(self, lab: AdminLab, version: int) -> None:
        old = begin(lab)
        begin(lab)
        fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
        assert end(lab, old, version=version).error_code is fenced

    def test_end_before_anything_began_is_refused(self, lab: AdminLab) -> None:
        who = begin(lab)
        assert end(lab, who).error_code is ErrorCode.invalid_txn_state
        assert end(lab, who, version=4, commit=False).error_code is ErrorCode.invalid_txn_state
        assert end(lab, who, transactional_id="other").error_code is ErrorCode.invalid_producer_id_mapping
        assert end(lab, who, transactional_id="").error_code is ErrorCode.invalid_request


class TestOffsets:
    @pytest.mark.parametrize("version", versions(ApiKey.TXN_OFFSET_COMMIT))
    @pytest.mark.parametrize("commit", [True, False])
    def test_they_are_pending_until_the_end(self, lab: AdminLab, version: int, commit: bool) -> None:
        who = begin(lab)
        if version < 5:
            answer = add_offsets(lab, who)
            assert answer is ErrorCode.none
        assert commit_offset(lab, who, 5, version) == [ErrorCode.none]
        assert commit_offset(lab, who, 6, version) == [ErrorCode.none]
        assert fetched(lab, stable=False) == (-1, ErrorCode.none)
        assert fetched(lab, stable=True) == (-1, ErrorCode.unstable_offset_commit)
        assert end(lab, who, commit=commit, version=5 if version == 5 else 3).error_code is ErrorCode.none
        assert fetched(lab, stable=True) == (6 if commit else -1, ErrorCode.none)

    @pytest.mark.parametrize("version", versions(ApiKey.ADD_OFFSETS_TO_TXN))
    def test_group_becomes_part_of_the_transaction(self, lab: AdminLab, version: int) -> None:
        who = begin(lab)
        assert add_offsets(lab, who, version) is ErrorCode.none
        begin_again = ProducerIdAndEpoch(who.producer_id, who.epoch + 1)
        fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
        assert add_offsets(lab, begin_again, version) is fenced

    @pytest.mark.parametrize(
        ("version", "error"), [(3, ErrorCode.invalid_txn_state), (4, ErrorCode.transaction_abortable)]
    )
    def test_group_that_was_not_added_is_refused(self, lab: AdminLab, version: int, error: ErrorCode) -> None:
        assert commit_offset(lab, begin(lab), 5, version) == [error]

    def test_replaced_instance_commits_nothing(self, lab: AdminLab) -> None:
        old = begin(lab)
        begin(lab)
        assert commit_offset(lab, old, 5) == [ErrorCode.invalid_producer_epoch]
        assert commit_offset(lab, old, 5, transactional_id="x") == [ErrorCode.invalid_producer_id_mapping]

    def test_errors_of_the_group_and_the_topic(self, lab: AdminLab) -> None:
        who = begin(lab)
        assert commit_offset(lab, who, 5, topic="nope") == [ErrorCode.unknown_topic_or_partition]
        assert commit_offset(lab, who, 5, generation_id=3) == [ErrorCode.illegal_generation]
        assert commit_offset(lab, who, 5, group_id="") == [ErrorCode.invalid_group_id]

    @pytest.mark.parametrize("commit", [True, False])
    def test_pending_offsets_are_pending_after_a_kill(self, lab: AdminLab, tmp_path: Path, commit: bool) -> None:
        who = begin(lab)
        commit_offset(lab, who, 4)
        who = ProducerIdAndEpoch(who.producer_id, end(lab, who).producer_epoch)
        commit_offset(lab, who, 5)
        with AdminLab(killed_copy(tmp_path / "data", tmp_path / "killed"), **SETTINGS) as again:
            assert fetched(again, stable=False) == (4, ErrorCode.none)
            assert fetched(again, stable=True) == (-1, ErrorCode.unstable_offset_commit)
            assert end(again, who, commit=commit).error_code is ErrorCode.none
            assert fetched(again, stable=True) == (5 if commit else 4, ErrorCode.none)
        with AdminLab(tmp_path / "killed", **SETTINGS) as once_more:
            assert fetched(once_more, stable=True) == (5 if commit else 4, ErrorCode.none)

    def test_plain_commit_in_between_is_the_newer_one_after_a_kill_too(self, lab: AdminLab, tmp_path: Path) -> None:
        who = begin(lab)
        commit_offset(lab, who, 5)
        plain = {"partition_index": 0, "committed_offset": 9, "committed_leader_epoch": -1, "committed_metadata": ""}
        member = {"group_id": GROUP, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        lab.answer(ApiKey.OFFSET_COMMIT, 9, **member, topics=[{"name": "orders", "partitions": [plain]}])
        assert fetched(lab, stable=True)[1] is ErrorCode.unstable_offset_commit
        end(lab, who)
        assert fetched(lab, stable=True) == (9, ErrorCode.none)
        with AdminLab(killed_copy(tmp_path / "data", tmp_path / "killed"), **SETTINGS) as again:
            assert fetched(again, stable=True) == (9, ErrorCode.none)


def add_offsets(lab: AdminLab, who: ProducerIdAndEpoch, version: int = 3) -> ErrorCode:
    fields = {"transactional_id": "t", "producer_id": who.producer_id, "producer_epoch": who.epoch, "group_id": GROUP}
    answer: ErrorCode = lab.answer(ApiKey.ADD_OFFSETS_TO_TXN, version, **fields).error_code
    return answer
