"""The config APIs over a data directory with one topic, events, of two partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stratalog.broker.apis.configs import ConfigApis, Resource
from stratalog.broker.live_settings import LiveSettings
from stratalog.protocol.api_keys import ApiKey
from stratalog.storage.disk import Disk
from tests.broker.apis.admin_lab import AdminLab

TOPIC = Resource.TOPIC

ELSEWHERE = {
    "listeners": "PLAINTEXT://0.0.0.0:9092",
    "advertised.listeners": "PLAINTEXT://broker.example:9092",
    "log.dirs": "/data",
}


class ConfigLab(AdminLab):
    def __init__(self, data: Path, disk: Disk | None = None, **given: object) -> None:
        super().__init__(data, disk, **given)
        self.live = LiveSettings(self.config, self.store)
        self.live.on_change(self._changed)
        self.apis = ConfigApis(self.topics, self.live, self.run_in_background, lambda: ELSEWHERE)
        self._handlers |= self.apis.routes()
        if self.topics.get("events") is None:
            self.topics.create("events", 2, {})

    def _changed(self) -> None:
        self.config = self.live.current
        self.topics.reconfigure_all()

    def describe(
        self,
        kind: int = TOPIC,
        name: str = "events",
        keys: list[str] | None = None,
        version: int | None = None,
        **more: Any,
    ) -> Any:
        more = {"include_synonyms": True, **more}
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        return self.answer(ApiKey.DESCRIBE_CONFIGS, version, resources=[resource], **more).results[0]

    def entry(self, setting: str, kind: int = TOPIC, name: str = "events") -> tuple[str | None, int, list[Any]]:
        (one,) = self.describe(kind, name, [setting]).configs
        return one.value, one.config_source, [(other.name, other.value, other.source) for other in one.synonyms]

    def alter(
        self,
        *changes: tuple[str, int, str | None],
        kind: int = TOPIC,
        name: str = "events",
        validate_only: bool = False,
        version: int | None = None,
    ) -> tuple[int, str | None]:
        configs = [
            {"name": setting, "config_operation": operation, "value": value} for setting, operation, value in changes
        ]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        (one,) = self.answer(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, version, resources=[resource], validate_only=validate_only
        ).responses
        assert (one.resource_type, one.resource_name) == (kind, name)
        return int(one.error_code), one.error_message

    def replace(
        self,
        values: dict[str, str | None],
        kind: int = TOPIC,
        name: str = "events",
        version: int | None = None,
        **more: Any,
    ) -> tuple[int, str | None]:
        configs = [{"name": setting, "value": value} for setting, value in values.items()]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        (one,) = self.answer(
            ApiKey.ALTER_CONFIGS, version, resources=[resource], **{"validate_only": False, **more}
        ).responses
        return int(one.error_code), one.error_message

    def close(self) -> None:
        self.directory.close()

    @property
    def own(self) -> dict[str, str]:
        topic = self.topics.get("events")
        assert topic is not None
        return dict(topic.settings)
