"""The broker's current settings: those it was started with, overridden by those that were changed while it runs.

As in Kafka, a change is for one broker or for the whole cluster; a setting of the broker has precedence. A change is
durable before it counts, and counts again after a restart. A single broker keeps changes in its metadata file. The
brokers of a cluster keep them in ZooKeeper, and each applies what concerns it when its view of the metadata changes.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from stratalog.broker.groups.group_settings import GroupSettings
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.settings import BrokerConfig
from stratalog.errors import ConfigError

logger = logging.getLogger(__name__)


class Layers(NamedTuple):
    """The sources of settings. A setting comes from the first source that has it, or else is the default."""

    broker: Mapping[str, str]
    cluster: Mapping[str, str]
    explicit: Mapping[str, str | None]


class ChangedSettings(ABC):
    """Keeps the settings that were changed while brokers ran."""

    @property
    @abstractmethod
    def own(self) -> Mapping[str, str]:
        """The settings of this broker."""

    @property
    @abstractmethod
    def of_all(self) -> Mapping[str, str]:
        """The settings of all brokers."""

    @abstractmethod
    def change_own(self, settings: Mapping[str, str]) -> None:
        """Replace the settings of this broker. Raises StratalogError."""

    @abstractmethod
    def change_all(self, settings: Mapping[str, str]) -> None:
        """Replace the settings of all brokers. Raises StratalogError."""

    def others(self) -> Collection[str]:
        """Return the node ids of the other brokers, as text."""
        return ()

    def of(self, node_id: str) -> Mapping[str, str]:
        """Return the settings of another broker, one that others() returns."""
        raise NotImplementedError

    def change_other(self, node_id: str, settings: Mapping[str, str]) -> None:
        """Replace the settings of another broker, one that others() returns. Raises StratalogError."""
        raise NotImplementedError


class StoredSettings(ChangedSettings):
    """The settings of a single broker, in its metadata file."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    @property
    def own(self) -> Mapping[str, str]:
        return self._store.metadata.broker_settings

    @property
    def of_all(self) -> Mapping[str, str]:
        return self._store.metadata.cluster_settings

    def change_own(self, settings: Mapping[str, str]) -> None:
        self._store.change(broker_settings=dict(settings))

    def change_all(self, settings: Mapping[str, str]) -> None:
        self._store.change(cluster_settings=dict(settings))


class LiveSettings:
    """Can be read in any thread, and changed in the background thread only."""

    def __init__(self, config: BrokerConfig, store: MetadataStore) -> None:
        self._config = config
        self._changed: ChangedSettings = StoredSettings(store)
        self._listeners: list[Callable[[], None]] = []
        try:
            self.current = self._combined(self._changed.of_all, self._changed.own)
        except ConfigError as error:
            raise ConfigError(
                f"a setting that was changed while the broker ran is not valid any more: {error}"
            ) from error
        self.groups = GroupSettings(store, lambda: self.current.groups)

    def join(self, changed: ChangedSettings) -> None:
        """Take over the settings of a cluster, instead of those in this broker's file."""
        ignored = {*self._changed.own, *self._changed.of_all}
        if ignored:
            logger.warning("the broker joins a cluster, and forgets its own changes of %s", ", ".join(sorted(ignored)))
        self._changed = changed
        self.current = self._config
        self.refresh()

    @property
    def layers(self) -> Layers:
        return Layers(self._changed.own, self._changed.of_all, self._config.explicit)

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
            self._changed.change_own(broker)
        if cluster is not None:
            self._changed.change_all(cluster)
        self._replace(current)

    def refresh(self) -> None:
        """Apply changes that were made by other brokers. Settings that are not valid here are reported, and nothing
        changes: a newer broker may know other settings."""
        try:
            current = self.check()
        except ConfigError as error:
            logger.error("the settings that were changed for this broker or for all can't be applied here: %s", error)
            return
        if current != self.current:
            self._replace(current)

    def _replace(self, current: BrokerConfig) -> None:
        self.current = current
        for call in self._listeners:
            call()

    # Other brokers

    def others(self) -> Collection[str]:
        """Return the node ids of the other brokers of the cluster, as text."""
        return self._changed.others()

    def of(self, node_id: str) -> Mapping[str, str]:
        """Return the settings of another broker that were changed while it ran. The others are not known here."""
        return self._changed.of(node_id)

    def change_other(self, node_id: str, settings: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Replace the settings of another broker. Raises ConfigError if they would not be valid for this one."""
        self.check(broker=settings)
        if not validate_only:
            self._changed.change_other(node_id, settings)

    def _combined(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        return self._config.override({**cluster, **broker})
