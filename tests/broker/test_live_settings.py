from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.broker.live_settings import LiveSettings
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
