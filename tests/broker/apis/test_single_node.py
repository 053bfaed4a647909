"""Admin requests that are meant for clusters, served by a single broker. tests/compat compares most responses with
Kafka's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.protocol.api_keys import ApiKey
from tests.broker.apis.admin_lab import START_MS, AdminLab, versions

MINUTE_MS = 60_000


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[AdminLab]:
    with AdminLab(tmp_path / "data") as lab:
        lab.topics.create("orders", 3, {})
        yield lab


def errors(answers: Any) -> list[str]:
    return [each.error_code.name for each in answers]


class TestReassignments:
    def move(self, lab: AdminLab, replicas: dict[int, Any], name: str = "orders") -> list[tuple[str, str | None]]:
        partitions = [{"partition_index": index, "replicas": to} for index, to in replicas.items()]
        answer = lab.answer(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            timeout=MINUTE_MS,
            allow_replication_factor_change=True,
            topics=[{"name": name, "partitions": partitions}],
        )
        [topic] = answer.responses
        assert [each.partition_index for each in topic.partitions] == list(replicas)
        return [(each.error_code.name, each.error_message) for each in topic.partitions]

    def test_reassignment_to_the_only_broker_succeeds(self, lab: AdminLab) -> None:
        assert self.move(lab, {0: [1]}) == [("none", None)]

    def test_reassignment_to_unknown_brokers_is_refused(self, lab: AdminLab) -> None:
        for replicas in ([2], [1, 2], [1, 1], []):
            [(code, message)] = self.move(lab, {0: replicas})
            assert code == "invalid_replica_assignment"
            assert message == f"replicas are {replicas}; there is one broker, so they must be [1]"

    def test_message_does_not_repeat_a_long_list_of_brokers(self, lab: AdminLab) -> None:
        [(_, message)] = self.move(lab, {0: list(range(5000))})
        assert len(message or "") < 200

    def test_no_reassignment_can_be_cancelled(self, lab: AdminLab) -> None:
        assert self.move(lab, {0: None}) == [("no_reassignment_in_progress", None)]

    def test_unknown_partitions_are_told(self, lab: AdminLab) -> None:
        assert [code for code, _ in self.move(lab, {0: [1], 3: [1], -1: None})] == [
            "none",
            "unknown_topic_or_partition",
            "unknown_topic_or_partition",
        ]
        assert [code for code, _ in self.move(lab, {0: [1]}, "nope")] == ["unknown_topic_or_partition"]

    def test_no_reassignment_is_listed(self, lab: AdminLab) -> None:
        answer = lab.answer(ApiKey.LIST_PARTITION_REASSIGNMENTS, timeout=MINUTE_MS, topics=None)
        assert (answer.error_code.name, answer.topics) == ("none", ())


@pytest.mark.parametrize("version", versions(ApiKey.ELECT_LEADERS))
def test_no_election_is_needed(lab: AdminLab, version: int) -> None:
    wanted = [{"topic": "orders", "partitions": [0, 0, 7]}]
    answer = lab.answer(
        ApiKey.ELECT_LEADERS, version, election_type=0, topic_partitions=wanted, timeout=MINUTE_MS
    ).replica_election_results
    assert errors(answer[0].partition_result) == ["election_not_needed", "unknown_topic_or_partition"]


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_REPLICA_LOG_DIRS))
def test_replicas_stay_in_the_only_directory(lab: AdminLab, tmp_path: Path, version: int) -> None:
    for path, codes in (
        (tmp_path / "data", ["none", "unknown_topic_or_partition"]),
        (tmp_path, ["log_dir_not_found"] * 2),
    ):
        wanted = [{"path": str(path), "topics": [{"name": "orders", "partitions": [0, 9]}]}]
        [topic] = lab.answer(ApiKey.ALTER_REPLICA_LOG_DIRS, version, dirs=wanted).results
        assert errors(topic.partitions) == codes


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CLIENT_QUOTAS))
def test_setting_a_quota_is_refused(lab: AdminLab, version: int) -> None:
    entity = [{"entity_type": "user", "entity_name": None}]
    entries = [
        {"entity": entity, "ops": [{"key": "consumer_byte_rate", "value": value, "remove": removes}]}
        for value, removes in ((1000.0, False), (0.0, True))
    ]
    refused, removed = lab.answer(ApiKey.ALTER_CLIENT_QUOTAS, version, entries=entries, validate_only=False).entries
    assert (refused.error_code.name, removed.error_code.name) == ("invalid_request", "none")
    assert refused.error_message == (
        "consumer_byte_rate can't be set: this broker has no quotas and throttles no client"
    )
    described = lab.answer(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, components=(), strict=False)
    assert (described.error_code.name, described.entries) == ("none", ())


def test_setting_credentials_is_refused(lab: AdminLab) -> None:
    new = {"name": "somebody", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"password"}
    [result] = lab.answer(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, deletions=(), upsertions=[new]).results
    assert (result.user, result.error_code.name) == ("somebody", "unsupported_sasl_mechanism")
    assert "clients connect without SASL here" in result.error_message
    [result] = lab.answer(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[{"name": "somebody"}]).results
    assert result.error_code.name == "resource_not_found"


@pytest.mark.parametrize("version", versions(ApiKey.UPDATE_FEATURES))
def test_level_of_a_feature_can_not_be_changed(lab: AdminLab, version: int) -> None:
    for level, code in ((2, "none"), (1, "invalid_update_version"), (0, "invalid_update_version")):
        update = {
            "feature": "transaction.version",
            "max_version_level": level,
            "upgrade_type": 3,
            "allow_downgrade": True,
        }
        answer = lab.answer(
            ApiKey.UPDATE_FEATURES, version, timeout=MINUTE_MS, feature_updates=[update], validate_only=False
        )
        assert answer.error_code.name == code
        assert (answer.error_message is None) == (code == "none")


def test_only_broker_can_not_be_unregistered(lab: AdminLab) -> None:
    itself, other = (lab.answer(ApiKey.UNREGISTER_BROKER, broker_id=number) for number in (1, 2))
    assert (itself.error_code.name, other.error_code.name) == ("invalid_request", "broker_id_not_registered")
    assert itself.error_message == "broker 1 can't be unregistered: it is the only broker; stop it instead"


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_QUORUM))
def test_broker_is_its_own_quorum(lab: AdminLab, version: int) -> None:
    wanted = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = lab.answer(ApiKey.DESCRIBE_QUORUM, version, topics=wanted)
    [quorum] = answer.topics[0].partitions
    assert (quorum.error_code.name, quorum.leader_id, quorum.observers) == ("none", 1, ())
    assert [voter.replica_id for voter in quorum.current_voters] == [1]
    if version >= 1:
        assert quorum.current_voters[0].last_fetch_timestamp == START_MS
    if version >= 2:
        assert [(node.node_id, node.listeners[0].host) for node in answer.nodes] == [(1, "broker.example")]


@pytest.mark.parametrize(
    ("types", "found"),
    [
        ([], [(4, "1"), (2, "orders"), (32, "readers")]),
        ([2], [(2, "orders")]),
        ([4, 8, 16], [(4, "1")]),
        ([32], [(32, "readers")]),
        ([2, 3], []),
    ],
)
def test_resources_that_have_settings_are_listed(lab: AdminLab, types: list[int], found: list[tuple[int, str]]) -> None:
    lab.group_settings.change({"readers": {"consumer.session.timeout.ms": "50000"}})
    answer = lab.answer(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=types)
    assert [(each.resource_type, each.resource_name) for each in answer.config_resources] == found
    assert answer.error_code.name == ("unsupported_version" if 3 in types else "none")


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_ACLS))
def test_there_is_no_authorizer(lab: AdminLab, version: int) -> None:
    match = {"resource_type_filter": 2, "resource_name_filter": "orders", "pattern_type_filter": 3}
    match |= {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}
    described = lab.answer(ApiKey.DESCRIBE_ACLS, version, **match)
    assert (described.error_code.name, described.resources) == ("security_disabled", ())
    deleted = lab.answer(ApiKey.DELETE_ACLS, version, filters=[match, match]).filter_results
    assert [(each.error_code.name, each.error_message) for each in deleted] == [
        ("security_disabled", "No Authorizer is configured.")
    ] * 2
