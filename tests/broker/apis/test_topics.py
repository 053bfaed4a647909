from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.protocol.api_keys import ApiKey
from tests.broker.apis.admin_lab import AdminLab, versions
from tests.broker.metadata.registry_lab import QuickDisk

MINUTE_MS = 60_000


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[AdminLab]:
    with AdminLab(tmp_path, num_partitions=3, stratalog_max_partitions=50) as lab:
        yield lab


def topic(name: str, partitions: int = 1, factor: int = 1, **fields: Any) -> dict[str, Any]:
    settings = [{"name": key, "value": value} for key, value in fields.pop("settings", {}).items()]
    wanted = {"name": name, "num_partitions": partitions, "replication_factor": factor, "configs": settings}
    return {"assignments": (), **wanted, **fields}


def assigned(*replicas: tuple[int, tuple[int, ...]]) -> list[dict[str, Any]]:
    return [{"partition_index": index, "broker_ids": brokers} for index, brokers in replicas]


def create(
    lab: AdminLab,
    *topics: dict[str, Any],
    version: int | None = None,
    validate_only: bool = False,
    timeout: int = MINUTE_MS,
) -> list[Any]:
    fields = {"topics": topics, "timeout": timeout, "validate_only": validate_only}
    return list(lab.answer(ApiKey.CREATE_TOPICS, version, **fields).topics)


def only(results: list[Any]) -> Any:
    [result] = results
    return result


class TestCreateTopics:
    @pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
    def test_topic_exists_when_the_broker_responds(self, lab: AdminLab, version: int) -> None:
        result = only(create(lab, topic("orders", 2, settings={"retention.ms": "1000"}), version=version))
        created = lab.topics.get("orders")
        assert created is not None
        assert (created.partition_count, created.settings) == (2, {"retention.ms": "1000"})
        assert (result.name, result.error_code, result.error_message) == ("orders", ErrorCode.none, None)
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (2, 1)
            assert [(config.name, config.value) for config in result.configs] == [("retention.ms", "1000")]
        if version >= 7:
            assert result.topic_id == created.id

    @pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
    def test_failure_is_reported_in_every_version(self, lab: AdminLab, version: int) -> None:
        result = only(create(lab, topic("a/b"), version=version))
        assert result.error_code is ErrorCode.invalid_topic_exception
        assert "'a/b'" in result.error_message

    def test_defaults_are_the_brokers(self, lab: AdminLab) -> None:
        result = only(create(lab, topic("orders", -1, -1)))
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert len(lab.topics.partitions("orders")) == 3

    def test_request_that_only_validates_creates_nothing(self, lab: AdminLab, tmp_path: Path) -> None:
        good, bad = create(lab, topic("orders", 2), topic("bad", 0), validate_only=True)
        assert (good.error_code, good.num_partitions, good.topic_id) == (ErrorCode.none, 2, None)
        assert bad.error_code is ErrorCode.invalid_partitions
        assert lab.topics.all() == []
        assert lab.directory.partitions() == []
        assert lab.background_calls == 0

    def test_request_that_only_validates_counts_all_its_partitions(self, lab: AdminLab) -> None:
        results = create(lab, topic("a", 30), topic("b", 30), topic("c", 20), validate_only=True)
        assert [result.error_code.name for result in results] == ["none", "invalid_partitions", "none"]

    @pytest.mark.parametrize("factor", [0, -2, 2, 3, 32767])
    def test_invalid_replication_factors_are_refused(self, lab: AdminLab, factor: int) -> None:
        result = only(create(lab, topic("orders", 1, factor)))
        assert result.error_code is ErrorCode.invalid_replication_factor
        assert f"replication factor is {factor}; it must be 1" in result.error_message
        assert lab.topics.all() == []

    @pytest.mark.parametrize("count", [0, -2, -(2**31), 51, 2**31 - 1])
    def test_invalid_numbers_of_partitions_are_refused_at_once(self, lab: AdminLab, count: int) -> None:
        result = only(create(lab, topic("orders", count)))
        assert result.error_code is ErrorCode.invalid_partitions
        assert str(count) in result.error_message
        assert lab.background_calls == 0
        assert lab.topics.all() == []

    @pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a\0b", "x" * 250, "ünïcödé", "a b", "😀" * 5000])
    def test_invalid_names_are_refused(self, lab: AdminLab, tmp_path: Path, name: str) -> None:
        result = only(create(lab, topic(name)))
        assert (result.name, result.error_code) == (name, ErrorCode.invalid_topic_exception)
        assert len(result.error_message) < 1100
        assert lab.background_calls == 0

    def test_existing_topic_is_refused_and_kept(self, lab: AdminLab) -> None:
        create(lab, topic("orders", 1))
        result = only(create(lab, topic("orders", 5)))
        assert result.error_code is ErrorCode.topic_already_exists
        assert len(lab.topics.partitions("orders")) == 1

    def test_topic_with_the_same_metric_name_is_refused(self, lab: AdminLab) -> None:
        dotted, underscored = create(lab, topic("a.b"), topic("a_b"))
        assert (dotted.error_code, underscored.error_code) == (ErrorCode.none, ErrorCode.invalid_topic_exception)

    def test_repeated_name_is_refused_once_and_the_others_are_created(self, lab: AdminLab) -> None:
        twice, other = create(lab, topic("twice"), topic("other"), topic("twice", 2))
        assert (twice.name, twice.error_code) == ("twice", ErrorCode.invalid_request)
        assert (other.name, other.error_code) == ("other", ErrorCode.none)
        assert [each.name for each in lab.topics.all()] == ["other"]

    def test_bad_topic_does_not_stop_the_good_ones(self, lab: AdminLab) -> None:
        results = create(lab, topic("a"), topic(".."), topic("b", settings={"x": "y"}), topic("c"))
        assert [result.error_code.name for result in results] == [
            "none",
            "invalid_topic_exception",
            "invalid_config",
            "none",
        ]
        assert [each.name for each in lab.topics.all()] == ["a", "c"]

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"retention.ms": "soon"}, "retention.ms is 'soon'"),
            ({"retention.mss": "1"}, "did you mean retention.ms"),
            ({"cleanup.policy": "compacted"}, "it must be one of: delete, compact"),
            ({"remote.storage.enable": "true"}, "tiered storage is not available"),
            ({"producer.id.expiration.ms": "1"}, "not a setting of a topic"),
            ({"retention.ms": None}, "retention.ms has no value"),
            ({"retention.ms": "9" * 100_000}, "retention.ms is '999"),
        ],
    )
    def test_invalid_settings_are_refused_by_name(
        self, lab: AdminLab, settings: dict[str, str | None], message: str
    ) -> None:
        result = only(create(lab, topic("orders", settings=settings)))
        assert result.error_code is ErrorCode.invalid_config
        assert message in result.error_message
        assert len(result.error_message) < 1100
        assert lab.topics.all() == []

    def test_long_message_fits_an_old_version(self, lab: AdminLab) -> None:
        result = only(create(lab, topic("orders", settings={"retention.ms": "\0" * 30_000}), version=2))
        assert result.error_code is ErrorCode.invalid_config

    def test_last_value_of_a_repeated_setting_counts(self, lab: AdminLab) -> None:
        wanted = topic("orders")
        wanted["configs"] = [{"name": "retention.ms", "value": value} for value in ("1", "2")]
        assert only(create(lab, wanted)).error_code is ErrorCode.none
        assert lab.topics.partitions("orders")[0].log.config.retention_ms == 2

    def test_assignments_to_this_broker_make_their_partitions(self, lab: AdminLab) -> None:
        assignments = assigned((1, (1,)), (0, (1,)))
        assert only(create(lab, topic("orders", -1, -1, assignments=assignments))).num_partitions == 2
        assert len(lab.topics.partitions("orders")) == 2

    @pytest.mark.parametrize(
        "assignments",
        [
            assigned((0, (2,))),
            assigned((0, (1, 2))),
            assigned((0, (1, 1))),
            assigned((0, ())),
            assigned((1, (1,))),
            assigned((0, (1,)), (2, (1,))),
            assigned((0, (1,)), (0, (1,))),
            assigned((-1, (1,))),
            assigned((2**31 - 1, (1,))),
            assigned((0, tuple(range(10_000)))),
        ],
    )
    def test_invalid_assignments_are_refused(self, lab: AdminLab, assignments: list[dict[str, Any]]) -> None:
        result = only(create(lab, topic("orders", -1, -1, assignments=assignments)))
        assert result.error_code is ErrorCode.invalid_replica_assignment
        assert len(result.error_message) < 500
        assert lab.topics.all() == []

    @pytest.mark.parametrize(("count", "factor"), [(1, -1), (-1, 1), (1, 1)])
    def test_assignments_and_numbers_at_once_are_refused(self, lab: AdminLab, count: int, factor: int) -> None:
        result = only(create(lab, topic("orders", count, factor, assignments=assigned((0, (1,))))))
        assert result.error_code is ErrorCode.invalid_request

    def test_internal_names_are_allowed_but_not_the_controllers_log(self, lab: AdminLab) -> None:
        offsets, metadata = create(lab, topic("__consumer_offsets"), topic("__cluster_metadata"))
        assert offsets.error_code is ErrorCode.none
        assert metadata.error_code is ErrorCode.invalid_request

    def test_many_topics_stop_at_the_limit(self, lab: AdminLab) -> None:
        results = create(lab, *(topic(f"t{number}") for number in range(300)))
        assert [result.error_code is ErrorCode.none for result in results] == [True] * 50 + [False] * 250
        assert {result.error_code for result in results[50:]} == {ErrorCode.invalid_partitions}

    def test_others_are_served_while_very_many_topics_are_refused(self, lab: AdminLab) -> None:
        turns = 0

        async def run() -> None:
            async def count_turns() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            beside = asyncio.ensure_future(count_turns())
            topics = [topic(f"{number}/") for number in range(5000)]
            await lab.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=0, validate_only=False)
            beside.cancel()

        asyncio.run(run())
        assert turns >= 50

    def test_request_whose_timeout_ended_changes_nothing(self, lab: AdminLab) -> None:
        lab.before_background = lambda: lab.clock.advance(1000)
        results = create(lab, topic("a"), topic(".."), topic("c"), timeout=1000)
        assert [result.error_code.name for result in results] == [
            "request_timed_out",
            "invalid_topic_exception",
            "request_timed_out",
        ]
        assert lab.topics.all() == []
        assert lab.directory.partitions() == []

    def test_request_that_began_in_time_is_completed(self, tmp_path: Path) -> None:
        with AdminLab(tmp_path) as lab:
            lab.before_background = lambda: lab.clock.advance(600)
            results = create(lab, *(topic(f"t{number}", 100) for number in range(5)), timeout=1000)
            assert lab.background_calls > 1
            assert {result.error_code.name for result in results} == {"none"}

    @pytest.mark.parametrize("timeout", [0, -1, -(2**31), 2**31 - 1])
    def test_any_timeout_is_accepted(self, lab: AdminLab, timeout: int) -> None:
        assert only(create(lab, topic("orders"), timeout=timeout)).error_code is ErrorCode.none

    def test_slower_of_two_clients_gets_topic_exists(self, lab: AdminLab) -> None:
        lab.before_background = lambda: lab.topics.get("orders") or lab.topics.create("orders", 7, {})
        assert only(create(lab, topic("orders"))).error_code is ErrorCode.topic_already_exists
        assert len(lab.topics.partitions("orders")) == 7

    def test_full_disk_gets_a_storage_error_and_leaves_nothing(self, tmp_path: Path) -> None:
        class FullDisk(QuickDisk):
            def make_directory(self, path: Path) -> None:
                if path.name == "orders-1":
                    raise OSError(28, "No space left on device")
                super().make_directory(path)

        with AdminLab(tmp_path, FullDisk()) as lab:
            result = only(create(lab, topic("orders", 3)))
            assert result.error_code is ErrorCode.kafka_storage_error
            assert "No space left on device" in result.error_message
            assert lab.topics.all() == []
            assert lab.directory.partitions() == []


class TestDeleteTopics:
    @pytest.mark.parametrize("version", range(1, 6))
    def test_topics_are_deleted_by_name(self, lab: AdminLab, version: int) -> None:
        create(lab, topic("orders"), topic("events"))
        answer = lab.answer(ApiKey.DELETE_TOPICS, version, topic_names=["orders", "nope"], timeout=MINUTE_MS)
        assert [(each.name, each.error_code) for each in answer.responses] == [
            ("orders", ErrorCode.none),
            ("nope", ErrorCode.unknown_topic_or_partition),
        ]
        assert [each.name for each in lab.topics.all()] == ["events"]

    def test_topics_are_deleted_by_name_or_topic_id(self, lab: AdminLab) -> None:
        create(lab, topic("a"), topic("b"), topic("c"))
        ids = {each.name: each.id for each in lab.topics.all()}
        unknown = uuid.uuid4()
        wanted = [
            {"name": "a", "topic_id": None},
            {"name": None, "topic_id": ids["b"]},
            {"name": None, "topic_id": unknown},
            {"name": "nope", "topic_id": None},
            {"name": None, "topic_id": None},
            {"name": "c", "topic_id": ids["c"]},
        ]
        responses = lab.answer(ApiKey.DELETE_TOPICS, topics=wanted, timeout=MINUTE_MS).responses
        assert [(each.name, each.topic_id, each.error_code.name) for each in responses] == [
            ("a", ids["a"], "none"),
            ("b", ids["b"], "none"),
            (None, unknown, "unknown_topic_id"),
            ("nope", None, "unknown_topic_or_partition"),
            (None, None, "invalid_request"),
            ("c", ids["c"], "invalid_request"),
        ]
        assert all((each.error_message is None) == (each.error_code is ErrorCode.none) for each in responses)
        assert [each.name for each in lab.topics.all()] == ["c"]

    def test_repeated_topic_is_not_deleted(self, lab: AdminLab) -> None:
        create(lab, topic("a"), topic("b"))
        answer = lab.answer(ApiKey.DELETE_TOPICS, 5, topic_names=["a", "b", "a"], timeout=MINUTE_MS)
        assert [(each.name, each.error_code.name) for each in answer.responses] == [
            ("a", "invalid_request"),
            ("b", "none"),
        ]
        assert [each.name for each in lab.topics.all()] == ["a"]

    def test_internal_topic_is_neither_deleted_nor_grown(self, lab: AdminLab) -> None:
        create(lab, topic("__consumer_offsets"))
        deleted = lab.answer(ApiKey.DELETE_TOPICS, 5, topic_names=["__consumer_offsets"], timeout=MINUTE_MS)
        assert [each.error_code.name for each in deleted.responses] == ["invalid_topic_exception"]
        wanted = [{"name": "__consumer_offsets", "count": 60, "assignments": None}]
        grown = lab.answer(ApiKey.CREATE_PARTITIONS, topics=wanted, timeout=MINUTE_MS, validate_only=False)
        assert [each.error_code.name for each in grown.results] == ["invalid_topic_exception"]
        assert len(lab.topics.partitions("__consumer_offsets")) == 1

    def test_topic_by_name_and_by_id_at_once_is_deleted_once(self, lab: AdminLab) -> None:
        create(lab, topic("a"))
        found = lab.topics.get("a")
        assert found is not None
        wanted = [{"name": "a", "topic_id": None}, {"name": None, "topic_id": found.id}]
        responses = lab.answer(ApiKey.DELETE_TOPICS, topics=wanted, timeout=MINUTE_MS).responses
        assert [each.error_code.name for each in responses] == ["none", "unknown_topic_id"]

    @pytest.mark.parametrize(("version", "code"), [(1, "invalid_request"), (3, "topic_deletion_disabled")])
    def test_nothing_is_deleted_if_deletion_is_disabled(self, tmp_path: Path, version: int, code: str) -> None:
        with AdminLab(tmp_path, delete_topic_enable=False) as lab:
            lab.topics.create("orders", 1, {})
            answer = lab.answer(ApiKey.DELETE_TOPICS, version, topic_names=["orders", "nope"], timeout=MINUTE_MS)
            assert [each.error_code.name for each in answer.responses] == [code, code]
            assert lab.topics.get("orders") is not None

    def test_new_topic_of_the_same_name_is_not_deleted(self, lab: AdminLab) -> None:
        old = lab.topics.create("orders", 1, {})

        def replace() -> None:
            lab.topics.delete("orders")
            lab.topics.create("orders", 2, {})

        lab.before_background = replace
        wanted = [{"name": None, "topic_id": old.id}]
        [response] = lab.answer(ApiKey.DELETE_TOPICS, topics=wanted, timeout=MINUTE_MS).responses
        assert response.error_code is ErrorCode.unknown_topic_or_partition
        assert len(lab.topics.partitions("orders")) == 2

    def test_request_whose_timeout_ended_deletes_nothing(self, lab: AdminLab) -> None:
        create(lab, topic("a"), topic("b"))
        lab.before_background = lambda: lab.clock.advance(1000)
        answer = lab.answer(ApiKey.DELETE_TOPICS, 5, topic_names=["a", "b"], timeout=1000)
        assert [each.error_code.name for each in answer.responses] == ["request_timed_out", "request_timed_out"]
        assert [each.name for each in lab.topics.all()] == ["a", "b"]


class TestCreatePartitions:
    def grow(
        self, lab: AdminLab, *topics: dict[str, Any], version: int | None = None, validate_only: bool = False
    ) -> list[Any]:
        wanted = [{"assignments": None, **each} for each in topics]
        fields = {"topics": wanted, "timeout": MINUTE_MS, "validate_only": validate_only}
        return list(lab.answer(ApiKey.CREATE_PARTITIONS, version, **fields).results)

    @pytest.mark.parametrize("version", versions(ApiKey.CREATE_PARTITIONS))
    def test_partitions_exist_when_the_broker_responds(self, lab: AdminLab, version: int) -> None:
        create(lab, topic("orders", 2))
        good, bad = self.grow(lab, {"name": "orders", "count": 5}, {"name": "nope", "count": 5}, version=version)
        assert (good.name, good.error_code, good.error_message) == ("orders", ErrorCode.none, None)
        assert (bad.name, bad.error_code) == ("nope", ErrorCode.unknown_topic_or_partition)
        assert len(lab.topics.partitions("orders")) == 5

    @pytest.mark.parametrize("count", [2, 1, 0, -1, -(2**31), 51, 2**31 - 1])
    def test_invalid_numbers_of_new_partitions_are_refused(self, lab: AdminLab, count: int) -> None:
        create(lab, topic("orders", 2))
        result = only(self.grow(lab, {"name": "orders", "count": count}))
        assert result.error_code is ErrorCode.invalid_partitions
        assert len(lab.topics.partitions("orders")) == 2

    def test_request_that_only_validates_creates_nothing(self, lab: AdminLab) -> None:
        create(lab, topic("orders", 2))
        assert only(self.grow(lab, {"name": "orders", "count": 3}, validate_only=True)).error_code is ErrorCode.none
        assert len(lab.topics.partitions("orders")) == 2
        bad = only(self.grow(lab, {"name": "orders", "count": 2}, validate_only=True))
        assert bad.error_code is ErrorCode.invalid_partitions

    def test_assignments_must_be_one_for_each_new_partition_to_this_broker(self, lab: AdminLab) -> None:
        create(lab, topic("orders", 1))
        here, elsewhere = {"broker_ids": (1,)}, {"broker_ids": (2,)}
        for assignments in ([], [here], [here, here, here], [here, elsewhere], [here, {"broker_ids": ()}]):
            result = only(self.grow(lab, {"name": "orders", "count": 3, "assignments": assignments}))
            assert result.error_code is ErrorCode.invalid_replica_assignment
        assert len(lab.topics.partitions("orders")) == 1
        result = only(self.grow(lab, {"name": "orders", "count": 3, "assignments": [here, here]}))
        assert result.error_code is ErrorCode.none
        assert len(lab.topics.partitions("orders")) == 3

    def test_repeated_topic_is_refused(self, lab: AdminLab) -> None:
        create(lab, topic("a"), topic("b"))
        wanted = [{"name": name, "count": 2} for name in ("a", "b", "a")]
        assert [(each.name, each.error_code.name) for each in self.grow(lab, *wanted)] == [
            ("a", "invalid_request"),
            ("b", "none"),
        ]
        assert len(lab.topics.partitions("a")) == 1
