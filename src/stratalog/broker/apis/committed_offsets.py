"""Committed offsets of groups.

| key | API | versions | notes |
|---|---|---|---|
| 8 | OffsetCommit | 2-10 | leader epochs from 6, static members from 7, KIP-848 members from 9, topic ids in 10 |
| 9 | OffsetFetch | 1-10 | all topics from 2, several groups from 8, KIP-848 members from 9, topic ids in 10 |
| 47 | OffsetDelete | 0 | topics that the group does not subscribe to |

OffsetFetch does not return an offset that was committed for an earlier topic of the same name.
With `require_stable`, a partition with an offset that was committed in an open transaction gets
UNSTABLE_OFFSET_COMMIT. TxnOffsetCommit is with the other requests of transactions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from stratalog.broker.apis.groups import MOST_GROUPS
from stratalog.broker.groups.coordinator import GroupCoordinator
from stratalog.broker.groups.offset_records import CommittedOffset, OffsetKey
from stratalog.broker.groups.offset_service import Committer, OffsetService
from stratalog.broker.groups.offsets import OffsetToCommit
from stratalog.broker.metadata.store import Topic
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.errors import MalformedRequestError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import to_ms

MOST_PARTITIONS = 100_000  # in one OffsetFetch
_FIRST_FETCH_WITH_GROUP_ERRORS = 2
_FIRST_FETCH_OF_SEVERAL_GROUPS = 8
_FIRST_VERSION_WITH_TOPIC_IDS = 10
_NO_OFFSET = -1
_UNSTABLE = ErrorCode.unstable_offset_commit
_BROKERS_RETENTION = -1


class OffsetTopics(Protocol):
    """The part of the TopicRegistry that is used here."""

    def get(self, name: str) -> Topic | None: ...

    def by_id(self, topic_id: UUID) -> Topic | None: ...


class _RequestedTopic(NamedTuple):
    """A topic as a request names it, and the topic that has this name or id."""

    fields: Reply  # the name or topic id, for the response
    name: str | None  # None: the topic id is unknown
    topic: Topic | None


class CommittedOffsetApis:
    def __init__(self, coordinator: GroupCoordinator, topics: OffsetTopics) -> None:
        self._coordinator = coordinator
        self._offsets = coordinator.offsets
        self._service = OffsetService(coordinator)
        self._topics = topics

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.OFFSET_COMMIT: self.offset_commit,
            ApiKey.OFFSET_FETCH: self.offset_fetch,
            ApiKey.OFFSET_DELETE: self.offset_delete,
        }

    def _look_up(self, requested: Any, version: int) -> _RequestedTopic:
        if version < _FIRST_VERSION_WITH_TOPIC_IDS:
            return _RequestedTopic({"name": requested.name}, requested.name, self._topics.get(requested.name))
        topic = None if requested.topic_id is None else self._topics.by_id(requested.topic_id)
        return _RequestedTopic({"topic_id": requested.topic_id}, None if topic is None else topic.name, topic)

    # OffsetCommit

    async def offset_commit(self, request: Any, context: RequestContext) -> Reply:
        commits: list[OffsetToCommit] = []
        results: list[Reply] = []  # of `commits`, in the same order
        topics = []
        for requested in request.topics:
            topic = self._look_up(requested, context.api_version)
            partitions = []
            for partition in requested.partitions:
                index = partition.partition_index
                result = {"partition_index": index, "error_code": _check_exists(topic, index)}
                partitions.append(result)
                if result["error_code"] is ErrorCode.none and topic.topic is not None:
                    commits.append(commit_of(topic.topic, partition))
                    results.append(result)
            topics.append({**topic.fields, "partitions": partitions})
        if commits:
            errors = await self._commit(request, context.api_version, commits)
            for result, error in zip(results, errors, strict=True):
                result["error_code"] = error
        return {"topics": topics}

    async def _commit(self, request: Any, version: int, commits: list[OffsetToCommit]) -> list[ErrorCode]:
        error = await self._coordinator.prepare(request.group_id, may_be_empty=True)
        if error is not ErrorCode.none:
            return [error for _ in commits]
        committer = Committer(
            request.group_id,
            request.member_id,
            request.generation_id_or_member_epoch,
            getattr(request, "group_instance_id", None),
            version,
        )
        retention = to_ms(request.retention_time) if hasattr(request, "retention_time") else _BROKERS_RETENTION
        return self._service.commit(committer, commits, None if retention == _BROKERS_RETENTION else retention)

    # OffsetFetch

    def offset_fetch(self, request: Any, context: RequestContext) -> Reply:
        version = context.api_version
        if version < _FIRST_FETCH_OF_SEVERAL_GROUPS:
            error, topics = self._fetch(request, version, getattr(request, "require_stable", False))
            return {"error_code": error, "topics": topics}
        if len(request.groups) > MOST_GROUPS:
            raise MalformedRequestError(
                f"OffsetFetch has {len(request.groups)} groups; it must have at most {MOST_GROUPS}"
            )
        groups = []
        for group in {group.group_id: group for group in request.groups}.values():
            error, topics = self._fetch(group, version, request.require_stable)
            groups.append({"group_id": group.group_id, "error_code": error, "topics": topics})
        return {"groups": groups}

    def _fetch(self, request: Any, version: int, stable: bool) -> tuple[ErrorCode, list[Reply]]:
        group_id = request.group_id
        error = self._coordinator.status(group_id, may_be_empty=True)
        if error is ErrorCode.none:
            member_id, epoch = getattr(request, "member_id", None), getattr(request, "member_epoch", -1)
            error = self._service.check_fetch(group_id, member_id, epoch)
        if error is not ErrorCode.none:
            if version >= _FIRST_FETCH_WITH_GROUP_ERRORS:
                return error, []
            return error, _every_partition(request, error)
        if request.topics is None:
            return error, self._all_offsets(group_id, version, stable)
        return error, self._some_offsets(request, version, stable)

    def _all_offsets(self, group_id: str, version: int, stable: bool) -> list[Reply]:
        topics = []
        for name, partitions in self._offsets.of(group_id).items():
            topic = self._topics.get(name)
            if topic is None and version >= _FIRST_VERSION_WITH_TOPIC_IDS:
                continue  # a deleted topic has no topic id
            offsets = [
                _no_offset(index, _UNSTABLE)
                if stable and OffsetKey(group_id, name, index) in self._offsets.pending
                else _offset(index, committed)
                for index, committed in partitions.items()
                if _is_of(committed, topic)
            ]
            if offsets:
                topic_id = None if topic is None else topic.id
                topics.append({"name": name, "topic_id": topic_id, "partitions": offsets})
        return topics

    def _some_offsets(self, request: Any, version: int, stable: bool) -> list[Reply]:
        topics = []
        for requested, indexes in _once(request.topics, version):
            topic = self._look_up(requested, version)
            if topic.name is None:
                offsets = [_no_offset(index, ErrorCode.unknown_topic_id) for index in indexes]
            else:
                offsets = [self._find(request.group_id, topic.name, topic.topic, index, stable) for index in indexes]
            topics.append({**topic.fields, "partitions": offsets})
        return topics

    def _find(self, group_id: str, name: str, topic: Topic | None, index: int, stable: bool) -> Reply:
        key = OffsetKey(group_id, name, index)
        if stable and key in self._offsets.pending:
            return _no_offset(index, _UNSTABLE)
        committed = self._offsets.find(key)
        return _offset(index, committed) if committed is not None and _is_of(committed, topic) else _no_offset(index)

    # OffsetDelete

    def offset_delete(self, request: Any, context: RequestContext) -> Reply:
        error = self._coordinator.status(request.group_id, may_be_empty=True)
        if error is ErrorCode.none:
            error = self._service.check_delete(request.group_id)
        if error is not ErrorCode.none:
            return {"error_code": error, "topics": []}
        doomed: list[tuple[str, int]] = []
        results: list[Reply] = []
        topics = []
        for requested in request.topics:
            topic = self._look_up(requested, context.api_version)
            partitions = []
            for partition in requested.partitions:
                index = partition.partition_index
                result = {"partition_index": index, "error_code": _check_exists(topic, index)}
                partitions.append(result)
                if result["error_code"] is ErrorCode.none:
                    doomed.append((requested.name, index))
                    results.append(result)
            topics.append({**topic.fields, "partitions": partitions})
        for result, deletion_error in zip(results, self._service.delete(request.group_id, doomed), strict=True):
            result["error_code"] = deletion_error
        return {"error_code": ErrorCode.none, "topics": topics}


def _check_exists(topic: _RequestedTopic, index: int) -> ErrorCode:
    if topic.name is None:
        return ErrorCode.unknown_topic_id
    if topic.topic is None or not 0 <= index < topic.topic.partition_count:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


def commit_of(topic: Topic, partition: Any) -> OffsetToCommit:
    """Return the offset that an OffsetCommit or TxnOffsetCommit request commits for one partition."""
    return OffsetToCommit(
        topic.name,
        topic.id,
        partition.partition_index,
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", -1),
        partition.committed_metadata,
    )


def _is_of(committed: CommittedOffset, topic: Topic | None) -> bool:
    """Return whether the offset is of this topic, and not of an earlier topic of the same name. Offsets that were
    committed before 4.1 have no topic id, and count as of this topic."""
    return topic is None or committed.topic_id in (None, topic.id)


def _offset(index: int, committed: CommittedOffset) -> Reply:
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": ErrorCode.none,
    }


def _no_offset(index: int, error: ErrorCode = ErrorCode.none) -> Reply:
    return {"partition_index": index, "committed_offset": _NO_OFFSET, "metadata": "", "error_code": error}


def _once(topics: Iterable[Any], version: int) -> list[tuple[Any, list[int]]]:
    """Return each partition once: an entry of the response may be thousands of times as large as one of the request."""
    requested: dict[Any, tuple[Any, dict[int, None]]] = {}
    count = 0
    for topic in topics:
        name = topic.topic_id if version >= _FIRST_VERSION_WITH_TOPIC_IDS else topic.name
        _, indexes = requested.setdefault(name, (topic, {}))
        indexes.update(dict.fromkeys(topic.partition_indexes))
        count += len(topic.partition_indexes)
        if count > MOST_PARTITIONS:
            raise MalformedRequestError(f"OffsetFetch has too many partitions; it must have at most {MOST_PARTITIONS}")
    return [(topic, list(indexes)) for topic, indexes in requested.values()]


def _every_partition(request: Any, error: ErrorCode) -> list[Reply]:
    """Return the error for every partition, because a response of version 1 has no field for an error of the group."""
    return [
        {"name": topic.name, "partitions": [_no_offset(index, error) for index in indexes]}
        for topic, indexes in _once(request.topics, 1)
    ]
