"""CreateTopics (key 19) 2-7, DeleteTopics (key 20) 1-6, CreatePartitions (key 37) 0-3.

The topics of a request are independent: a topic that fails does not stop the others. All valid topics begin together,
with one save of the metadata, and the broker responds when all changes are durable. If the request's timeout ends
before the changes begin, the response is REQUEST_TIMED_OUT, and nothing has changed. Changes that began are completed.
A timeout of 0 or less means no timeout, because no change continues after the response.

When the broker responds, a deleted topic is permanently gone for all clients; its files are removed later. Internal
topics can't be deleted and can't get more partitions (INVALID_TOPIC_EXCEPTION), because they have the records of groups
and transactions. Kafka leaves this check to its tools.

Known gaps: there is one replica. So a replication factor must be 1 or -1, and assignments must name this broker only. A
request that only validates gets no topic id, because creating the topic would give it another one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from stratalog.broker.apis.error_fields import RefusedError, error_fields
from stratalog.broker.background import RunInBackground, RunInPortions
from stratalog.broker.metadata.topics import (
    DEFAULT_REPLICATION,
    Assignment,
    RequestedTopic,
    Topic,
    TopicRegistry,
)
from stratalog.broker.requests import Handler, LongReply, Reply, RequestContext
from stratalog.broker.settings import BrokerConfig
from stratalog.clock import Clock
from stratalog.errors import InvalidPartitionsError, StratalogError, UnknownTopicError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.encoding import Elements
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import to_ms
from stratalog.storage import names

_NameOrId = tuple[str | None, uuid.UUID | None]
DescribeSettings = Callable[[Mapping[str, str]], list[Reply]]

_DEFAULT = -1
_LONGEST_TIMEOUT_MS = 600_000
_TWO_WAYS = "topic {!r} is in the request by name and by id"
_PORTION = 100  # topics; after each portion the event loop serves other requests


class TopicApis:
    def __init__(
        self,
        topics: TopicRegistry,
        config: BrokerConfig,
        clock: Clock,
        run_in_background: RunInBackground,
        run_in_portions: RunInPortions,
        describe_settings: DescribeSettings,
    ) -> None:
        """`describe_settings` returns CreateTopics' `configs` for a topic with these own settings."""
        self._topics = topics
        self._config = config
        self._clock = clock
        self._run_in_background = run_in_background
        self._run_in_portions = run_in_portions
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
        outcomes: dict[str, RequestedTopic | Topic | StratalogError] = {}
        planned = 0  # partitions of the request's earlier topics
        for number, topic in enumerate(_once(request.topics)):
            try:
                if times[topic.name] > 1:
                    raise _twice(topic.name)
                new = self._plan(topic)
                self._topics.check_new(*new[:3], planned=planned)  # before the thread has to
                planned += new.partition_count
                outcomes[topic.name] = new
            except StratalogError as error:
                outcomes[topic.name] = error
            await _yield_between_portions(number)
        if not request.validate_only:
            await self._create(outcomes, deadline)
        results = (self._created(name, outcome, context.api_version) for name, outcome in outcomes.items())
        return LongReply(topics=Elements(len(outcomes), results))

    async def _create(
        self, outcomes: dict[str, RequestedTopic | Topic | StratalogError], deadline: float | None
    ) -> None:
        """Replace requested topics by the created topics, or by errors."""
        new = [outcome for outcome in outcomes.values() if isinstance(outcome, RequestedTopic)]
        if new:
            created = await self._run_in_portions(self._create_in_time(new, deadline))
            outcomes |= zip((topic.name for topic in new), created, strict=True)

    def _created(self, name: str, outcome: RequestedTopic | Topic | StratalogError, version: int) -> Reply:
        if isinstance(outcome, StratalogError):
            return {"name": name, **_NOT_CREATED, **error_fields(outcome)}
        return {
            "name": name,
            "topic_id": outcome.id,
            "error_code": ErrorCode.none,
            "error_message": None,
            "num_partitions": outcome.partition_count,
            "replication_factor": self._topics.replication_factor(name),
            "configs": self._describe_settings(outcome.settings) if version >= 5 else (),
        }

    def _plan(self, requested: Any) -> RequestedTopic:
        """Return the topic to create. The registry checks it further."""
        names.check_topic(requested.name)
        if requested.name == names.CLUSTER_METADATA_TOPIC:
            raise RefusedError(ErrorCode.invalid_request, f"{requested.name} is reserved for Apache Kafka")
        settings = _settings(requested)
        if requested.assignments:
            assignment = _assignment(requested)
            self._topics.check_replication(DEFAULT_REPLICATION, assignment)
            return RequestedTopic(requested.name, len(assignment), settings, assignment=assignment)
        factor, count = requested.replication_factor, requested.num_partitions
        self._topics.check_replication(factor, None)
        if count == _DEFAULT:
            count = self._config.num_partitions
        elif count < 1:
            raise InvalidPartitionsError(
                f"number of partitions is {count}; it must be 1 or more, or -1 for the default (num.partitions)"
            )
        return RequestedTopic(requested.name, count, settings, replication_factor=factor)

    # DeleteTopics

    async def delete_topics(self, request: Any, context: RequestContext) -> Reply:
        if context.api_version >= 6:
            requested = [(topic.name, topic.topic_id) for topic in request.topics]
        else:
            requested = [(name, None) for name in request.topic_names]
        deadline = self._deadline(request)
        times = Counter(requested)
        outcomes: dict[_NameOrId, Topic | StratalogError] = {}
        doomed: set[uuid.UUID] = set()
        for number, (name, topic_id) in enumerate(times):
            try:
                self._check_deletable(context.api_version)
                if times[name, topic_id] > 1:
                    raise _twice(name if name is not None else topic_id)
                topic = self._find(name, topic_id)
                if topic.id in doomed:
                    raise RefusedError(ErrorCode.unknown_topic_id, _TWO_WAYS.format(topic.name))
                doomed.add(topic.id)
                outcomes[name, topic_id] = topic
            except StratalogError as error:
                outcomes[name, topic_id] = error
            await _yield_between_portions(number)
        await self._delete(outcomes, deadline)
        return {"responses": [_deleted(*name_or_id, outcome) for name_or_id, outcome in outcomes.items()]}

    async def _delete(self, outcomes: dict[_NameOrId, Topic | StratalogError], deadline: float | None) -> None:
        """Delete topics, and replace each that can't be deleted by its error."""
        doomed = {name_or_id: topic for name_or_id, topic in outcomes.items() if isinstance(topic, Topic)}
        if not doomed:
            return

        def delete() -> Sequence[StratalogError | None]:
            if self._is_late(deadline):
                return [_too_late()] * len(doomed)
            return self._topics.delete_all([(topic.name, topic.id) for topic in doomed.values()])

        for name_or_id, failure in zip(doomed, await self._run_in_background(delete), strict=True):
            if failure is not None:
                outcomes[name_or_id] = failure

    def _check_deletable(self, version: int) -> None:
        if not self._config.delete_topic_enable:
            code = ErrorCode.topic_deletion_disabled if version >= 3 else ErrorCode.invalid_request
            raise RefusedError(code, "topics can't be deleted: delete.topic.enable is false")

    def _find(self, name: str | None, topic_id: uuid.UUID | None) -> Topic:
        if (name is None) == (topic_id is None):
            raise RefusedError(ErrorCode.invalid_request, "a topic must have either a name or a topic id")
        topic = self._topics.get(name or "") if topic_id is None else self._topics.by_id(topic_id)
        if topic is None and topic_id is None:
            raise UnknownTopicError(f"topic {name!r} does not exist")
        if topic is None:
            raise RefusedError(ErrorCode.unknown_topic_id, f"no topic has topic id {topic_id}")
        _check_not_internal(topic, "be deleted")
        return topic

    # CreatePartitions

    async def create_partitions(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        deadline = self._deadline(request)
        times = Counter(topic.name for topic in request.topics)
        outcomes: dict[str, int | Topic | StratalogError] = {}
        assignments: dict[str, Assignment] = {}
        for number, topic in enumerate(_once(request.topics)):
            try:
                if times[topic.name] > 1:
                    raise _twice(topic.name)
                if (assignment := self._check_growth(topic)) is not None:
                    assignments[topic.name] = assignment
                outcomes[topic.name] = topic.count
            except StratalogError as error:
                outcomes[topic.name] = error
            await _yield_between_portions(number)
        growing = {name: total for name, total in outcomes.items() if isinstance(total, int)}
        if growing and not request.validate_only:
            outcomes |= await self._run_in_background(lambda: self._grow(growing, assignments, deadline))
        return {"results": [_grown(name, outcome) for name, outcome in outcomes.items()]}

    def _grow(
        self, totals: Mapping[str, int], assignments: Mapping[str, Assignment], deadline: float | None
    ) -> Mapping[str, Topic | StratalogError]:
        """Add partitions. Runs in the background thread."""
        if self._is_late(deadline):
            return dict.fromkeys(totals, _too_late())
        return dict(zip(totals, self._topics.add_partitions_to_all(totals.items(), assignments), strict=True))

    def _check_growth(self, requested: Any) -> Assignment | None:
        """Return the replicas of the new partitions if the client has chosen them."""
        topic = self._topics.get(requested.name)
        if topic is not None:
            _check_not_internal(topic, "get more partitions")
        self._topics.check_growth(requested.name, requested.count)
        if requested.assignments is None:
            return None
        first = len(self._topics.partitions(requested.name))
        if len(requested.assignments) != requested.count - first:
            raise RefusedError(
                ErrorCode.invalid_replica_assignment,
                f"topic {requested.name!r} would get {requested.count - first} more partitions, but there are "
                f"{len(requested.assignments)} assignments",
            )
        assignment = [list(each.broker_ids) for each in requested.assignments]
        self._topics.check_replication(DEFAULT_REPLICATION, assignment, first=first)
        return assignment

    # Timeouts

    def _deadline(self, request: Any) -> float | None:
        timeout_ms = min(to_ms(request.timeout), _LONGEST_TIMEOUT_MS)
        return self._clock.monotonic() + timeout_ms / 1000 if timeout_ms > 0 else None

    def _is_late(self, deadline: float | None) -> bool:
        return deadline is not None and self._clock.monotonic() >= deadline

    def _create_in_time(
        self, new: Sequence[RequestedTopic], deadline: float | None
    ) -> Generator[None, None, Sequence[Topic | StratalogError]]:
        if self._is_late(deadline):
            return [_too_late()] * len(new)
        return (yield from self._topics.create_all(new))


_NOT_CREATED: Reply = {"topic_id": None, "num_partitions": -1, "replication_factor": -1, "configs": ()}


def _deleted(name: str | None, topic_id: uuid.UUID | None, outcome: Topic | StratalogError) -> Reply:
    if isinstance(outcome, StratalogError):
        return {"name": name, "topic_id": topic_id, **error_fields(outcome)}
    return {"name": outcome.name, "topic_id": outcome.id, "error_code": ErrorCode.none}


def _grown(name: str, outcome: int | Topic | StratalogError) -> Reply:
    if isinstance(outcome, StratalogError):
        return {"name": name, **error_fields(outcome)}
    return {"name": name, "error_code": ErrorCode.none, "error_message": None}


def _too_late() -> RefusedError:
    return RefusedError(ErrorCode.request_timed_out, "the request's timeout ended before its changes began")


def _assignment(requested: Any) -> Assignment:
    if requested.replication_factor != _DEFAULT or requested.num_partitions != _DEFAULT:
        raise RefusedError(
            ErrorCode.invalid_request,
            f"topic {requested.name!r} has assignments, so number of partitions and replication factor must be -1; "
            f"they are {requested.num_partitions} and {requested.replication_factor}",
        )
    replicas = {each.partition_index: list(each.broker_ids) for each in requested.assignments}
    if len(replicas) != len(requested.assignments) or sorted(replicas) != list(range(len(replicas))):
        raise RefusedError(
            ErrorCode.invalid_replica_assignment,
            f"assignments must be for the partitions from 0 to {len(requested.assignments) - 1}, each once",
        )
    return [replicas[index] for index in range(len(replicas))]


def _settings(requested: Any) -> dict[str, str]:
    """Return the settings of a topic. If a name is repeated, its last value counts, as in Kafka."""
    settings = {}
    for setting in requested.configs:
        if setting.value is None:
            raise RefusedError(ErrorCode.invalid_config, f"{setting.name} has no value; leave it out for the default")
        settings[setting.name] = setting.value
    return settings


def _check_not_internal(topic: Topic, what: str) -> None:
    """Raise if the topic is internal. The number of its partitions decides which of them has the records of a group or
    transactional id."""
    if topic.is_internal:
        raise RefusedError(ErrorCode.invalid_topic_exception, f"{topic.name} is an internal topic and can't {what}")


def _once(topics: Iterable[Any]) -> list[Any]:
    """Return the first topic of each name."""
    first: dict[str, Any] = {}
    for topic in topics:
        first.setdefault(topic.name, topic)
    return list(first.values())


def _twice(name: Any) -> RefusedError:
    return RefusedError(
        ErrorCode.invalid_request, f"topic {name} is in the request more than once; it must be there once"
    )


async def _yield_between_portions(number: int) -> None:
    """Let the event loop serve other requests after each portion: a request may have very many topics that are refused
    without a wait."""
    if number % _PORTION == _PORTION - 1:
        await asyncio.sleep(0)
