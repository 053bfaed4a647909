from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratalog.broker.apis.configs import Resource, SettingOperation
from stratalog.broker.background import finish
from stratalog.broker.metadata.topics import RequestedTopic
from stratalog.errors import MessageTooLargeError, StorageError
from stratalog.protocol.api_keys import ApiKey
from stratalog.storage.disk import Disk
from tests.broker.apis.admin_lab import START_MS, versions
from tests.broker.apis.config_lab import ConfigLab
from tests.broker.metadata.registry_lab import CountingDisk
from tests.golden.settings import settings_of_kafka
from tests.storage.hand_made import batch_of

SET, DELETE, APPEND, SUBTRACT = SettingOperation
TOPIC, BROKER, GROUP = Resource.TOPIC, Resource.BROKER, Resource.GROUP
NONE, UNKNOWN_TOPIC, INVALID_TOPIC, INVALID_CONFIG, INVALID_REQUEST, STORAGE = 0, 3, 17, 40, 42, 56
DEFAULT, GIVEN, CLUSTER, OF_BROKER, OF_TOPIC, OF_GROUP = 5, 4, 3, 2, 1, 8


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ConfigLab]:
    lab = ConfigLab(tmp_path)
    yield lab
    lab.close()


# Showing


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CONFIGS))
def test_topic_shows_the_settings_that_kafkas_topics_have(lab: ConfigLab, version: int) -> None:
    shown = lab.describe(version=version, include_synonyms=False)
    assert [one.name for one in shown.configs] == list(settings_of_kafka("topic"))
    assert all(one.synonyms == () and not one.is_sensitive for one in shown.configs)
    if version >= 3:
        types = {one.name: one.config_type for one in shown.configs}
        assert (types["cleanup.policy"], types["preallocate"], types["retention.ms"]) == (7, 1, 5)
        assert {one.documentation for one in shown.configs} == {None}


def test_value_is_shown_with_its_sources(lab: ConfigLab) -> None:
    assert lab.entry("max.message.bytes") == ("1048588", DEFAULT, [("message.max.bytes", "1048588", DEFAULT)])
    assert lab.entry("segment.index.bytes")[1:] == (
        GIVEN,
        [("log.index.size.max.bytes", "1024", GIVEN), ("log.index.size.max.bytes", "10485760", DEFAULT)],
    )
    lab.alter(("max.message.bytes", SET, "5000"))
    lab.alter(("message.max.bytes", SET, "6000"), kind=BROKER, name="1")
    lab.alter(("message.max.bytes", SET, "7000"), kind=BROKER, name="")
    assert lab.entry("max.message.bytes") == (
        "5000",
        OF_TOPIC,
        [
            ("max.message.bytes", "5000", OF_TOPIC),
            ("message.max.bytes", "6000", OF_BROKER),
            ("message.max.bytes", "7000", CLUSTER),
            ("message.max.bytes", "1048588", DEFAULT),
        ],
    )


def test_retention_hours_are_shown_as_the_source_of_retention_ms(tmp_path: Path) -> None:
    lab = ConfigLab(tmp_path, log_retention_hours=2)
    assert lab.entry("retention.ms") == (
        "7200000",
        GIVEN,
        [("log.retention.hours", "2", GIVEN), ("log.retention.hours", "168", DEFAULT)],
    )
    lab.close()


def test_settings_that_can_not_be_set_are_read_only(lab: ConfigLab) -> None:
    shown = {one.name: one for one in lab.describe(include_documentation=True).configs}
    assert (shown["remote.storage.enable"].value, shown["remote.storage.enable"].read_only) == ("false", True)
    assert "tiered storage is not available yet" in shown["remote.storage.enable"].documentation
    assert (shown["retention.ms"].read_only, bool(shown["retention.ms"].documentation)) == (False, True)


@pytest.mark.parametrize("keys", [None, []])
def test_request_without_names_gets_all_settings(lab: ConfigLab, keys: list[str] | None) -> None:
    assert len(lab.describe(keys=keys).configs) == len(settings_of_kafka("topic"))


def test_name_that_does_not_exist_is_not_shown(lab: ConfigLab) -> None:
    shown = lab.describe(keys=["retention.ms", "nope"])
    assert (shown.error_code, [one.name for one in shown.configs]) == (NONE, ["retention.ms"])


def test_broker_shows_its_settings(lab: ConfigLab) -> None:
    shown = {one.name: one for one in lab.describe(BROKER, "1").configs}
    assert set(shown) == {*lab.config.all_settings(), "listeners", "log.dirs"}
    assert (shown["log.dirs"].value, shown["log.dirs"].read_only) == ("/data", True)
    assert (shown["num.partitions"].value, shown["num.partitions"].read_only) == ("1", True)
    assert (shown["log.retention.ms"].value, shown["log.retention.ms"].read_only) == (None, False)
    assert (shown["auto.create.topics.enable"].value, shown["auto.create.topics.enable"].config_type) == ("true", 1)
    assert lab.entry("log.index.size.max.bytes", BROKER, "1")[1] == GIVEN


def test_resource_of_all_brokers_shows_changed_settings_only(lab: ConfigLab) -> None:
    assert lab.describe(BROKER, "").configs == ()
    lab.alter(("max.connections", SET, "9"), kind=BROKER, name="")
    lab.alter(("max.connections.per.ip", SET, "9000"), kind=BROKER, name="1")
    assert [one.name for one in lab.describe(BROKER, "").configs] == ["max.connections"]
    assert lab.entry("max.connections", BROKER, "") == ("9", CLUSTER, [("max.connections", "9", CLUSTER)])


def test_advertised_address_is_shown_if_it_is_not_set(lab: ConfigLab, tmp_path: Path) -> None:
    assert lab.entry("advertised.listeners", BROKER, "1") == ("PLAINTEXT://broker.example:9092", DEFAULT, [])
    told = ConfigLab(tmp_path / "told", advertised_listeners="PLAINTEXT://other.example:1")
    given = ("advertised.listeners", "PLAINTEXT://other.example:1", GIVEN)
    assert told.entry("advertised.listeners", BROKER, "1") == (given[1], GIVEN, [given])
    told.close()


def test_result_without_an_error_has_an_empty_message_as_in_kafka(lab: ConfigLab) -> None:
    assert [lab.describe(kind, name).error_message for kind, name in ((TOPIC, "events"), (BROKER, "1"))] == ["", ""]


def test_setting_that_an_older_broker_allowed_can_be_deleted(lab: ConfigLab) -> None:
    lab.live.change(broker={"fetch.max.bytes": "9000", "max.connections": "9"})
    assert lab.alter(("fetch.max.bytes", DELETE, None), kind=BROKER, name="1") == (NONE, None)
    assert lab.live.layers.broker == {"max.connections": "9"}


def test_group_shows_the_defaults_of_the_broker(lab: ConfigLab) -> None:
    assert lab.entry("consumer.session.timeout.ms", GROUP, "mine") == (
        "45000",
        DEFAULT,
        [("group.consumer.session.timeout.ms", "45000", DEFAULT)],
    )
    assert not any(one.read_only for one in lab.describe(GROUP, "mine").configs)


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "nope", UNKNOWN_TOPIC, "topic 'nope' does not exist"),
        (TOPIC, "a/b", INVALID_TOPIC, "a/b"),
        (TOPIC, "", INVALID_REQUEST, "the topic's name is empty"),
        (BROKER, "7", INVALID_REQUEST, "broker is '7'; it must be 1, this broker's node.id, or empty for all"),
        (BROKER, "x", INVALID_REQUEST, "broker is 'x'"),
        (GROUP, "", INVALID_REQUEST, "group's name is empty"),
        (8, "1", INVALID_REQUEST, "can't read or change the broker's loggers"),
        (16, "x", INVALID_REQUEST, "does not collect metrics of clients"),
        (99, "x", INVALID_REQUEST, "resource type is 99"),
    ],
)
def test_invalid_resource_is_refused(lab: ConfigLab, kind: int, name: str, code: int, message: str) -> None:
    shown = lab.describe(kind, name)
    assert (shown.error_code, shown.configs) == (code, ())
    assert message in shown.error_message
    altered, said = lab.alter(("retention.ms", SET, "5"), kind=kind, name=name)
    if (kind, name) != (BROKER, ""):
        assert (altered, message in (said or "")) == (code, True)


def test_each_resource_of_a_request_has_its_own_error(lab: ConfigLab) -> None:
    wanted = [(TOPIC, "nope"), (TOPIC, "events"), (BROKER, "1"), (TOPIC, "twice"), (TOPIC, "twice")]
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in wanted]
    shown = lab.answer(ApiKey.DESCRIBE_CONFIGS, resources=resources, include_synonyms=False).results
    assert [(one.resource_type, one.resource_name, int(one.error_code)) for one in shown] == [
        (TOPIC, "nope", UNKNOWN_TOPIC),
        (TOPIC, "events", NONE),
        (BROKER, "1", NONE),
        (TOPIC, "twice", INVALID_REQUEST),
        (TOPIC, "twice", INVALID_REQUEST),
    ]


def test_new_topic_is_described_as_it_will_be(lab: ConfigLab) -> None:
    entries = {one["name"]: one for one in lab.apis.describe_new_topic({"retention.ms": "7"})}
    assert (entries["retention.ms"]["value"], entries["retention.ms"]["config_source"]) == ("7", OF_TOPIC)
    assert (entries["segment.ms"]["value"], entries["segment.ms"]["config_source"]) == ("604800000", DEFAULT)


# Changing topics


@pytest.mark.parametrize("version", versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_change_applies_to_every_partition_when_the_broker_responds(lab: ConfigLab, version: int) -> None:
    assert lab.alter(("max.message.bytes", SET, "200"), version=version) == (NONE, None)
    for partition in lab.topics.partitions("events"):
        with pytest.raises(MessageTooLargeError):
            partition.log.append(batch_of(START_MS, size=300))
    lab.alter(("max.message.bytes", DELETE, None))
    for partition in lab.topics.partitions("events"):
        partition.log.append(batch_of(START_MS, size=300))
    assert lab.own == {}


def test_change_survives_a_restart(tmp_path: Path) -> None:
    lab = ConfigLab(tmp_path)
    lab.alter(("retention.ms", SET, "5"), ("segment.bytes", SET, "4096"))
    lab.close()
    lab = ConfigLab(tmp_path)
    assert lab.own == {"retention.ms": "5", "segment.bytes": "4096"}
    assert lab.topics.partitions("events")[1].log.config.retention_ms == 5
    lab.close()


def test_incremental_change_keeps_other_settings(lab: ConfigLab) -> None:
    lab.alter(("retention.ms", SET, "5"), ("segment.bytes", SET, "4096"))
    lab.alter(("retention.ms", SET, "6"), ("flush.ms", SET, "7"))
    lab.alter(("segment.bytes", DELETE, None), ("index.interval.bytes", DELETE, None))
    assert lab.own == {"retention.ms": "6", "flush.ms": "7"}


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CONFIGS))
def test_full_change_replaces_all_own_settings_of_a_topic(lab: ConfigLab, version: int) -> None:
    lab.alter(("retention.ms", SET, "5"), ("segment.bytes", SET, "4096"))
    assert lab.replace({"flush.ms": "7"}, version=version) == (NONE, None)
    assert lab.own == {"flush.ms": "7"}
    assert lab.topics.partitions("events")[0].log.config.retention_ms == 604_800_000


def test_items_are_added_to_and_removed_from_lists(lab: ConfigLab) -> None:
    assert lab.alter(("cleanup.policy", SUBTRACT, "compact")) == (NONE, None)
    assert lab.own == {"cleanup.policy": "delete"}
    lab.alter(("cleanup.policy", SUBTRACT, "delete"))
    assert lab.own == {"cleanup.policy": ""}
    lab.alter(("cleanup.policy", APPEND, "delete"))
    lab.alter(("cleanup.policy", APPEND, "delete"))
    assert lab.own == {"cleanup.policy": "delete"}
    assert lab.alter(("cleanup.policy", APPEND, "compacted"))[0] == INVALID_CONFIG


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            ("retention.mss", SET, "5"),
            INVALID_CONFIG,
            "'retention.mss' is not a setting of a topic; did you mean retention",
        ),
        (("retention.mss", DELETE, None), INVALID_CONFIG, "did you mean retention"),
        (("retention.ms", SET, "abc"), INVALID_CONFIG, "retention.ms is 'abc'; it must be a whole number"),
        (("retention.ms", SET, "-2"), INVALID_CONFIG, "retention.ms is -2; it must lie between"),
        (("retention.ms", SET, None), INVALID_REQUEST, "retention.ms has no value; DELETE it for the default"),
        (
            ("retention.ms", APPEND, "5"),
            INVALID_CONFIG,
            "retention.ms is not a list: it can't be changed with APPEND; use SET",
        ),
        (("retention.ms", 4, "5"), INVALID_REQUEST, "retention.ms: operation is 4; it must be 0 to 3"),
        (("retention.ms", -1, "5"), INVALID_REQUEST, "retention.ms: operation is -1"),
        (
            ("cleanup.policy", SET, "compacted"),
            INVALID_CONFIG,
            "cleanup.policy is 'compacted'; it must be one of: delete, compact",
        ),
        (("remote.storage.enable", SET, "true"), INVALID_CONFIG, "remote.storage.enable can't be set: tiered storage"),
        (("producer.id.expiration.ms", SET, "5"), INVALID_CONFIG, "is not a setting of a topic"),
        (("max.open.segments", SET, "5"), INVALID_CONFIG, "'max.open.segments' is not a setting of a topic"),
    ],
)
def test_invalid_change_changes_nothing(
    lab: ConfigLab, change: tuple[str, int, str | None], code: int, message: str
) -> None:
    lab.alter(("flush.ms", SET, "7"))
    altered, said = lab.alter(("flush.ms", SET, "8"), change)
    assert (altered, message in (said or "")) == (code, True)
    assert lab.own == {"flush.ms": "7"}


@pytest.mark.parametrize(
    ("values", "code", "message"),
    [
        ({"retention.ms": None}, INVALID_REQUEST, "retention.ms has no value"),
        ({"foo": "1"}, INVALID_CONFIG, "'foo' is not a setting of a topic"),
        ({"retention.ms": "x"}, INVALID_CONFIG, "retention.ms is 'x'"),
    ],
)
def test_invalid_full_change_changes_nothing(
    lab: ConfigLab, values: dict[str, str | None], code: int, message: str
) -> None:
    lab.alter(("flush.ms", SET, "7"))
    altered, said = lab.replace(values)
    assert (altered, message in (said or "")) == (code, True)
    assert lab.own == {"flush.ms": "7"}


def test_repeated_setting_is_refused(lab: ConfigLab) -> None:
    altered, said = lab.alter(("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
    assert altered == INVALID_REQUEST
    assert "retention.ms is in the request 2 times" in (said or "")


def test_refused_setting_can_be_set_to_its_only_value_and_deleted(lab: ConfigLab) -> None:
    assert lab.alter(("remote.storage.enable", SET, "false")) == (NONE, None)
    assert lab.entry("remote.storage.enable") == ("false", OF_TOPIC, [("remote.storage.enable", "false", OF_TOPIC)])
    assert lab.alter(("remote.storage.enable", DELETE, None)) == (NONE, None)
    assert lab.own == {}


def test_request_that_only_validates_changes_nothing(lab: ConfigLab) -> None:
    assert lab.alter(("retention.ms", SET, "5"), validate_only=True) == (NONE, None)
    assert lab.alter(("retention.ms", SET, "x"), validate_only=True)[0] == INVALID_CONFIG
    assert lab.replace({"retention.ms": "5"}, validate_only=True) == (NONE, None)
    assert lab.alter(("max.connections", SET, "5"), kind=BROKER, name="1", validate_only=True) == (NONE, None)
    assert lab.alter(("max.connections", SET, "x"), kind=BROKER, name="1", validate_only=True)[0] == INVALID_CONFIG
    assert (lab.own, lab.live.layers.broker) == ({}, {})


def test_repeated_resource_is_refused_and_the_others_are_altered(lab: ConfigLab) -> None:
    lab.topics.create("other", 1, {})
    configs = [{"name": "retention.ms", "config_operation": SET, "value": "5"}]
    resources = [
        {"resource_type": TOPIC, "resource_name": name, "configs": configs} for name in ("events", "other", "events")
    ]
    answer = lab.answer(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=resources, validate_only=False)
    assert [int(one.error_code) for one in answer.responses] == [INVALID_REQUEST, NONE, INVALID_REQUEST]
    assert lab.own == {}
    assert lab.topics.partitions("other")[0].log.config.retention_ms == 5


def test_changes_of_two_clients_at_the_same_time_are_both_kept(lab: ConfigLab) -> None:
    async def both() -> None:
        await asyncio.gather(
            *(
                lab.ask(
                    ApiKey.INCREMENTAL_ALTER_CONFIGS,
                    1,
                    resources=[
                        {
                            "resource_type": TOPIC,
                            "resource_name": "events",
                            "configs": [{"name": name, "config_operation": SET, "value": "500"}],
                        }
                    ],
                    validate_only=False,
                )
                for name in ("retention.ms", "flush.ms")
            )
        )

    asyncio.run(both())
    assert lab.own == {"retention.ms": "500", "flush.ms": "500"}


def test_topic_that_is_deleted_during_the_request_is_unknown(lab: ConfigLab) -> None:
    lab.before_background = lambda: lab.topics.delete("events")
    assert lab.alter(("retention.ms", SET, "5"))[0] == UNKNOWN_TOPIC


def test_full_disk_gets_a_storage_error_and_changes_nothing(tmp_path: Path) -> None:
    class FullDisk(Disk):
        full = False

        def replace(self, path: Path, content: bytes, *, durable: bool = True) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            super().replace(path, content, durable=durable)

    disk = FullDisk()
    lab = ConfigLab(tmp_path, disk)
    disk.full = True
    code, said = lab.alter(("retention.ms", SET, "5"))
    assert (code, StorageError.code) == (STORAGE, STORAGE)
    assert "No space left" in (said or "")
    assert lab.own == {}
    assert lab.topics.partitions("events")[0].log.config.retention_ms == 604_800_000
    disk.full = False
    lab.close()


@pytest.mark.parametrize("key", [ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS])
def test_settings_of_many_topics_are_altered_with_as_many_syncs_as_those_of_one(tmp_path: Path, key: ApiKey) -> None:
    def syncs(count: int) -> int:
        disk = CountingDisk()
        lab = ConfigLab(tmp_path / str(count), disk)
        names = [f"t{number}" for number in range(count)]
        finish(lab.topics.create_all([RequestedTopic(name, 2, {}) for name in names]))
        operation = {} if key is ApiKey.ALTER_CONFIGS else {"config_operation": SET}
        disk.syncs = lab.background_calls = 0
        answer = lab.answer(
            key,
            resources=[
                {
                    "resource_type": TOPIC,
                    "resource_name": name,
                    "configs": [{"name": "retention.ms", "value": "5", **operation}],
                }
                for name in names
            ],
            validate_only=False,
        )
        assert {int(one.error_code) for one in answer.responses} == {NONE}
        assert {lab.topics.partitions(name)[1].log.config.retention_ms for name in names} == {5}
        assert lab.background_calls == 1
        lab.close()
        return disk.syncs

    assert syncs(30) == syncs(1)


def test_refused_topic_does_not_stop_the_others_of_the_request(
    lab: ConfigLab,
) -> None:
    lab.topics.create("other", 1, {})
    values = {"other": "5", "nope": "5", "events": "x"}
    resources = [
        {
            "resource_type": TOPIC,
            "resource_name": name,
            "configs": [{"name": "retention.ms", "config_operation": SET, "value": value}],
        }
        for name, value in values.items()
    ]
    answer = lab.answer(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=resources, validate_only=False)
    assert [(one.resource_name, int(one.error_code)) for one in answer.responses] == [
        ("other", NONE),
        ("nope", UNKNOWN_TOPIC),
        ("events", INVALID_CONFIG),
    ]
    assert lab.topics.partitions("other")[0].log.config.retention_ms == 5
    assert lab.own == {}


# Changing the broker


def test_changed_default_applies_at_once_to_topics_that_do_not_set_it(lab: ConfigLab) -> None:
    lab.topics.create("stubborn", 1, {"retention.ms": "9"})
    assert lab.alter(("log.retention.ms", SET, "5000"), kind=BROKER, name="1") == (NONE, None)
    assert [lab.topics.partitions(name)[0].log.config.retention_ms for name in ("events", "stubborn")] == [5000, 9]
    lab.alter(("log.retention.ms", DELETE, None), kind=BROKER, name="1")
    assert lab.topics.partitions("events")[0].log.config.retention_ms == 604_800_000


def test_full_change_replaces_all_changed_settings_of_the_broker(lab: ConfigLab) -> None:
    lab.alter(("max.connections", SET, "9"), kind=BROKER, name="1")
    assert lab.replace({"max.connections.per.ip": "9000"}, BROKER, "1") == (NONE, None)
    assert lab.live.layers.broker == {"max.connections.per.ip": "9000"}


def test_items_are_added_to_lists_of_the_broker(lab: ConfigLab) -> None:
    lab.alter(("log.cleanup.policy", SUBTRACT, "delete"), kind=BROKER, name="")
    assert lab.live.layers.cluster == {"log.cleanup.policy": ""}


@pytest.mark.parametrize("name", ["1", ""])
@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (("num.partitions", SET, "5"), INVALID_REQUEST, "num.partitions can't be changed while the broker runs"),
        (("fetch.max.bytes", SET, "5000"), INVALID_REQUEST, "fetch.max.bytes can't be changed while the broker runs"),
        (("broker.id", SET, "5"), INVALID_REQUEST, "broker.id can't be changed while the broker runs"),
        (("max.connections", SET, "x"), INVALID_CONFIG, "max.connections is 'x'"),
        (("max.connectoins", SET, "5"), INVALID_CONFIG, "did you mean max.connections?"),
        (("retention.ms", SET, "5"), INVALID_CONFIG, "did you mean log.retention.ms?"),
        (("log.dirs", SET, "/x"), INVALID_CONFIG, "log.dirs can't be set: set the data directory"),
        (("log.retention.ms", SUBTRACT, "5"), INVALID_CONFIG, "log.retention.ms is not a list"),
    ],
)
def test_invalid_change_of_the_broker_changes_nothing(
    lab: ConfigLab, name: str, change: tuple[str, int, str | None], code: int, message: str
) -> None:
    altered, said = lab.alter(("max.connections.per.ip", SET, "5000"), change, kind=BROKER, name=name)
    assert (altered, message in (said or "")) == (code, True)
    assert lab.live.current == lab.config
    assert lab.live.layers[:2] == ({}, {})


def test_settings_of_a_group_survive_a_restart(tmp_path: Path) -> None:
    lab = ConfigLab(tmp_path)
    for _ in range(2):
        assert lab.alter(("consumer.session.timeout.ms", SET, "50000"), kind=GROUP, name="mine") == (0, None)
        assert lab.entry("consumer.session.timeout.ms", GROUP, "mine") == (
            "50000",
            OF_GROUP,
            [
                ("consumer.session.timeout.ms", "50000", OF_GROUP),
                ("group.consumer.session.timeout.ms", "45000", DEFAULT),
            ],
        )
        assert lab.entry("consumer.heartbeat.interval.ms", GROUP, "mine")[:2] == ("5000", DEFAULT)
        assert lab.live.groups.effective("mine") == (50_000, 5_000)
        assert lab.live.groups.effective("another") == (45_000, 5_000)
        lab.close()
        lab = ConfigLab(tmp_path)
    assert lab.live.groups.effective("mine") == (50_000, 5_000)
    assert lab.alter(("consumer.session.timeout.ms", DELETE, None), kind=GROUP, name="mine") == (0, None)
    assert lab.live.groups.effective("mine") == (45_000, 5_000)
    assert lab.store.metadata.group_settings == {}
    lab.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("consumer.session.timeout.ms", SET, "44999"),
            "45000 to 60000: the broker's group.consumer.min.session",
        ),
        (("consumer.session.timeout.ms", SET, "60001"), "group.consumer.max.session.timeout.ms"),
        (("consumer.heartbeat.interval.ms", SET, "4999"), "5000 to 15000: the broker's group.consumer.min.heartbeat"),
        (("consumer.heartbeat.interval.ms", SET, "often"), "must be a whole number"),
        (("consumer.heartbeat.interval.ms", APPEND, "1"), "is not a list"),
        (("share.session.timeout.ms", SET, "45000"), "is not a setting of a group"),
        (("retention.ms", DELETE, None), "is not a setting of a group"),
    ],
)
def test_invalid_change_of_a_group_changes_nothing(
    lab: ConfigLab, change: tuple[str, int, str | None], message: str
) -> None:
    code, said = lab.alter(change, kind=GROUP, name="mine")
    assert (code, message in (said or "")) == (INVALID_CONFIG, True), said
    assert lab.store.metadata.group_settings == {}


def test_session_timeout_of_a_group_must_be_longer_than_its_heartbeat_interval(tmp_path: Path) -> None:
    lab = ConfigLab(tmp_path, None, **{"group.consumer.min.session.timeout.ms": 6_000})
    assert lab.alter(("consumer.session.timeout.ms", SET, "6000"), kind=GROUP, name="mine") == (0, None)
    code, said = lab.alter(("consumer.heartbeat.interval.ms", SET, "7000"), kind=GROUP, name="mine")
    assert (code, "must be more than consumer.heartbeat.interval.ms, 7000" in (said or "")) == (INVALID_CONFIG, True)
    lab.close()


def test_settings_of_too_many_groups_are_refused(lab: ConfigLab) -> None:
    for number in range(200):
        name = f"{number}-" + "g" * 30_000
        code, said = lab.alter(("consumer.session.timeout.ms", SET, "50000"), kind=GROUP, name=name)
        if code != 0:
            break
    assert (code, "DELETE what is not needed" in (said or "")) == (INVALID_CONFIG, True)
    assert 100 < number < 150


def test_settings_of_many_groups_are_altered_with_one_save(tmp_path: Path) -> None:
    class CountingDisk(Disk):
        saves = 0

        def replace(self, path: Path, content: bytes, *, durable: bool = True) -> None:
            self.saves += 1
            super().replace(path, content, durable=durable)

    disk = CountingDisk()
    lab = ConfigLab(tmp_path, disk)
    changed: list[str] = []
    lab.live.groups.on_change(changed.append)
    values = {"one": "50000", "two": "7", "three": "50001"}
    resources = [
        {
            "resource_type": GROUP,
            "resource_name": name,
            "configs": [{"name": "consumer.session.timeout.ms", "config_operation": SET, "value": value}],
        }
        for name, value in values.items()
    ]
    before = disk.saves
    answer = lab.answer(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=resources, validate_only=False)
    assert [(one.resource_name, int(one.error_code)) for one in answer.responses] == [
        ("one", NONE),
        ("two", INVALID_CONFIG),
        ("three", NONE),
    ]
    assert disk.saves - before == 1
    assert changed == ["one", "three"]
    assert [lab.live.groups.effective(name)[0] for name in values] == [50_000, 45_000, 50_001]
    lab.close()


def test_groups_whose_settings_can_not_be_saved_keep_those_they_had(tmp_path: Path) -> None:
    class FullDisk(Disk):
        is_full = False

        def replace(self, path: Path, content: bytes, *, durable: bool = True) -> None:
            if self.is_full:
                raise OSError(28, "No space left on device")
            super().replace(path, content, durable=durable)

    disk = FullDisk()
    lab = ConfigLab(tmp_path, disk)
    disk.is_full = True
    code, message = lab.alter(("consumer.session.timeout.ms", SET, "50000"), kind=GROUP, name="mine")
    assert (code, "No space left" in (message or "")) == (STORAGE, True)
    assert lab.live.groups.effective("mine") == (45_000, 5_000)
    disk.is_full = False
    lab.close()


def test_only_validated_changes_of_a_group_change_nothing(lab: ConfigLab) -> None:
    change = ("consumer.session.timeout.ms", SET, "50000")
    assert lab.alter(change, kind=GROUP, name="mine", validate_only=True) == (0, None)
    assert lab.live.groups.own("mine") == {}


# Any changes


VALUES = {
    "retention.ms": ["5", "-1", "x"],
    "segment.bytes": ["4096", "1"],
    "cleanup.policy": ["delete", "", "compacted"],
}
CHANGES = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from([SET, DELETE]), st.sampled_from(VALUES[name]))
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.lists(CHANGES, max_size=3, unique_by=lambda change: change[0]), max_size=8))
def test_shown_settings_are_those_that_were_set_and_that_the_logs_use(
    tmp_path_factory: pytest.TempPathFactory, requests: list[list[tuple[str, SettingOperation, str]]]
) -> None:
    path = tmp_path_factory.mktemp("lab")
    lab = ConfigLab(path)
    model: dict[str, str] = {}
    for changes in requests:
        code, _ = lab.alter(*changes)
        bad = any(operation is SET and value in ("x", "1", "compacted") for _, operation, value in changes)
        assert code == (INVALID_CONFIG if bad else NONE)
        if not bad:
            for name, operation, value in changes:
                model.pop(name, None)
                if operation is SET:
                    model[name] = value
    for _ in range(2):
        assert lab.own == model
        shown = {one.name: one for one in lab.describe().configs}
        assert {name: one.value for name, one in shown.items() if one.config_source == OF_TOPIC} == model
        for partition in lab.topics.partitions("events"):
            texts = partition.log.config.texts()
            assert {name: shown[name].value for name in VALUES} == {name: texts[name] for name in VALUES}
        lab.close()
        lab = ConfigLab(path)
    lab.close()
