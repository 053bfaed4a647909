from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from stratalog.broker.live_settings import ChangedSettings, LiveSettings
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.settings import BrokerConfig
from stratalog.errors import ConfigError, StorageError
from stratalog.storage.disk import Disk

GIVEN = BrokerConfig.parse({"fetch.max.bytes": 4000, "log.retention.hours": 1, "num.partitions": 3})


class FullDisk(Disk):
    full = False

    def replace(self, path: Path, content: bytes, *, durable: bool = True) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().replace(path, content, durable=durable)


def opened(path: Path, disk: Disk | None = None, config: BrokerConfig = GIVEN) -> LiveSettings:
    return LiveSettings(config, MetadataStore(path, disk or Disk()))


def test_at_first_they_are_what_the_broker_was_started_with(tmp_path: Path) -> None:
    assert opened(tmp_path).current == GIVEN


def test_for_this_broker_goes_before_for_all_and_that_before_what_was_given(tmp_path: Path) -> None:
    live = opened(tmp_path)
    live.change(cluster={"fetch.max.bytes": "5000", "max.connections": "9"})
    assert (live.current.fetch_max_bytes, live.current.max_connections) == (5000, 9)
    live.change(broker={"fetch.max.bytes": "6000"})
    assert (live.current.fetch_max_bytes, live.current.max_connections) == (6000, 9)
    live.change(broker={})
    assert live.current.fetch_max_bytes == 5000
    live.change(cluster={})
    assert live.current == GIVEN


def test_changes_count_again_after_a_restart(tmp_path: Path) -> None:
    live = opened(tmp_path)
    live.change(cluster={"max.connections": "9"})
    live.change(broker={"log.retention.ms": "777"})
    again = opened(tmp_path)
    assert again.current == live.current
    assert again.current.log_defaults.retention_ms == 777
    assert again.layers == live.layers == ({"log.retention.ms": "777"}, {"max.connections": "9"}, GIVEN.explicit)


def test_what_python_gave_without_text_stays_too(tmp_path: Path) -> None:
    live = opened(tmp_path, config=BrokerConfig(num_partitions=7))
    live.change(broker={"max.connections": "9"})
    assert live.current == BrokerConfig(num_partitions=7, max_connections=9)


def test_who_listens_is_told_after_each_change(tmp_path: Path) -> None:
    live = opened(tmp_path)
    seen: list[int] = []
    live.on_change(lambda: seen.append(live.current.max_connections))
    live.change(broker={"max.connections": "9"})
    live.change(cluster={"max.connections": "8"})
    assert seen == [9, 9]


def test_value_that_can_not_be_changes_nothing(tmp_path: Path) -> None:
    live = opened(tmp_path)
    for settings in ({"max.connections": "-1"}, {"max.connection": "1"}):
        with pytest.raises(ConfigError):
            live.check(broker=settings)
        with pytest.raises(ConfigError):
            live.change(broker=settings)
    assert live.current == opened(tmp_path).current == GIVEN


def test_checking_changes_nothing(tmp_path: Path) -> None:
    live = opened(tmp_path)
    assert live.check(cluster={"max.connections": "9"}).max_connections == 9
    assert live.current == opened(tmp_path).current == GIVEN


def test_what_can_not_be_made_durable_does_not_count(tmp_path: Path) -> None:
    disk = FullDisk()
    live = opened(tmp_path, disk)
    disk.full = True
    with pytest.raises(StorageError):
        live.change(broker={"max.connections": "9"})
    assert live.current == GIVEN
    assert live.layers.broker == {}


def test_setting_that_holds_no_more_is_named_at_the_start(tmp_path: Path) -> None:
    store = MetadataStore(tmp_path, Disk())
    store.change(broker_settings={"max.connectoins": "9"})
    with pytest.raises(ConfigError, match=r"changed while the broker ran .* did you mean max\.connections\?"):
        opened(tmp_path)


class FakeCluster(ChangedSettings):
    """The settings of brokers by node id, as a cluster has them; this broker is 1."""

    def __init__(self) -> None:
        self.settings: dict[str, Mapping[str, str]] = {"": {}, "1": {}, "2": {}}

    @property
    def own(self) -> Mapping[str, str]:
        return self.settings["1"]

    @property
    def of_all(self) -> Mapping[str, str]:
        return self.settings[""]

    def change_own(self, settings: Mapping[str, str]) -> None:
        self.settings["1"] = settings

    def change_all(self, settings: Mapping[str, str]) -> None:
        self.settings[""] = settings

    def others(self) -> list[str]:
        return ["2"]

    def of(self, node_id: str) -> Mapping[str, str]:
        return self.settings[node_id]

    def change_other(self, node_id: str, settings: Mapping[str, str]) -> None:
        self.settings[node_id] = settings


def joined(path: Path, cluster: FakeCluster) -> tuple[LiveSettings, list[int]]:
    """Return the settings of a broker in a cluster, and fetch.max.bytes after each change."""
    live = opened(path)
    live.change(broker={"fetch.max.bytes": "2000"}, cluster={"max.connections": "7"})
    live.join(cluster)
    seen: list[int] = []
    live.on_change(lambda: seen.append(live.current.fetch_max_bytes))
    return live, seen


def test_cluster_does_not_replace_the_changes_that_a_broker_made_alone(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.settings[""] = {"fetch.max.bytes": "5000"}
    live, _ = joined(tmp_path, cluster)
    assert (live.current.fetch_max_bytes, live.current.max_connections) == (5000, GIVEN.max_connections)


def test_change_by_another_broker_does_not_count_until_a_restart(tmp_path: Path) -> None:
    cluster = FakeCluster()
    live, seen = joined(tmp_path, cluster)
    cluster.settings["1"] = {"fetch.max.bytes": "6000"}
    live.refresh()
    live.refresh()
    assert seen == [6000]
    cluster.settings["2"] = {"fetch.max.bytes": "2000"}
    live.refresh()
    assert seen == [6000]


def test_setting_that_only_newer_brokers_know_stops_a_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()
    live, seen = joined(tmp_path, cluster)
    cluster.settings[""] = {"fetch.max.bytes": "6000", "newer.setting": "1"}
    live.refresh()
    assert (live.current.fetch_max_bytes, seen) == (4000, [])
    assert "newer.setting" in caplog.text


def test_change_of_another_broker_changes_this_one(tmp_path: Path) -> None:
    cluster = FakeCluster()
    live, seen = joined(tmp_path, cluster)
    live.change_other("2", {"fetch.max.bytes": "9000"}, validate_only=True)
    with pytest.raises(ConfigError):
        live.change_other("2", {"fetch.max.bytes": "many"})
    assert live.of("2") == {}
    live.change_other("2", {"fetch.max.bytes": "9000"})
    assert (live.of("2"), seen) == ({"fetch.max.bytes": "9000"}, [])
