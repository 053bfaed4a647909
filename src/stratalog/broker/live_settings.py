"""The broker's settings as they are now: those it was started with, and on top those changed while it runs.

Changes are for this broker or for all of a cluster, as in Kafka; what is set for this broker goes first. They are
durable before they count, and count again after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from stratalog.broker.groups.group_settings import GroupSettings
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.settings import BrokerConfig
from stratalog.errors import ConfigError


class Layers(NamedTuple):
    """Where a setting can come from, the first of them that has it; below all lies the default."""

    broker: Mapping[str, str]
    cluster: Mapping[str, str]
    given: Mapping[str, str | None]


class LiveSettings:
    """Read from any thread, changed in the background thread."""

    def __init__(self, config: BrokerConfig, store: MetadataStore) -> None:
        self._given = config
        self._store = store
        self._listeners: list[Callable[[], None]] = []
        try:
            self.current = self._combined(store.metadata.cluster_settings, store.metadata.broker_settings)
        except ConfigError as error:
            raise ConfigError(
                f"a setting that was changed while the broker ran does not hold any more: {error}"
            ) from error
        self.groups = GroupSettings(store, lambda: self.current.groups)

    @property
    def layers(self) -> Layers:
        metadata = self._store.metadata
        return Layers(metadata.broker_settings, metadata.cluster_settings, self._given.explicit)

    def on_change(self, call: Callable[[], None]) -> None:
        """`call` is called after each change, in the thread that made it."""
        self._listeners.append(call)

    def check(
        self, *, broker: Mapping[str, str] | None = None, cluster: Mapping[str, str] | None = None
    ) -> BrokerConfig:
        """What the settings would be with one of these in the place of what was changed before. Raises ConfigError."""
        layers = self.layers
        return self._combined(
            layers.cluster if cluster is None else cluster, layers.broker if broker is None else broker
        )

    def change(self, *, broker: Mapping[str, str] | None = None, cluster: Mapping[str, str] | None = None) -> None:
        """As check(), and make it so."""
        current = self.check(broker=broker, cluster=cluster)
        if broker is not None:
            self._store.change(broker_settings=dict(broker))
        if cluster is not None:
            self._store.change(cluster_settings=dict(cluster))
        self.current = current
        for call in self._listeners:
            call()

    def _combined(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        return self._given.override({**cluster, **broker})
