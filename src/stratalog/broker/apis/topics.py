"""CreateTopics (key 19) 2-7, DeleteTopics (key 20) 1-6, CreatePartitions (key 37) 0-3.

Each topic of a request is judged for itself: one that fails does not stop the others. All that can be done is begun
together, with one save of the metadata, and the answer comes when all of it is durable. A request whose timeout is over
before it is begun is answered with REQUEST_TIMED_OUT, and nothing is touched; what is begun is finished. A timeout of 0
or less is taken for "as long as it takes", since nothing here goes on after the answer that it could leave out.

A topic is gone for everybody, and for good, when the answer comes; its files are removed after that. Internal topics
can't be deleted, nor get more partitions (INVALID_TOPIC_EXCEPTION; Kafka leaves that to its tools): groups live
in them.

Known gaps: there is one replica. So a replication factor is 1 or -1, and assignments name this broker alone. The topic
id of a request that only validates is empty: the topic would get another.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from stratalog.broker.apis.error_fields import RefusedError, error_fields
from stratalog.broker.background import RunInBackground, RunInPortions
from stratalog.broker.metadata.topics import NewTopic, Topic, TopicRegistry
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
_A_FEW = 100  # topics between two looks at what else there is to do


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
        """`describe_settings` gives CreateTopics' `configs` for a topic that has these settings of its own."""
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
        wanted = _once(request.topics)
        outcomes: dict[str, NewTopic | Topic | StratalogError] = {}
        planned = 0  # partitions that earlier topics of the request take
        for number, topic in enumerate(wanted):
            try:
                if times[topic.name] > 1:
                    raise _twice(topic.name)
                new = NewTopic(topic.name, *self._plan(topic))
                self._topics.check_new(*new[:3], besides=planned)  # before the thread is bothered
                planned += new.partition_count
                outcomes[topic.name] = new
            except StratalogError as error:
                outcomes[topic.name] = error
            await _let_others_on(number)
        if not request.validate_only:
            await self._create(outcomes, deadline)
        results = (self._created(name, outcome, context.api_version) for name, outcome in outcomes.items())
        return LongReply(topics=Elements(len(outcomes), results))

    async def _create(self, outcomes: dict[str, NewTopic | Topic | StratalogError], deadline: float | None) -> None:
        """Put topics, or why there is none, in the place of those that are new."""
        new = [outcome for outcome in outcomes.values() if isinstance(outcome, NewTopic)]
        if new:
            created = await self._run_in_portions(self._create_in_time(new, deadline))
            outcomes |= zip((topic.name for topic in new), created, strict=True)

    def _created(self, name: str, outcome: NewTopic | Topic | StratalogError, version: int) -> Reply:
        if isinstance(outcome, StratalogError):
            return {"name": name, **_NOT_CREATED, **error_fields(outcome)}
        return {
            "name": name,
            "topic_id": outcome.id,
            "error_code": ErrorCode.none,
            "error_message": None,
            "num_partitions": outcome.partition_count,
            "replication_factor": 1,
            "configs": self._describe_settings(outcome.settings) if version >= 5 else (),
        }

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

    # DeleteTopics

    async def delete_topics(self, request: Any, context: RequestContext) -> Reply:
        if context.api_version >= 6:
            wanted = [(topic.name, topic.topic_id) for topic in request.topics]
        else:
            wanted = [(name, None) for name in request.topic_names]
        deadline = self._deadline(request)
        times = Counter(wanted)
        outcomes: dict[_NameOrId, Topic | StratalogError] = {}
        found: set[uuid.UUID] = set()
        for number, (name, topic_id) in enumerate(times):
            try:
                self._check_deletable(context.api_version)
                if times[name, topic_id] > 1:
                    raise _twice(name if name is not None else topic_id)
                topic = self._find(name, topic_id)
                if topic.id in found:
                    raise RefusedError(ErrorCode.unknown_topic_id, _TWO_WAYS.format(topic.name))
                found.add(topic.id)
                outcomes[name, topic_id] = topic
            except StratalogError as error:
                outcomes[name, topic_id] = error
            await _let_others_on(number)
        await self._delete(outcomes, deadline)
        return {"responses": [_deleted(*asked, outcome) for asked, outcome in outcomes.items()]}

    async def _delete(self, outcomes: dict[_NameOrId, Topic | StratalogError], deadline: float | None) -> None:
        """Put an error in the place of each topic that can't be deleted."""
        doomed = {asked: topic for asked, topic in outcomes.items() if isinstance(topic, Topic)}
        if not doomed:
            return

        def delete() -> Sequence[StratalogError | None]:
            if self._is_late(deadline):
                return [_too_late()] * len(doomed)
            return self._topics.delete_all([(topic.name, topic.id) for topic in doomed.values()])

        for asked, failure in zip(doomed, await self._run_in_background(delete), strict=True):
            if failure is not None:
                outcomes[asked] = failure

    def _check_deletable(self, version: int) -> None:
        if not self._config.delete_topic_enable:
            code = ErrorCode.topic_deletion_disabled if version >= 3 else ErrorCode.invalid_request
            raise RefusedError(code, "topics can't be deleted: delete.topic.enable is false")

    def _find(self, name: str | None, topic_id: uuid.UUID | None) -> Topic:
        if (name is None) == (topic_id is None):
            raise RefusedError(ErrorCode.invalid_request, "give a topic's name or its id, one of them")
        topic = self._topics.get(name or "") if topic_id is None else self._topics.by_id(topic_id)
        if topic is None and topic_id is None:
            raise UnknownTopicError(f"topic {name!r} does not exist")
        if topic is None:
            raise RefusedError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
        _check_not_internal(topic, "be deleted")
        return topic

    # CreatePartitions

    async def create_partitions(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        deadline = self._deadline(request)
        times = Counter(topic.name for topic in request.topics)
        outcomes: dict[str, int | Topic | StratalogError] = {}
        for number, wanted in enumerate(_once(request.topics)):
            try:
                if times[wanted.name] > 1:
                    raise _twice(wanted.name)
                self._check_growth(wanted)
                outcomes[wanted.name] = wanted.count
            except StratalogError as error:
                outcomes[wanted.name] = error
            await _let_others_on(number)
        growing = {name: total for name, total in outcomes.items() if isinstance(total, int)}
        if growing and not request.validate_only:
            outcomes |= await self._run_in_background(lambda: self._grow(growing, deadline))
        return {"results": [_grown(name, outcome) for name, outcome in outcomes.items()]}

    def _grow(self, totals: Mapping[str, int], deadline: float | None) -> Mapping[str, Topic | StratalogError]:
        """In the background thread."""
        if self._is_late(deadline):
            return dict.fromkeys(totals, _too_late())
        return dict(zip(totals, self._topics.add_partitions_to_all(totals.items()), strict=True))

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

    # The request's time

    def _deadline(self, request: Any) -> float | None:
        timeout_ms = min(to_ms(request.timeout), _LONGEST_TIMEOUT_MS)
        return self._clock.monotonic() + timeout_ms / 1000 if timeout_ms > 0 else None

    def _is_late(self, deadline: float | None) -> bool:
        return deadline is not None and self._clock.monotonic() >= deadline

    def _create_in_time(
        self, new: Sequence[NewTopic], deadline: float | None
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
    return RefusedError(ErrorCode.request_timed_out, "the request's timeout was over before it was its turn")


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
