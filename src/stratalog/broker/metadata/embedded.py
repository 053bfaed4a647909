"""The topics of a single broker: it creates, changes and deletes them, and keeps them in its data directory. A request
for many topics syncs as often as a request for one.

Changes block because they sync files, so they run in the background thread, one at a time. Creating runs in portions,
between which other changes run: a client does not wait for another client's thousands of partitions.

What survives: a change that returned survives kill -9 and a power cut. Topics are in the metadata before their logs
exist, so the next start creates the logs that a crash prevented. Topics that are being deleted are marked in the
metadata first, so a crash in between does not bring a part of them back. Directories of unknown topics, as in a data
directory of Apache Kafka, become topics with the topic ids that are in their files.

A change that fails, for example on a full disk, is undone, and readers see nothing of it. If undoing it fails too, the
metadata keeps a topic that no reader sees. It is removed when a topic of that name is created, or at the next start.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from stratalog.broker.background import finish
from stratalog.broker.metadata.adoption import find_topics
from stratalog.broker.metadata.known_topics import plain_name
from stratalog.broker.metadata.store import MetadataStore, Topic
from stratalog.broker.metadata.topics import (
    DEFAULT_REPLICATION,
    Assignment,
    RequestedTopic,
    TopicRegistry,
    count_of_partitions,
)
from stratalog.broker.partition import Partition
from stratalog.errors import (
    ConfigError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    StratalogError,
    UnknownTopicError,
    UnusablePartitionError,
)
from stratalog.storage import names
from stratalog.storage.config import LogConfig
from stratalog.storage.log_directory import LogDirectory

logger = logging.getLogger(__name__)
T = TypeVar("T")

_SHOWN = 10  # brokers of a list that a client sent
_PORTION = 200  # partitions that are created before other changes run: some tenths of a second


class _Plan(NamedTuple):
    """A topic as it will be. The partitions that `old` does not have will be created."""

    topic: Topic
    old: Topic | None
    config: LogConfig

    @property
    def new_indexes(self) -> range:
        return range(0 if self.old is None else self.old.partition_count, self.topic.partition_count)


class EmbeddedTopics(TopicRegistry):
    def __init__(
        self,
        directory: LogDirectory,
        store: MetadataStore,
        defaults: Callable[[], LogConfig],
        *,
        most_partitions: int,
        on_loop: Callable[[Callable[[], None]], None],
        node_id: int = 1,
    ) -> None:
        """Create an empty registry, for load(). `on_loop` runs a callable on the event loop, from any thread."""
        super().__init__(defaults, most_partitions=most_partitions, on_loop=on_loop)
        self._directory = directory
        self._store = store
        self._node_id = node_id

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Open every log, complete the changes that a crash interrupted, and adopt topics that have no metadata."""
        on_disk = self._find_directories()
        doomed = [topic for topic in self._store.metadata.topics.values() if topic.deleting]
        self._finish_deletion({topic.name: on_disk.pop(topic.name, set()) for topic in doomed})
        adopted = find_topics(self._directory.path, on_disk, self._store.metadata.topics, self._most_partitions)
        if adopted:
            self._store.change(topics={**self._store.metadata.topics, **adopted})
        topics = {name: topic for name, topic in self._store.metadata.topics.items() if not topic.deleting}
        total = sum(topic.partition_count for topic in topics.values())
        self._make_missing(topics.values(), on_disk)
        partitions: dict[str, tuple[Partition, ...]] = {}
        done = 0
        for topic in topics.values():
            try:
                config = self._config_of(topic)
            except ConfigError as error:
                raise ConfigError(f"{self._store.path}: topic {topic.name}: {error}") from error
            opened = []
            for index in range(topic.partition_count):
                opened.append(self._open_or_replace(topic, index, config))
                done += 1
                if progress is not None:
                    progress(done, total)
            partitions[topic.name] = tuple(opened)
        self._publish(topics, partitions)

    def check_replication(self, replication_factor: int, assignment: Assignment | None, *, first: int = 0) -> None:
        if assignment is None and replication_factor not in (DEFAULT_REPLICATION, 1):
            raise InvalidReplicationFactorError(
                f"replication factor is {replication_factor}; it must be 1, or -1 for the default: there is one "
                "broker, so each partition has one replica"
            )
        for index, replicas in enumerate(assignment or (), start=first):
            if list(replicas) != [self._node_id]:
                raise InvalidReplicaAssignmentError(
                    f"partition {index} is assigned to the brokers {list(replicas[:_SHOWN])}; there is one broker, so "
                    f"this must be [{self._node_id}]"
                )

    def replication_factor(self, name: str) -> int:  # noqa: ARG002 - all topics are alike
        return 1

    def create_all(self, requested: Sequence[RequestedTopic]) -> Generator[None, None, list[Topic | StratalogError]]:
        """Create topics as the base class says, with one save of the metadata."""
        plans: list[_Plan] = []
        refused: dict[int, StratalogError] = {}
        try:
            for number, topic in enumerate(requested):
                try:
                    plans.append(self._plan_new(topic))
                except StratalogError as error:
                    refused[number] = error
                else:
                    self._coming[plain_name(topic.name)] = topic.name
                    self._coming_partitions += topic.partition_count
            failures = yield from self._build(plans)
        finally:
            for plan in plans:
                del self._coming[plain_name(plan.topic.name)]
                self._coming_partitions -= plan.topic.partition_count
        outcomes = iter(failures.get(plan.topic.name, plan.topic) for plan in plans)
        return [refused[number] if number in refused else next(outcomes) for number in range(len(requested))]

    def _plan_new(self, requested: RequestedTopic) -> _Plan:
        self.check_new(requested.name, requested.partition_count, requested.settings)
        left_over = self._store.metadata.topics.get(requested.name)
        if left_over is not None:
            self._remove([left_over])
        topic_id = requested.id or uuid.uuid4()
        topic = Topic(requested.name, topic_id, requested.partition_count, dict(requested.settings))
        return _Plan(topic, None, self._config_of(topic))

    def add_partitions_to_all(
        self,
        totals: Iterable[tuple[str, int]],
        assignments: Mapping[str, Assignment] | None = None,  # noqa: ARG002 - every partition is on this broker
    ) -> list[Topic | StratalogError]:
        outcomes: dict[str, Topic | StratalogError] = {}
        plans = []
        for name, total in totals:
            try:
                self.check_growth(name, total)
                old = self._known(name)
                grown = replace(old, partition_count=total)
                plans.append(_Plan(grown, old, self._config_of(grown)))
                outcomes[name] = grown
            except StratalogError as error:
                outcomes[name] = error
        return list((outcomes | finish(self._build(plans))).values())

    def alter_settings_of_all(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        """Replace settings as the base class says, with one save. After an error no topic has changed."""
        altered = {name: replace(self._known(name), settings=dict(settings)) for name, settings in changes.items()}
        configs = {name: self._config_of(topic) for name, topic in altered.items()}
        self._save(altered.values())
        for name, config in configs.items():
            for partition in self.partitions(name):
                partition.log.reconfigure(config)
        self._publish_all(altered, {name: self.partitions(name) for name in altered})
        for name, topic in altered.items():
            logger.info("topic %s altered: settings %s", name, topic.settings or "none")

    def delete_all(self, requested: Sequence[tuple[str, uuid.UUID | None]]) -> list[StratalogError | None]:
        """Delete topics as the base class says. The save of the metadata deletes them permanently: the next start
        removes the files that can't be removed now."""
        doomed: dict[str, Topic] = {}
        failures: list[StratalogError | None] = []
        for name, topic_id in requested:
            try:
                topic = self._known(name)
                if topic_id not in (None, topic.id) or name in doomed:
                    raise UnknownTopicError(f"topic {name!r} with topic id {topic_id} does not exist any more")
                doomed[name] = replace(topic, deleting=True)
                failures.append(None)
            except StratalogError as error:
                failures.append(error)
        try:
            self._save(doomed.values())
        except StratalogError as error:
            return [failure or error for failure in failures]
        deleted = [partition for name in doomed for partition in self.partitions(name)]
        self._publish(_without(doomed, self._view.topics), _without(doomed, self._view.partitions))
        self._on_loop(lambda: _end_waiting(deleted))
        self._finish_deletion({name: range(topic.partition_count) for name, topic in doomed.items()})
        logger.info("topics deleted: %s", ", ".join(doomed) or "none")
        return failures

    # Steps of these changes

    def _build(self, plans: Sequence[_Plan]) -> Generator[None, None, dict[str, StratalogError]]:
        """Save the topics, create and open their new partitions, and publish them. A topic with a partition that can't
        be created is undone. Return the errors by topic name."""
        if not plans:
            return {}
        try:
            self._save(plan.topic for plan in plans)
        except StratalogError as error:
            return {plan.topic.name: error for plan in plans}
        failures: dict[str, StratalogError] = {}
        opened: dict[str, list[Partition]] = {plan.topic.name: [] for plan in plans}
        new_partitions = [(plan, index) for plan in plans for index in plan.new_indexes]
        for start in range(0, len(new_partitions), _PORTION):
            if start:
                yield
            self._make_portion(new_partitions[start : start + _PORTION], opened, failures)
        built = [plan for plan in plans if plan.topic.name not in failures]
        self._undo([plan for plan in plans if plan.topic.name in failures])
        topics = {plan.topic.name: plan.topic for plan in built}
        self._publish_all(topics, {name: (*self.partitions(name), *opened[name]) for name in topics})
        for plan in built:
            self._reconfigure(plan.topic, unless=plan.config)  # the defaults may have changed between portions
        for name, topic in topics.items():
            logger.info(
                "topic %s now has %s and settings %s", name, count_of_partitions(topic.partition_count), topic.settings
            )
        return failures

    def _make_portion(
        self,
        new_partitions: Iterable[tuple[_Plan, int]],
        opened: Mapping[str, list[Partition]],
        failures: dict[str, StratalogError],
    ) -> None:
        plans = {
            names.TopicPartition(plan.topic.name, index): plan
            for plan, index in new_partitions
            if plan.topic.name not in failures
        }
        try:
            unmade = self._directory.make_all({key: plan.topic.id for key, plan in plans.items()})
        except StratalogError as error:
            failures |= {key.topic: error for key in plans}
            return
        failures |= {key.topic: error for key, error in unmade.items()}
        for key, plan in plans.items():
            if key.topic not in failures:
                try:
                    opened[key.topic].append(self._open(plan.topic, key.partition, plan.config))
                except StratalogError as error:
                    failures[key.topic] = error

    def _make_missing(self, topics: Iterable[Topic], on_disk: Mapping[str, set[int]]) -> None:
        """Create the directories that a crash prevented. A directory that can't be created fails later, when its log is
        opened."""
        missing = {
            names.TopicPartition(topic.name, index): topic.id
            for topic in topics
            for index in range(topic.partition_count)
            if index not in on_disk.get(topic.name, ())
        }
        if missing:
            self._directory.make_all(missing)

    def _open(self, topic: Topic, index: int, config: LogConfig) -> Partition:
        return Partition(topic.name, index, self._directory.log(topic.name, index, config, topic_id=topic.id))

    def _open_or_replace(self, topic: Topic, index: int, config: LogConfig) -> Partition:
        """Open a partition at the start, or replace it by an offline one, so that the broker can serve the others. A
        partition of an internal topic must open: without it, offsets and transactions would seem to be lost."""
        try:
            return self._open(topic, index, config)
        except UnusablePartitionError as error:
            if topic.is_internal:
                raise
            logger.error("%s-%d is offline, clients get KAFKA_STORAGE_ERROR: %s", topic.name, index, error)
            return Partition(topic.name, index, self._directory.unopened_log(topic.name, index, config, error))

    def _undo(self, plans: Sequence[_Plan]) -> None:
        if not plans:
            return
        try:
            self._remove([plan.topic for plan in plans if plan.old is None])
            self._shrink([(plan.old, plan.new_indexes) for plan in plans if plan.old is not None])
        except StratalogError as error:
            topics = ", ".join(plan.topic.name for plan in plans)
            logger.error(
                "topics %s: not all new partitions could be created, and the created ones can't be removed: %s",
                topics,
                error,
            )

    def _remove(self, topics: Collection[Topic]) -> None:
        """Remove topics that no reader sees, with all their partitions."""
        if not topics:
            return
        self._save(replace(topic, deleting=True) for topic in topics)
        on_disk = self._find_directories()
        self._remove_logs({topic.name: on_disk.get(topic.name, ()) for topic in topics})
        self._forget(topic.name for topic in topics)

    def _shrink(self, grown: Collection[tuple[Topic, range]]) -> None:
        """Remove these new partitions, and restore the topics as they were."""
        if not grown:
            return
        on_disk = self._find_directories()
        self._remove_logs({old.name: on_disk.get(old.name, set()) & set(indexes) for old, indexes in grown})
        self._save(old for old, _ in grown)

    def _finish_deletion(self, doomed: Mapping[str, Iterable[int]]) -> None:
        """Remove the partitions with these numbers of topics that are marked as deleted, then forget the topics."""
        if not doomed:
            return
        try:
            self._remove_logs(doomed)
            self._forget(doomed)
        except StratalogError as error:
            if len(doomed) > 1:  # a topic that can't be removed must not keep the others
                for name, indexes in doomed.items():
                    self._finish_deletion({name: indexes})
            else:
                logger.warning("topic %s is deleted, but some of its files could not be removed: %s", *doomed, error)

    def _remove_logs(self, doomed: Mapping[str, Iterable[int]]) -> None:
        self._directory.delete_all(
            names.TopicPartition(name, index) for name, indexes in doomed.items() for index in indexes
        )

    def _save(self, topics: Iterable[Topic]) -> None:
        changed = {topic.name: topic for topic in topics}
        if changed:
            self._store.change(topics={**self._store.metadata.topics, **changed})

    def _forget(self, deleted: Iterable[str]) -> None:
        self._store.change(topics=_without(set(deleted), self._store.metadata.topics))

    def _publish_all(self, topics: Mapping[str, Topic], partitions: Mapping[str, tuple[Partition, ...]]) -> None:
        view = self._view
        if topics:
            self._publish({**view.topics, **topics}, {**view.partitions, **partitions})

    def _find_directories(self) -> dict[str, set[int]]:
        numbers: dict[str, set[int]] = defaultdict(set)
        for partition in self._directory.partitions():
            numbers[partition.topic].add(partition.partition)
        return numbers


def _end_waiting(partitions: Iterable[Partition]) -> None:
    for partition in partitions:
        partition.end_waiting()


def _without(removed: Collection[str], mapping: Mapping[str, T]) -> dict[str, T]:
    return {name: value for name, value in mapping.items() if name not in removed}
