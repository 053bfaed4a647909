"""The registry of topics, which creates, changes and deletes them: in the data directory of a single broker
(`embedded.EmbeddedTopics`), or in ZooKeeper (`cluster_topics.ClusterTopics`).

Changes block, so they run in the background thread.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from stratalog.broker.background import finish
from stratalog.broker.metadata.known_topics import KnownTopics, plain_name
from stratalog.broker.metadata.store import Topic
from stratalog.broker.topic_defaults import topic_config
from stratalog.errors import (
    InvalidPartitionsError,
    InvalidTopicError,
    StratalogError,
    TopicExistsError,
    UnknownTopicError,
)
from stratalog.storage import names
from stratalog.storage.config import LogConfig

__all__ = ["RequestedTopic", "Topic", "TopicRegistry"]

Assignment = Sequence[Sequence[int]]
"""The replicas of each partition, the preferred leader first."""

DEFAULT_REPLICATION = -1


class RequestedTopic(NamedTuple):
    """A topic to be created."""

    name: str
    partition_count: int
    settings: Mapping[str, str]
    id: uuid.UUID | None = None
    replication_factor: int = DEFAULT_REPLICATION
    assignment: Assignment | None = None


class TopicRegistry(KnownTopics, ABC):
    def __init__(
        self,
        defaults: Callable[[], LogConfig],
        *,
        most_partitions: int,
        on_loop: Callable[[Callable[[], None]], None],
    ) -> None:
        """Create an empty registry. `on_loop` runs a callable on the event loop, from any thread."""
        super().__init__(on_loop)
        self._defaults = defaults
        self._most_partitions = most_partitions
        self._coming: dict[str, str] = {}  # names of topics that are being created, by plain_name()
        self._coming_partitions = 0

    # Changes

    @abstractmethod
    def create_all(self, requested: Sequence[RequestedTopic]) -> Generator[None, None, list[Topic | StratalogError]]:
        """Create many topics, in portions: other changes may run at each `yield`. Return each topic or its error, in
        order. Clients see them all at once."""

    @abstractmethod
    def add_partitions_to_all(
        self, totals: Iterable[tuple[str, int]], assignments: Mapping[str, Assignment] | None = None
    ) -> list[Topic | StratalogError]:
        """Grow many topics, given by different names, to these numbers of partitions. Return each topic or its error,
        in order. `assignments` has the replicas of new partitions, by topic, where the client has chosen them."""

    @abstractmethod
    def alter_settings_of_all(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        """Replace the own settings of many topics, given by name.

        Raises UnknownTopicError, ConfigError and StorageError.
        """

    @abstractmethod
    def delete_all(self, requested: Sequence[tuple[str, uuid.UUID | None]]) -> list[StratalogError | None]:
        """Delete topics, given by name and optionally topic id. Return an error for each that is not deleted."""

    @abstractmethod
    def check_replication(self, replication_factor: int, assignment: Assignment | None, *, first: int = 0) -> None:
        """Raise the error for replicas that the brokers can't have. `first` is the index of the first partition that
        is assigned."""

    @abstractmethod
    def replication_factor(self, name: str) -> int:
        """Return the number of replicas of the topic's first partition."""

    def create(
        self, name: str, partition_count: int, settings: Mapping[str, str], topic_id: uuid.UUID | None = None
    ) -> Topic:
        [outcome] = finish(self.create_all([RequestedTopic(name, partition_count, settings, topic_id)]))
        if isinstance(outcome, StratalogError):
            raise outcome
        return outcome

    def add_partitions(self, name: str, total: int) -> Topic:
        [outcome] = self.add_partitions_to_all([(name, total)])
        if isinstance(outcome, StratalogError):
            raise outcome
        return outcome

    def alter_settings(self, name: str, settings: Mapping[str, str]) -> Topic:
        """Replace the topic's own settings. The new ones count for every partition when the call returns."""
        self.alter_settings_of_all({name: settings})
        return self._known(name)

    def delete(self, name: str, topic_id: uuid.UUID | None = None) -> None:
        """Delete the topic; with a topic id, only if it still has that topic id."""
        [failure] = self.delete_all([(name, topic_id)])
        if failure is not None:
            raise failure

    def reconfigure_all(self) -> None:
        """Apply changed defaults to the logs of all topics."""
        for topic in self.all():
            self._reconfigure(topic)

    def renew_min_insync(self) -> None:
        """Apply a changed default of min.insync.replicas, which is part of the partitions' states in a cluster. Raises
        StratalogError."""

    # Checks

    def check_new(self, name: str, partition_count: int, settings: Mapping[str, str], *, planned: int = 0) -> None:
        """Raise the error that create() would raise for these arguments, if `planned` other partitions are created
        first."""
        names.check_topic(name)
        if self.get(name) is not None:
            raise TopicExistsError(f"topic {name!r} exists already")
        plain = plain_name(name)
        collision = self._view.by_plain_name.get(plain) or self._coming.get(plain)
        if collision == name:
            raise TopicExistsError(f"topic {name!r} is being created already")
        if collision is not None:
            raise InvalidTopicError(
                f"topic {name!r} collides with {collision!r}: '.' and '_' are the same in the names of metrics"
            )
        self._check_count(name, partition_count, partition_count + planned)
        topic_config(self._defaults(), settings)

    def check_growth(self, name: str, total: int) -> None:
        topic = self._known(name)
        if total <= topic.partition_count:
            raise InvalidPartitionsError(
                f"topic {name!r} has {count_of_partitions(topic.partition_count)}; the new number is {total}, and it "
                "must be higher"
            )
        self._check_count(name, total, total - topic.partition_count)

    def _known(self, name: str) -> Topic:
        topic = self.get(name)
        if topic is None:
            raise UnknownTopicError(f"topic {name!r} does not exist")
        return topic

    def _check_count(self, name: str, partition_count: int, new: int) -> None:
        if partition_count < 1:
            raise InvalidPartitionsError(
                f"topic {name!r}: number of partitions is {partition_count}; it must be 1 or more"
            )
        room = self._most_partitions - self.partition_count - self._coming_partitions
        if new > room:
            raise InvalidPartitionsError(
                f"topic {name!r}: {new} new partitions are too many; there is room for {max(room, 0)} "
                f"(stratalog.max.partitions is {self._most_partitions})"
            )

    def _config_of(self, topic: Topic) -> LogConfig:
        return topic_config(self._defaults(), topic.settings)

    def _reconfigure(self, topic: Topic, unless: LogConfig | None = None) -> None:
        config = self._config_of(topic)
        if config != unless:
            for partition in self.partitions(topic.name):
                partition.log.reconfigure(config)


def count_of_partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
