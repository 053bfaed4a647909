"""Committed offsets of groups.

| key | API | versions | notes |
|---|---|---|---|
| 8 | OffsetCommit | 2-10 | leader epochs from 6, static members from 7, KIP-848 members from 9, topic ids in 10 |
| 9 | OffsetFetch | 1-10 | all topics from 2, several groups from 8, KIP-848 members from 9, topic ids in 10 |
| 47 | OffsetDelete | 0 | topics that the group does not subscribe to |

An offset that was committed for a topic that has since been deleted and made again is not handed out.
With `require_stable`, a partition with an offset that was committed in an open transaction is answered with
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
    """What of the TopicRegistry is used here."""

    def get(self, name: str) -> Topic | None: ...

    def by_id(self, topic_id: UUID) -> Topic | None: ...


class _Asked(NamedTuple):
    """A topic as a request names it, and what it was found to be."""

    named: Reply  # the name or id, to be repeated in the answer
    name: str | None  # None: an id that is not known
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

    def _look_up(self, asked: Any, version: int) -> _Asked:
        if version < _FIRST_VERSION_WITH_TOPIC_IDS:
            return _Asked({"name": asked.name}, asked.name, self._topics.get(asked.name))
        topic = None if asked.topic_id is None else self._topics.by_id(asked.topic_id)
        return _Asked({"topic_id": asked.topic_id}, None if topic is None else topic.name, topic)

    # OffsetCommit

    async def offset_commit(self, request: Any, context: RequestContext) -> Reply:
        commits: list[OffsetToCommit] = []
        answers: list[Reply] = []  # of `commits`, in the same order
        topics = []
        for asked in request.topics:
            found = self._look_up(asked, context.api_version)
            partitions = []
            for one in asked.partitions:
                answer = {"partition_index": one.partition_index, "error_code": _unknown(found, one.partition_index)}
                partitions.append(answer)
                if answer["error_code"] is ErrorCode.none and found.topic is not None:
                    commits.append(commit_of(found.topic, one))
                    answers.append(answer)
            topics.append({**found.named, "partitions": partitions})
        if commits:
            errors = await self._commit(request, context.api_version, commits)
            for answer, error in zip(answers, errors, strict=True):
                answer["error_code"] = error
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
                f"OffsetFetch asks for {len(request.groups)} groups; {MOST_GROUPS} are the most"
            )
        groups = []
        for one in {group.group_id: group for group in request.groups}.values():
            error, topics = self._fetch(one, version, request.require_stable)
            groups.append({"group_id": one.group_id, "error_code": error, "topics": topics})
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
                continue  # there is no id to call it by
            offsets = [
                _no_offset(index, _UNSTABLE)
                if stable and OffsetKey(group_id, name, index) in self._offsets.pending
                else _offset(index, one)
                for index, one in partitions.items()
                if _is_of(one, topic)
            ]
            if offsets:
                named = {"name": name, "topic_id": None if topic is None else topic.id}
                topics.append({**named, "partitions": offsets})
        return topics

    def _some_offsets(self, request: Any, version: int, stable: bool) -> list[Reply]:
        topics = []
        for asked, indexes in _once(request.topics, version):
            found = self._look_up(asked, version)
            if found.name is None:
                offsets = [_no_offset(index, ErrorCode.unknown_topic_id) for index in indexes]
            else:
                offsets = [self._find(request.group_id, found.name, found.topic, index, stable) for index in indexes]
            topics.append({**found.named, "partitions": offsets})
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
        answers: list[Reply] = []
        topics = []
        for asked in request.topics:
            found = self._look_up(asked, context.api_version)
            partitions = []
            for one in asked.partitions:
                answer = {"partition_index": one.partition_index, "error_code": _unknown(found, one.partition_index)}
                partitions.append(answer)
                if answer["error_code"] is ErrorCode.none:
                    doomed.append((asked.name, one.partition_index))
                    answers.append(answer)
            topics.append({**found.named, "partitions": partitions})
        for answer, each in zip(answers, self._service.delete(request.group_id, doomed), strict=True):
            answer["error_code"] = each
        return {"error_code": ErrorCode.none, "topics": topics}


def _unknown(found: _Asked, index: int) -> ErrorCode:
    if found.name is None:
        return ErrorCode.unknown_topic_id
    if found.topic is None or not 0 <= index < found.topic.partition_count:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


def commit_of(topic: Topic, one: Any) -> OffsetToCommit:
    """Return what a partition of an OffsetCommit or TxnOffsetCommit request commits."""
    return OffsetToCommit(
        topic.name,
        topic.id,
        one.partition_index,
        one.committed_offset,
        getattr(one, "committed_leader_epoch", -1),
        one.committed_metadata,
    )


def _is_of(committed: CommittedOffset, topic: Topic | None) -> bool:
    """Not of an earlier topic of the same name. Offsets of before 4.1 do not say."""
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
    """Each partition once: an answer may be thousands of times as large as the four bytes that ask for it."""
    asked: dict[Any, tuple[Any, dict[int, None]]] = {}
    count = 0
    for topic in topics:
        name = topic.topic_id if version >= _FIRST_VERSION_WITH_TOPIC_IDS else topic.name
        _, indexes = asked.setdefault(name, (topic, {}))
        indexes.update(dict.fromkeys(topic.partition_indexes))
        count += len(topic.partition_indexes)
        if count > MOST_PARTITIONS:
            raise MalformedRequestError(f"OffsetFetch asks for more than {MOST_PARTITIONS} partitions")
    return [(topic, list(indexes)) for topic, indexes in asked.values()]


def _every_partition(request: Any, error: ErrorCode) -> list[Reply]:
    """Version 1 has no other place for an error."""
    return [
        {"name": topic.name, "partitions": [_no_offset(index, error) for index in indexes]}
        for topic, indexes in _once(request.topics, 1)
    ]
