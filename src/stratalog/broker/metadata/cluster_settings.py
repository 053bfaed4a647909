"""The settings that were changed while the brokers of a cluster ran. They are in ZooKeeper, and in the view of every
broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from stratalog.broker.live_settings import ChangedSettings
from stratalog.broker.metadata.cluster_metadata import ClusterMetadata

_ALL = ""


class ClusterSettings(ChangedSettings):
    """Changes run in the background thread, which waits for the event loop."""

    def __init__(self, metadata: ClusterMetadata, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """`run` runs a change on the event loop, and waits for it."""
        self._metadata = metadata
        self._run = run
        self._own = str(metadata.node_id)

    @property
    def own(self) -> Mapping[str, str]:
        return self.of(self._own)

    @property
    def of_all(self) -> Mapping[str, str]:
        return self.of(_ALL)

    def change_own(self, settings: Mapping[str, str]) -> None:
        self.change_other(self._own, settings)

    def change_all(self, settings: Mapping[str, str]) -> None:
        self.change_other(_ALL, settings)

    def others(self) -> Collection[str]:
        view = self._metadata.view
        return {*map(str, view.brokers), *view.broker_settings} - {self._own, _ALL}

    def of(self, node_id: str) -> Mapping[str, str]:
        return self._metadata.view.broker_settings.get(node_id, {})

    def change_other(self, node_id: str, settings: Mapping[str, str]) -> None:
        self._run(self._metadata.change_broker_settings(node_id, settings))
