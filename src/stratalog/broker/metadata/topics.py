"""The topics that exist, and their partitions: looked up on every request, changed by few.

Readers see a whole: topics and partitions are replaced together, on the event loop. Changes block (they sync files), so
they are made in the background thread, one at a time.

What survives: a change that returned survives kill -9 and a power cut. A topic is in the metadata before its logs
exist, so logs that a crash kept from being made are made at the next start; a topic that is being deleted says so in
the metadata first, so a crash half way does not bring a part of it back. Directories that no topic knows, as in a data
directory of Apache Kafka, become topics with the ids that their files have.

A change that fails (a full disk) is taken back, and readers see nothing of it. Where that fails too, something is left
in the metadata that nobody sees; it is cleared away when the name is wanted again, or at the next start.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from stratalog.broker.metadata.adoption import find_topics
from stratalog.broker.metadata.store import MetadataStore, Topic
from stratalog.broker.partition import Partition
from stratalog.broker.topic_defaults import topic_config
from stratalog.errors import (
    ConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    StratalogError,
    TopicExistsError,
    UnknownTopicError,
)
from stratalog.storage import names
from stratalog.storage.config import LogConfig
from stratalog.storage.log_directory import LogDirectory

__all__ = ["Topic", "TopicRegistry"]

logger = logging.getLogger(__name__)
T = TypeVar("T")


class _View(NamedTuple):
    """What readers see, replaced as a whole."""

    topics: dict[str, Topic]
    by_id: dict[bytes, Topic]
    by_plain_name: dict[str, str]  # the names by what they are in the names of metrics
    partitions: dict[str, tuple[Partition, ...]]


class TopicRegistry:
    def __init__(
        self,
        directory: LogDirectory,
        store: MetadataStore,
        defaults: Callable[[], LogConfig],
        *,
        most_partitions: int,
        on_loop: Callable[[Callable[[], None]], None],
    ) -> None:
        """`on_loop` runs a callable on the event loop, from any thread."""
        self._directory = directory
        self._store = store
        self._defaults = defaults
        self._most_partitions = most_partitions
        self._on_loop = on_loop
        self._listeners: list[Callable[[], None]] = []
        self._view = _View({}, {}, {}, {})
        self.version = 0  # counts changes, for whoever keeps something made of this

    # Looking up

    def get(self, name: str) -> Topic | None:
        return self._view.topics.get(name)

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._view.by_id.get(topic_id.bytes)

    def by_id_bytes(self, topic_id: bytes) -> Topic | None:
        return self._view.by_id.get(topic_id)

    def all(self) -> list[Topic]:
        """Sorted by name."""
        return [topic for _, topic in sorted(self._view.topics.items())]

    def partitions(self, name: str) -> tuple[Partition, ...]:
        """Of a topic, by index; none where it does not exist."""
        return self._view.partitions.get(name, ())

    def partition(self, name: str, index: int) -> Partition | None:
        partitions = self._view.partitions.get(name)
        if partitions is None or not 0 <= index < len(partitions):
            return None
        return partitions[index]

    def all_partitions(self) -> Iterable[Partition]:
        return (partition for partitions in self._view.partitions.values() for partition in partitions)

    @property
    def partition_count(self) -> int:
        return sum(topic.partition_count for topic in self._view.topics.values())

    def on_change(self, call: Callable[[], None]) -> None:
        """`call` is called after each change, on the event loop."""
        self._listeners.append(call)

    # Changing: in the background thread

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """At the start: open every log, finish what a crash interrupted, adopt what only the disk knows."""
        on_disk = self._find_directories()
        for topic in [topic for topic in self._store.metadata.topics.values() if topic.deleting]:
            self._finish_deletion(topic, on_disk.pop(topic.name, set()))
        found = find_topics(self._directory.path, on_disk, self._store.metadata.topics, self._most_partitions)
        if found:
            self._store.change(topics={**self._store.metadata.topics, **found})
        topics = {name: topic for name, topic in self._store.metadata.topics.items() if not topic.deleting}
        total = sum(topic.partition_count for topic in topics.values())
        partitions: dict[str, tuple[Partition, ...]] = {}
        done = 0
        for topic in topics.values():
            try:
                config = self._config_of(topic)
            except ConfigError as error:
                raise ConfigError(f"{self._store.path}: topic {topic.name}: {error}") from error
            opened = []
            for index in range(topic.partition_count):
                opened.append(self._open(topic, index, config))
                done += 1
                if progress is not None:
                    progress(done, total)
            partitions[topic.name] = tuple(opened)
        self._publish(topics, partitions)

    def check_new(self, name: str, partition_count: int, settings: Mapping[str, str], *, besides: int = 0) -> None:
        """Raise what create() would raise of its arguments, where `besides` so many partitions are to be made."""
        names.check_topic(name)
        if self.get(name) is not None:
            raise TopicExistsError(f"topic {name!r} exists already")
        collision = self._view.by_plain_name.get(_plain(name))
        if collision is not None:
            raise InvalidTopicError(
                f"topic {name!r} would collide with {collision!r}: '.' and '_' are the same in the names of metrics"
            )
        self._check_count(name, partition_count, partition_count + besides)
        topic_config(self._defaults(), settings)

    def create(
        self, name: str, partition_count: int, settings: Mapping[str, str], topic_id: uuid.UUID | None = None
    ) -> Topic:
        self.check_new(name, partition_count, settings)
        left_over = self._store.metadata.topics.get(name)
        if left_over is not None:
            self._remove(left_over)
        topic = Topic(name, topic_id or uuid.uuid4(), partition_count, dict(settings))
        self._save(topic)
        try:
            opened = self._make(topic, 0)
        except StratalogError:
            self._take_back(lambda: self._remove(topic), f"creating topic {name}")
            raise
        self._publish_topic(topic, opened)
        logger.info("topic %s created: %d partitions, settings %s", name, partition_count, dict(settings) or "none")
        return topic

    def check_growth(self, name: str, total: int) -> None:
        topic = self._known(name)
        if total <= topic.partition_count:
            raise InvalidPartitionsError(
                f"topic {name!r} has {topic.partition_count} partitions; {total} is not more, and there can't be fewer"
            )
        self._check_count(name, total, total - topic.partition_count)

    def add_partitions(self, name: str, total: int) -> Topic:
        self.check_growth(name, total)
        old = self._known(name)
        grown = Topic(name, old.id, total, old.settings)
        self._save(grown)
        try:
            new = self._make(grown, old.partition_count)
        except StratalogError:
            self._take_back(lambda: self._shrink(old, total), f"adding partitions to topic {name}")
            raise
        self._publish_topic(grown, (*self.partitions(name), *new))
        logger.info("topic %s grown to %d partitions", name, total)
        return grown

    def alter_settings(self, name: str, settings: Mapping[str, str]) -> Topic:
        """These settings in the place of those that the topic had; they count from now on."""
        old = self._known(name)
        altered = Topic(name, old.id, old.partition_count, dict(settings))
        config = self._config_of(altered)
        self._save(altered)
        for partition in self.partitions(name):
            partition.log.reconfigure(config)
        self._publish_topic(altered, self.partitions(name))
        logger.info("topic %s altered: settings %s", name, dict(settings) or "none")
        return altered

    def reconfigure_all(self) -> None:
        """The defaults have changed."""
        for topic in self.all():
            config = self._config_of(topic)
            for partition in self.partitions(topic.name):
                partition.log.reconfigure(config)

    def delete(self, name: str, topic_id: uuid.UUID | None = None) -> None:
        """Delete the topic; with an id, only if it still has that one. It is gone for good when its deletion is in the
        metadata: files that can't be removed are left to the next start."""
        topic = self._known(name)
        if topic_id not in (None, topic.id):
            raise UnknownTopicError(f"topic {name!r} with the id {topic_id} does not exist any more")
        doomed = replace(topic, deleting=True)
        self._save(doomed)
        gone = self.partitions(name)
        self._publish(_without(name, self._view.topics), _without(name, self._view.partitions))
        for partition in gone:
            self._on_loop(partition.end_waiting)
        self._finish_deletion(doomed, range(topic.partition_count))
        logger.info("topic %s deleted", name)

    # How it is done

    def _known(self, name: str) -> Topic:
        topic = self.get(name)
        if topic is None:
            raise UnknownTopicError(f"topic {name!r} does not exist")
        return topic

    def _check_count(self, name: str, partition_count: int, new: int) -> None:
        if partition_count < 1:
            raise InvalidPartitionsError(f"topic {name!r}: {partition_count} partitions; there must be at least one")
        room = self._most_partitions - self.partition_count
        if new > room:
            raise InvalidPartitionsError(
                f"topic {name!r}: {new} more partitions are too many; there is room for {max(room, 0)} "
                f"(stratalog.max.partitions is {self._most_partitions})"
            )

    def _config_of(self, topic: Topic) -> LogConfig:
        return topic_config(self._defaults(), topic.settings)

    def _make(self, topic: Topic, first: int) -> tuple[Partition, ...]:
        """The partitions from `first` on, which are new."""
        indexes = range(first, topic.partition_count)
        self._directory.make_all((names.TopicPartition(topic.name, index) for index in indexes), topic.id)
        config = self._config_of(topic)
        return tuple(self._open(topic, index, config) for index in indexes)

    def _open(self, topic: Topic, index: int, config: LogConfig) -> Partition:
        return Partition(topic.name, index, self._directory.log(topic.name, index, config, topic_id=topic.id))

    def _take_back(self, undo: Callable[[], None], what: str) -> None:
        try:
            undo()
        except StratalogError as error:
            logger.error("%s failed, and could not be taken back either: %s", what, error)

    def _remove(self, topic: Topic) -> None:
        """A topic that nobody sees, with all that there is of it."""
        if not topic.deleting:
            self._save(replace(topic, deleting=True))
        self._remove_logs(topic.name, self._find_directories().get(topic.name, ()))
        self._forget(topic.name)

    def _shrink(self, topic: Topic, total: int) -> None:
        """To what it had, from what it was to have."""
        found = self._find_directories().get(topic.name, set())
        self._remove_logs(topic.name, found & set(range(topic.partition_count, total)))
        self._save(topic)

    def _finish_deletion(self, topic: Topic, indexes: Iterable[int]) -> None:
        try:
            self._remove_logs(topic.name, indexes)
            self._forget(topic.name)
        except StratalogError as error:
            logger.warning("topic %s is deleted, but some of its files are left: %s", topic.name, error)

    def _remove_logs(self, name: str, indexes: Iterable[int]) -> None:
        self._directory.delete_all(names.TopicPartition(name, index) for index in indexes)

    def _save(self, topic: Topic) -> None:
        self._store.change(topics={**self._store.metadata.topics, topic.name: topic})

    def _forget(self, name: str) -> None:
        self._store.change(topics=_without(name, self._store.metadata.topics))

    def _publish_topic(self, topic: Topic, partitions: tuple[Partition, ...]) -> None:
        view = self._view
        self._publish({**view.topics, topic.name: topic}, {**view.partitions, topic.name: partitions})

    def _publish(self, topics: dict[str, Topic], partitions: dict[str, tuple[Partition, ...]]) -> None:
        by_id = {topic.id.bytes: topic for topic in topics.values()}
        self._view = _View(topics, by_id, {_plain(name): name for name in topics}, partitions)
        self.version += 1
        self._on_loop(self._tell)

    def _tell(self) -> None:
        for call in self._listeners:
            call()

    def _find_directories(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = defaultdict(set)
        for partition in self._directory.partitions():
            found[partition.topic].add(partition.partition)
        return found


def _without(name: str, all_of_them: Mapping[str, T]) -> dict[str, T]:
    return {other: each for other, each in all_of_them.items() if other != name}


def _plain(name: str) -> str:
    """Kafka's rule: names that differ only in '.' and '_' can't both exist."""
    return name.replace(".", "_")
