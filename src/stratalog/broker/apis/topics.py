"""CreateTopics (key 19) 2-7, DeleteTopics (key 20) 1-6, CreatePartitions (key 37) 0-3.

Each topic of a request is done for itself, in the order of the request: one that fails does not stop the others. An
answer comes when all is durable. Topics that are not begun when the request's timeout is over are answered with
REQUEST_TIMED_OUT, and are not touched; one that is begun is finished. A timeout of 0 or less is taken for "as long as
it takes", since nothing here goes on after the answer that it could leave out.

A topic is gone for everybody, and for good, when the answer comes; its files too, if they can be removed. Internal
topics can't be deleted, nor get more partitions (INVALID_TOPIC_EXCEPTION; Kafka leaves that to its tools): groups live
in them.

Known gaps: there is one replica. So a replication factor is 1 or -1, and assignments name this broker alone. The topic
id of a request that only validates is empty: the topic would get another.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stratalog.broker.apis.error_fields import RefusedError, error_fields
from stratalog.broker.background import RunInBackground
from stratalog.broker.metadata.topics import Topic, TopicRegistry
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.broker.settings import BrokerConfig
from stratalog.clock import Clock
from stratalog.errors import InvalidPartitionsError, StratalogError, UnknownTopicError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import to_ms
from stratalog.storage import names

DescribeSettings = Callable[[Mapping[str, str]], list[Reply]]

_DEFAULT = -1
_LONGEST_TIMEOUT_MS = 600_000
_A_FEW = 100  # topics between two looks at what else there is to do


class TopicApis:
    def __init__(
        self,
        topics: TopicRegistry,
        config: BrokerConfig,
        clock: Clock,
        run_in_background: RunInBackground,
        describe_settings: DescribeSettings,
    ) -> None:
        """`describe_settings` gives CreateTopics' `configs` for a topic that has these settings of its own."""
        self._topics = topics
        self._config = config
        self._clock = clock
        self._run_in_background = run_in_background
        self._describe_settings = describe_settings

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.DELETE_TOPICS: self.delete_topics,
            ApiKey.CREATE_PARTITIONS: self.create_partitions,
        }

    # CreateTopics

    async def create_topics(self, request: Any, context: RequestContext) -> Reply:
        deadline = self._deadline(request)
        times = Counter(topic.name for topic in request.topics)
        planned = 0  # partitions that earlier topics of a request that only validates would have taken
        results = []
        for number, wanted in enumerate(_once(request.topics)):
            try:
                if times[wanted.name] > 1:
                    raise _twice(wanted.name)
                self._check_time(deadline, number)
                partition_count, settings = self._plan(wanted)
                if request.validate_only:
                    self._topics.check_new(wanted.name, partition_count, settings, besides=planned)
                    planned += partition_count
                    topic_id = None
                else:
                    topic_id = (await self._create(wanted.name, partition_count, settings)).id
            except StratalogError as error:
                results.append({"name": wanted.name, **_NOT_CREATED, **error_fields(error)})
            else:
                results.append(
                    {
                        "name": wanted.name,
                        "topic_id": topic_id,
                        "error_code": ErrorCode.none,
                        "error_message": None,
                        "num_partitions": partition_count,
                        "replication_factor": 1,
                        "configs": self._describe_settings(settings) if context.api_version >= 5 else (),
                    }
                )
            await _let_others_on(number)
        return {"topics": results}

    def _plan(self, wanted: Any) -> tuple[int, dict[str, str]]:
        """How many partitions and which settings. What the registry checks is left to it."""
        names.check_topic(wanted.name)
        if wanted.name == names.CLUSTER_METADATA_TOPIC:
            raise RefusedError(ErrorCode.invalid_request, f"{wanted.name} is Apache Kafka's own")
        if wanted.assignments:
            return self._assigned_partitions(wanted), _settings(wanted)
        factor = wanted.replication_factor
        if factor not in (_DEFAULT, 1):
            raise RefusedError(
                ErrorCode.invalid_replication_factor,
                f"replication factor is {factor}; it must be 1, or -1 for the default: this broker is alone, so each "
                "partition has one replica",
            )
        count = wanted.num_partitions
        if count == _DEFAULT:
            count = self._config.num_partitions
        elif count < 1:
            raise InvalidPartitionsError(
                f"number of partitions is {count}; it must be 1 or more, or -1 for the default (num.partitions)"
            )
        return count, _settings(wanted)

    def _assigned_partitions(self, wanted: Any) -> int:
        if wanted.replication_factor != _DEFAULT or wanted.num_partitions != _DEFAULT:
            raise RefusedError(
                ErrorCode.invalid_request,
                f"topic {wanted.name!r} has assignments, so number of partitions and replication factor must be -1; "
                f"they are {wanted.num_partitions} and {wanted.replication_factor}",
            )
        indexes = [assignment.partition_index for assignment in wanted.assignments]
        if sorted(indexes) != list(range(len(indexes))):
            raise RefusedError(
                ErrorCode.invalid_replica_assignment,
                f"assignments must be for the partitions from 0 to {len(indexes) - 1}, each once",
            )
        for assignment in wanted.assignments:
            self._check_replicas(assignment.partition_index, assignment.broker_ids)
        return len(indexes)

    def _check_replicas(self, index: int, broker_ids: tuple[int, ...]) -> None:
        if broker_ids != (self._config.node_id,):
            raise RefusedError(
                ErrorCode.invalid_replica_assignment,
                f"partition {index} is assigned to the brokers {list(broker_ids[:10])}; there is one, so it must be "
                f"[{self._config.node_id}]",
            )

    async def _create(self, name: str, partition_count: int, settings: dict[str, str]) -> Topic:
        self._topics.check_new(name, partition_count, settings)  # before the thread is bothered
        return await self._run_in_background(lambda: self._topics.create(name, partition_count, settings))

    # DeleteTopics

    async def delete_topics(self, request: Any, context: RequestContext) -> Reply:
        if context.api_version >= 6:
            wanted = [(topic.name, topic.topic_id) for topic in request.topics]
        else:
            wanted = [(name, None) for name in request.topic_names]
        deadline = self._deadline(request)
        times = Counter(wanted)
        responses = []
        for number, (name, topic_id) in enumerate(times):
            response = {"name": name, "topic_id": topic_id}
            try:
                self._check_deletable(context.api_version)
                if times[name, topic_id] > 1:
                    raise _twice(name if name is not None else topic_id)
                self._check_time(deadline, number)
                topic = await self._delete(name, topic_id)
            except StratalogError as error:
                responses.append({**response, **error_fields(error)})
            else:
                responses.append({"name": topic.name, "topic_id": topic.id, "error_code": ErrorCode.none})
            await _let_others_on(number)
        return {"responses": responses}

    def _check_deletable(self, version: int) -> None:
        if not self._config.delete_topic_enable:
            code = ErrorCode.topic_deletion_disabled if version >= 3 else ErrorCode.invalid_request
            raise RefusedError(code, "topics can't be deleted: delete.topic.enable is false")

    async def _delete(self, name: Any, topic_id: Any) -> Topic:
        if (name is None) == (topic_id is None):
            raise RefusedError(ErrorCode.invalid_request, "give a topic's name or its id, one of them")
        topic = self._topics.get(name) if topic_id is None else self._topics.by_id(topic_id)
        if topic is None and topic_id is None:
            raise UnknownTopicError(f"topic {name!r} does not exist")
        if topic is None:
            raise RefusedError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
        _check_not_internal(topic, "be deleted")
        await self._run_in_background(lambda: self._topics.delete(topic.name, topic.id))
        return topic

    # CreatePartitions

    async def create_partitions(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        deadline = self._deadline(request)
        times = Counter(topic.name for topic in request.topics)
        results = []
        for number, wanted in enumerate(_once(request.topics)):
            result = {"name": wanted.name, "error_code": ErrorCode.none, "error_message": None}
            try:
                if times[wanted.name] > 1:
                    raise _twice(wanted.name)
                self._check_time(deadline, number)
                self._check_growth(wanted)
                if not request.validate_only:
                    await self._grow(wanted.name, wanted.count)
            except StratalogError as error:
                result |= error_fields(error)
            results.append(result)
            await _let_others_on(number)
        return {"results": results}

    def _check_growth(self, wanted: Any) -> None:
        topic = self._topics.get(wanted.name)
        if topic is not None:
            _check_not_internal(topic, "get more partitions")
        self._topics.check_growth(wanted.name, wanted.count)
        if wanted.assignments is None:
            return
        first = len(self._topics.partitions(wanted.name))
        if len(wanted.assignments) != wanted.count - first:
            raise RefusedError(
                ErrorCode.invalid_replica_assignment,
                f"topic {wanted.name!r} would get {wanted.count - first} more partitions; there are assignments for "
                f"{len(wanted.assignments)}",
            )
        for index, assignment in enumerate(wanted.assignments, start=first):
            self._check_replicas(index, assignment.broker_ids)

    async def _grow(self, name: str, total: int) -> None:
        await self._run_in_background(lambda: self._topics.add_partitions(name, total))

    # The request's time

    def _deadline(self, request: Any) -> float | None:
        timeout_ms = min(to_ms(request.timeout), _LONGEST_TIMEOUT_MS)
        return self._clock.monotonic() + timeout_ms / 1000 if timeout_ms > 0 else None

    def _check_time(self, deadline: float | None, number: int) -> None:
        if deadline is not None and self._clock.monotonic() >= deadline:
            raise RefusedError(
                ErrorCode.request_timed_out, f"the request's timeout was over after {number} topics; this was not begun"
            )


_NOT_CREATED: Reply = {"topic_id": None, "num_partitions": -1, "replication_factor": -1, "configs": ()}


def _settings(wanted: Any) -> dict[str, str]:
    """Of a name that is given twice the last value counts, as in Kafka."""
    settings = {}
    for setting in wanted.configs:
        if setting.value is None:
            raise RefusedError(ErrorCode.invalid_config, f"{setting.name} has no value; leave it out for the default")
        settings[setting.name] = setting.value
    return settings


def _check_not_internal(topic: Topic, what: str) -> None:
    """Every group's records lie in the partition that its id has among so many."""
    if topic.is_internal:
        raise RefusedError(ErrorCode.invalid_topic_exception, f"{topic.name} is the broker's own and can't {what}")


def _once(topics: Iterable[Any]) -> list[Any]:
    """The first of each name."""
    first: dict[str, Any] = {}
    for topic in topics:
        first.setdefault(topic.name, topic)
    return list(first.values())


def _twice(name: Any) -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, f"topic {name} is in the request more than once")


async def _let_others_on(number: int) -> None:
    """A request may have very many topics that are refused without a wait."""
    if number % _A_FEW == _A_FEW - 1:
        await asyncio.sleep(0)
