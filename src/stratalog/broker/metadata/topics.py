"""The topics that exist, and how they are created, changed and deleted: many at a time at the cost of one.

Changes block (they sync files), so they are made in the background thread, one at a time. Creating is done in portions,
between which other changes have their turn: nobody waits until another client's thousands of partitions are made.

What survives: a change that returned survives kill -9 and a power cut. Topics are in the metadata before their logs
exist, so logs that a crash kept from being made are made at the next start; topics that are being deleted say so in
the metadata first, so a crash half way does not bring a part of them back. Directories that no topic knows, as in a
data directory of Apache Kafka, become topics with the ids that their files have.

A change that fails (a full disk) is taken back, and readers see nothing of it. Where that fails too, something is left
in the metadata that nobody sees; it is cleared away when the name is wanted again, or at the next start.
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
from stratalog.broker.metadata.known_topics import KnownTopics, plain_name
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
    UnusablePartitionError,
)
from stratalog.storage import names
from stratalog.storage.config import LogConfig
from stratalog.storage.log_directory import LogDirectory

__all__ = ["NewTopic", "Topic", "TopicRegistry"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

_PORTION = 200  # partitions that are made before others have their turn: some tenths of a second


class NewTopic(NamedTuple):
    name: str
    partition_count: int
    settings: Mapping[str, str]
    id: uuid.UUID | None = None


class _Plan(NamedTuple):
    """A topic as it is to be; the partitions that `old` does not have are to be made."""

    topic: Topic
    old: Topic | None
    config: LogConfig

    @property
    def new_indexes(self) -> range:
        return range(0 if self.old is None else self.old.partition_count, self.topic.partition_count)


class TopicRegistry(KnownTopics):
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
        super().__init__(on_loop)
        self._directory = directory
        self._store = store
        self._defaults = defaults
        self._most_partitions = most_partitions
        self._coming: dict[str, str] = {}  # topics that are being created, by their plain names
        self._coming_partitions = 0

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """At the start: open every log, finish what a crash interrupted, adopt what only the disk knows."""
        on_disk = self._find_directories()
        doomed = [topic for topic in self._store.metadata.topics.values() if topic.deleting]
        self._finish_deletion({topic.name: on_disk.pop(topic.name, set()) for topic in doomed})
        found = find_topics(self._directory.path, on_disk, self._store.metadata.topics, self._most_partitions)
        if found:
            self._store.change(topics={**self._store.metadata.topics, **found})
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
                opened.append(self._open_or_do_without(topic, index, config))
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
        plain = plain_name(name)
        collision = self._view.by_plain_name.get(plain) or self._coming.get(plain)
        if collision == name:
            raise TopicExistsError(f"topic {name!r} is being created already")
        if collision is not None:
            raise InvalidTopicError(
                f"topic {name!r} would collide with {collision!r}: '.' and '_' are the same in the names of metrics"
            )
        self._check_count(name, partition_count, partition_count + besides)
        topic_config(self._defaults(), settings)

    def create(
        self, name: str, partition_count: int, settings: Mapping[str, str], topic_id: uuid.UUID | None = None
    ) -> Topic:
        [outcome] = finish(self.create_all([NewTopic(name, partition_count, settings, topic_id)]))
        if isinstance(outcome, StratalogError):
            raise outcome
        return outcome

    def create_all(self, wanted: Sequence[NewTopic]) -> Generator[None, None, list[Topic | StratalogError]]:
        """Create many, in portions: others may have their turn at each `yield`. What became of each, in order. They are
        in the metadata all at once, and can be seen all at once."""
        plans: list[_Plan] = []
        refused: dict[int, StratalogError] = {}
        try:
            for number, new in enumerate(wanted):
                try:
                    plans.append(self._plan_new(new))
                except StratalogError as error:
                    refused[number] = error
                else:
                    self._coming[plain_name(new.name)] = new.name
                    self._coming_partitions += new.partition_count
            failures = yield from self._build(plans)
        finally:
            for plan in plans:
                del self._coming[plain_name(plan.topic.name)]
                self._coming_partitions -= plan.topic.partition_count
        outcomes = iter(failures.get(plan.topic.name, plan.topic) for plan in plans)
        return [refused[number] if number in refused else next(outcomes) for number in range(len(wanted))]

    def _plan_new(self, new: NewTopic) -> _Plan:
        self.check_new(new.name, new.partition_count, new.settings)
        left_over = self._store.metadata.topics.get(new.name)
        if left_over is not None:
            self._remove([left_over])
        topic = Topic(new.name, new.id or uuid.uuid4(), new.partition_count, dict(new.settings))
        return _Plan(topic, None, self._config_of(topic))

    def check_growth(self, name: str, total: int) -> None:
        topic = self._known(name)
        if total <= topic.partition_count:
            raise InvalidPartitionsError(
                f"topic {name!r} has {_partitions(topic.partition_count)}; {total} is not more, and there can't be "
                "fewer"
            )
        self._check_count(name, total, total - topic.partition_count)

    def add_partitions(self, name: str, total: int) -> Topic:
        [outcome] = self.add_partitions_to_all([(name, total)])
        if isinstance(outcome, StratalogError):
            raise outcome
        return outcome

    def add_partitions_to_all(self, wanted: Iterable[tuple[str, int]]) -> list[Topic | StratalogError]:
        """Each of these topics gets so many partitions in all; none may be named twice. What became of each."""
        outcomes: dict[str, Topic | StratalogError] = {}
        plans = []
        for name, total in wanted:
            try:
                self.check_growth(name, total)
                old = self._known(name)
                grown = replace(old, partition_count=total)
                plans.append(_Plan(grown, old, self._config_of(grown)))
                outcomes[name] = grown
            except StratalogError as error:
                outcomes[name] = error
        return list((outcomes | finish(self._build(plans))).values())

    def alter_settings(self, name: str, settings: Mapping[str, str]) -> Topic:
        """Replace the topic's own settings. The new ones count for every partition when the call returns."""
        self.alter_settings_of_all({name: settings})
        return self._known(name)

    def alter_settings_of_all(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        """Replace the own settings of many topics, given by name, with one save.

        Raises UnknownTopicError, ConfigError and StorageError; then no topic has changed.
        """
        altered = {name: replace(self._known(name), settings=dict(settings)) for name, settings in changes.items()}
        configs = {name: self._config_of(topic) for name, topic in altered.items()}
        self._save(altered.values())
        for name, config in configs.items():
            for partition in self.partitions(name):
                partition.log.reconfigure(config)
        self._publish_all(altered, {name: self.partitions(name) for name in altered})
        for name, topic in altered.items():
            logger.info("topic %s altered: settings %s", name, topic.settings or "none")

    def reconfigure_all(self) -> None:
        """The defaults have changed."""
        for topic in self.all():
            self._reconfigure(topic)

    def delete(self, name: str, topic_id: uuid.UUID | None = None) -> None:
        """Delete the topic; with an id, only if it still has that one."""
        [failure] = self.delete_all([(name, topic_id)])
        if failure is not None:
            raise failure

    def delete_all(self, wanted: Sequence[tuple[str, uuid.UUID | None]]) -> list[StratalogError | None]:
        """Delete topics, given by name and maybe id; why not, for each that is not deleted. They are gone for good when
        their deletion is in the metadata: what can't be renamed or removed is left to the next start."""
        doomed: dict[str, Topic] = {}
        failures: list[StratalogError | None] = []
        for name, topic_id in wanted:
            try:
                topic = self._known(name)
                if topic_id not in (None, topic.id) or name in doomed:
                    raise UnknownTopicError(f"topic {name!r} with the id {topic_id} does not exist any more")
                doomed[name] = replace(topic, deleting=True)
                failures.append(None)
            except StratalogError as error:
                failures.append(error)
        try:
            self._save(doomed.values())
        except StratalogError as error:
            return [failure or error for failure in failures]
        gone = [partition for name in doomed for partition in self.partitions(name)]
        self._publish(_without(doomed, self._view.topics), _without(doomed, self._view.partitions))
        self._on_loop(lambda: _end_waiting(gone))
        self._finish_deletion({name: range(topic.partition_count) for name, topic in doomed.items()})
        logger.info("topics deleted: %s", ", ".join(doomed) or "none")
        return failures

    # How it is done

    def _known(self, name: str) -> Topic:
        topic = self.get(name)
        if topic is None:
            raise UnknownTopicError(f"topic {name!r} does not exist")
        return topic

    def _check_count(self, name: str, partition_count: int, new: int) -> None:
        if partition_count < 1:
            raise InvalidPartitionsError(f"topic {name!r}: {partition_count} partitions; there must be at least one")
        room = self._most_partitions - self.partition_count - self._coming_partitions
        if new > room:
            raise InvalidPartitionsError(
                f"topic {name!r}: {new} more partitions are too many; there is room for {max(room, 0)} "
                f"(stratalog.max.partitions is {self._most_partitions})"
            )

    def _config_of(self, topic: Topic) -> LogConfig:
        return topic_config(self._defaults(), topic.settings)

    def _build(self, plans: Sequence[_Plan]) -> Generator[None, None, dict[str, StratalogError]]:
        """Save the topics, make and open their new partitions, and let them be seen; a topic with a partition that
        can't be made is taken back. Those that failed, by name."""
        if not plans:
            return {}
        try:
            self._save(plan.topic for plan in plans)
        except StratalogError as error:
            return {plan.topic.name: error for plan in plans}
        failures: dict[str, StratalogError] = {}
        opened: dict[str, list[Partition]] = {plan.topic.name: [] for plan in plans}
        wanted = [(plan, index) for plan in plans for index in plan.new_indexes]
        for start in range(0, len(wanted), _PORTION):
            if start:
                yield
            self._make_portion(wanted[start : start + _PORTION], opened, failures)
        built = [plan for plan in plans if plan.topic.name not in failures]
        self._take_back([plan for plan in plans if plan.topic.name in failures])
        topics = {plan.topic.name: plan.topic for plan in built}
        self._publish_all(topics, {name: (*self.partitions(name), *opened[name]) for name in topics})
        for plan in built:
            self._reconfigure(plan.topic, unless=plan.config)  # the defaults may have been changed meanwhile
        for name, topic in topics.items():
            logger.info("topic %s has %s now, settings %s", name, _partitions(topic.partition_count), topic.settings)
        return failures

    def _make_portion(
        self,
        wanted: Iterable[tuple[_Plan, int]],
        opened: Mapping[str, list[Partition]],
        failures: dict[str, StratalogError],
    ) -> None:
        plans = {
            names.TopicPartition(plan.topic.name, index): plan
            for plan, index in wanted
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
        """At the start: the directories that a crash kept from being made. Opening tells of those that can't be."""
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

    def _open_or_do_without(self, topic: Topic, index: int, config: LogConfig) -> Partition:
        """At the start: one partition that can't be opened does not keep the others from being served. But for the
        broker's own topics: offsets and transactions would seem to be gone."""
        try:
            return self._open(topic, index, config)
        except UnusablePartitionError as error:
            if topic.is_internal:
                raise
            logger.error("%s-%d is offline, clients get KAFKA_STORAGE_ERROR: %s", topic.name, index, error)
            return Partition(topic.name, index, self._directory.unopened_log(topic.name, index, config, error))

    def _reconfigure(self, topic: Topic, unless: LogConfig | None = None) -> None:
        config = self._config_of(topic)
        if config != unless:
            for partition in self.partitions(topic.name):
                partition.log.reconfigure(config)

    def _take_back(self, plans: Sequence[_Plan]) -> None:
        if not plans:
            return
        try:
            self._remove([plan.topic for plan in plans if plan.old is None])
            self._shrink([(plan.old, plan.new_indexes) for plan in plans if plan.old is not None])
        except StratalogError as error:
            topics = ", ".join(plan.topic.name for plan in plans)
            logger.error("topics %s could not be made, and what was made can't be taken back: %s", topics, error)

    def _remove(self, topics: Collection[Topic]) -> None:
        """Topics that nobody sees, with all that there is of them."""
        if not topics:
            return
        self._save(replace(topic, deleting=True) for topic in topics)
        found = self._find_directories()
        self._remove_logs({topic.name: found.get(topic.name, ()) for topic in topics})
        self._forget(topic.name for topic in topics)

    def _shrink(self, grown: Collection[tuple[Topic, range]]) -> None:
        """To what they had, without the partitions that they were to get."""
        if not grown:
            return
        found = self._find_directories()
        self._remove_logs({old.name: found.get(old.name, set()) & set(indexes) for old, indexes in grown})
        self._save(old for old, _ in grown)

    def _finish_deletion(self, doomed: Mapping[str, Iterable[int]]) -> None:
        """Of topics that are marked as deleted: the partitions with these numbers go, then the marks."""
        if not doomed:
            return
        try:
            self._remove_logs(doomed)
            self._forget(doomed)
        except StratalogError as error:
            if len(doomed) > 1:  # what is wrong with one of them must not keep the others
                for name, indexes in doomed.items():
                    self._finish_deletion({name: indexes})
            else:
                logger.warning("topic %s is deleted, but some of its files are left: %s", *doomed, error)

    def _remove_logs(self, doomed: Mapping[str, Iterable[int]]) -> None:
        self._directory.delete_all(
            names.TopicPartition(name, index) for name, indexes in doomed.items() for index in indexes
        )

    def _save(self, topics: Iterable[Topic]) -> None:
        changed = {topic.name: topic for topic in topics}
        if changed:
            self._store.change(topics={**self._store.metadata.topics, **changed})

    def _forget(self, gone: Iterable[str]) -> None:
        self._store.change(topics=_without(set(gone), self._store.metadata.topics))

    def _publish_all(self, topics: Mapping[str, Topic], partitions: Mapping[str, tuple[Partition, ...]]) -> None:
        view = self._view
        if topics:
            self._publish({**view.topics, **topics}, {**view.partitions, **partitions})

    def _find_directories(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = defaultdict(set)
        for partition in self._directory.partitions():
            found[partition.topic].add(partition.partition)
        return found


def _end_waiting(partitions: Iterable[Partition]) -> None:
    for partition in partitions:
        partition.end_waiting()


def _without(gone: Collection[str], all_of_them: Mapping[str, T]) -> dict[str, T]:
    return {name: each for name, each in all_of_them.items() if name not in gone}


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
