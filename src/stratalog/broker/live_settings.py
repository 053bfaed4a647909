"""The broker's current settings: those it was started with, overridden by those that were changed while it runs.

As in Kafka, a change is for this broker or for the whole cluster; a setting of this broker has precedence. A change is
durable before it counts, and counts again after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from stratalog.broker.groups.group_settings import GroupSettings
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.settings import BrokerConfig
from stratalog.errors import ConfigError


class Layers(NamedTuple):
    """The sources of settings. A setting comes from the first source that has it, or else is the default."""

    broker: Mapping[str, str]
    cluster: Mapping[str, str]
    explicit: Mapping[str, str | None]


class LiveSettings:
    """Can be read in any thread, and changed in the background thread only."""

    def __init__(self, config: BrokerConfig, store: MetadataStore) -> None:
        self._config = config
        self._store = store
        self._listeners: list[Callable[[], None]] = []
        try:
            self.current = self._combined(store.metadata.cluster_settings, store.metadata.broker_settings)
        except ConfigError as error:
            raise ConfigError(
                f"a setting that was changed while the broker ran is not valid any more: {error}"
            ) from error
        self.groups = GroupSettings(store, lambda: self.current.groups)

    @property
    def layers(self) -> Layers:
        metadata = self._store.metadata
        return Layers(metadata.broker_settings, metadata.cluster_settings, self._config.explicit)

    def on_change(self, call: Callable[[], None]) -> None:
        """Call `call` after each change, in the thread that made it."""
        self._listeners.append(call)

    def check(
        self, *, broker: Mapping[str, str] | None = None, cluster: Mapping[str, str] | None = None
    ) -> BrokerConfig:
        """Return the settings that would result if these replaced earlier changes. Raises ConfigError."""
        layers = self.layers
        return self._combined(
            layers.cluster if cluster is None else cluster, layers.broker if broker is None else broker
        )

    def change(self, *, broker: Mapping[str, str] | None = None, cluster: Mapping[str, str] | None = None) -> None:
        """Replace earlier changes, durably. Raises ConfigError and StorageError; then nothing has changed."""
        current = self.check(broker=broker, cluster=cluster)
        if broker is not None:
            self._store.change(broker_settings=dict(broker))
        if cluster is not None:
            self._store.change(cluster_settings=dict(cluster))
        self.current = current
        for call in self._listeners:
            call()

    def _combined(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        return self._config.override({**cluster, **broker})
