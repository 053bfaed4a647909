"""The topics of a cluster. Any broker changes them, by writing to ZooKeeper; every broker sees the change in its view.

A change returns when it is in this broker's view. The other brokers, and the leaders of new partitions, see it a moment
later: until then they answer with errors that clients retry.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from stratalog.broker.controller.assignment import assign_replicas, check_assignment
from stratalog.broker.metadata.cluster_metadata import ClusterMetadata, PlannedTopic
from stratalog.broker.metadata.cluster_view import ClusterTopic, ClusterView, PartitionId
from stratalog.broker.metadata.topics import DEFAULT_REPLICATION, Assignment, RequestedTopic, Topic, TopicRegistry
from stratalog.broker.partition import Partition
from stratalog.errors import (
    InvalidReplicationFactorError,
    StorageError,
    StratalogError,
    UnknownTopicError,
)
from stratalog.storage.config import LogConfig

T = TypeVar("T")

_LONGEST_WAIT = 60.0  # seconds for ZooKeeper, which may be away; then the change has perhaps happened


class ClusterTopics(TopicRegistry):
    def __init__(
        self,
        metadata: ClusterMetadata,
        defaults: Callable[[], LogConfig],
        *,
        default_replication_factor: int,
        most_partitions: int,
        on_loop: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(defaults, most_partitions=most_partitions, on_loop=on_loop)
        self._metadata = metadata
        self._default_replication_factor = default_replication_factor
        self._loop = asyncio.get_running_loop()

    # Reading

    def publish(self, view: ClusterView, partitions: Mapping[PartitionId, Partition]) -> None:
        """Show clients what the view has."""
        topics = {topic.name: _as_topic(topic) for topic in view.topics.values()}
        by_name = {
            topic.name: tuple(partitions[PartitionId(topic.id, index)] for index in range(topic.partition_count))
            for topic in view.topics.values()
        }
        self._publish(topics, by_name)

    def replication_factor(self, name: str) -> int:
        state = self._metadata.view.state(name, 0)
        return self._default_replication_factor if state is None else len(state.replicas)

    def check_replication(self, replication_factor: int, assignment: Assignment | None, *, first: int = 0) -> None:
        brokers = self._metadata.view.brokers
        if assignment is not None:
            check_assignment(assignment, brokers, first_partition=first)
            return
        factor = self._factor(replication_factor)
        if not 1 <= factor <= len(brokers):
            raise InvalidReplicationFactorError(
                f"replication factor is {factor}; it must be 1 to {len(brokers)}, the number of brokers that are "
                "registered now"
            )

    def _factor(self, requested: int) -> int:
        return self._default_replication_factor if requested == DEFAULT_REPLICATION else requested

    # Changes. They run in the background thread, which waits for the event loop.

    def create_all(self, requested: Sequence[RequestedTopic]) -> Generator[None, None, list[Topic | StratalogError]]:
        outcomes: list[Topic | StratalogError] = []
        new: list[PlannedTopic] = []
        for topic in requested:
            try:
                planned = self._plan(topic)
                new.append(planned)
                outcomes.append(Topic(topic.name, planned.id, topic.partition_count, dict(topic.settings)))
            except StratalogError as error:
                outcomes.append(error)
        yield
        errors = iter(self.run(self._metadata.create_topics(new)) if new else ())
        return [outcome if isinstance(outcome, StratalogError) else next(errors) or outcome for outcome in outcomes]

    def _plan(self, topic: RequestedTopic) -> PlannedTopic:
        self.check_new(topic.name, topic.partition_count, topic.settings)
        self.check_replication(topic.replication_factor, topic.assignment)
        assignment = topic.assignment
        if assignment is None:
            assignment = self._assign_replicas(topic.partition_count, self._factor(topic.replication_factor))
        topic_id = topic.id or uuid.uuid4()
        config = self._config_of(Topic(topic.name, topic_id, topic.partition_count, topic.settings))
        return PlannedTopic(topic.name, topic_id, dict(topic.settings), assignment, config.min_insync_replicas)

    def _assign_replicas(self, partition_count: int, factor: int, first_partition: int = 0) -> Assignment:
        brokers = self._metadata.view.brokers
        racks = {broker.node_id: broker.rack for broker in brokers.values()}
        return assign_replicas(partition_count, factor, racks, random.randrange(max(len(racks), 1)), first_partition)

    def add_partitions_to_all(
        self, totals: Iterable[tuple[str, int]], assignments: Mapping[str, Assignment] | None = None
    ) -> list[Topic | StratalogError]:
        outcomes: list[Topic | StratalogError] = []
        for name, total in totals:
            try:
                self.check_growth(name, total)
                topic = self._known(name)
                assignment = (assignments or {}).get(name)
                if assignment is None:
                    new = total - topic.partition_count
                    assignment = self._assign_replicas(new, self.replication_factor(name), topic.partition_count)
                self.run(self._metadata.add_partitions(name, assignment))
                outcomes.append(self._known(name))
            except StratalogError as error:
                outcomes.append(error)
        return outcomes

    def alter_settings_of_all(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        configs = {}
        for name, settings in changes.items():
            topic = self._known(name)
            configs[name] = self._config_of(Topic(name, topic.id, topic.partition_count, settings))
        for name, settings in changes.items():
            self.run(self._metadata.change_settings(name, settings, configs[name].min_insync_replicas))

    def delete_all(self, requested: Sequence[tuple[str, uuid.UUID | None]]) -> list[StratalogError | None]:
        failures: list[StratalogError | None] = []
        for name, topic_id in requested:
            try:
                topic = self._known(name)
                if topic_id not in (None, topic.id):
                    raise UnknownTopicError(f"topic {name!r} with topic id {topic_id} does not exist any more")
                self.run(self._metadata.delete_topic(name, topic.id))
                failures.append(None)
            except StratalogError as error:
                failures.append(error)
        return failures

    def renew_min_insync(self) -> None:
        for topic in self._metadata.view.topics.values():
            config = self._config_of(_as_topic(topic))
            if config.min_insync_replicas != topic.min_insync:
                self.run(self._metadata.change_settings(topic.name, topic.settings, config.min_insync_replicas))

    def run(self, change: Coroutine[Any, Any, T]) -> T:
        """Make a change on the event loop, and wait for it in the background thread."""
        running = asyncio.run_coroutine_threadsafe(change, self._loop)
        try:
            return running.result(_LONGEST_WAIT)
        except TimeoutError:
            running.cancel()
            raise StorageError(
                f"ZooKeeper did not answer within {_LONGEST_WAIT:g} s; the change has perhaps happened: look, and "
                "repeat it if it has not"
            ) from None


def _as_topic(topic: ClusterTopic) -> Topic:
    return Topic(topic.name, topic.id, topic.partition_count, topic.settings)
