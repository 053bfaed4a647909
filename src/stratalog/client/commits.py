"""Committed offsets of a group: written and read at its coordinator, with retries. In the I/O thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from stratalog.client.backoff import Backoff
from stratalog.client.cluster import Cluster, CoordinatorKind
from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.errors import CommitFailedError, error_of
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import OffsetAndMetadata, offset_topics
from stratalog.errors import ClientError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_HIGHEST_COMMIT = 9  # from 10 on topics have ids instead of names
_HIGHEST_FETCH = 9
_NOT_A_MEMBER = {
    ErrorCode.unknown_member_id,
    ErrorCode.illegal_generation,
    ErrorCode.fenced_member_epoch,
}
_AGAIN = {
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.request_timed_out,
    ErrorCode.stale_member_epoch,
    ErrorCode.unstable_offset_commit,
    # A cooperative member keeps its partitions while it joins, and the I/O thread gets it through that.
    ErrorCode.rebalance_in_progress,
}


class Identity(NamedTuple):
    """Who commits. Without a membership the group's coordinator takes commits of anybody, while it has no members."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class Commits:
    def __init__(self, cluster: Cluster, settings: ConsumerSettings, identity: Callable[[], Identity]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._identity = identity
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)

    @property
    def group_id(self) -> str:
        if self._settings.group_id is None:
            raise ClientError("the consumer has no group to commit for; give it a group_id")
        return self._settings.group_id

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float) -> None:
        """Raises CommitFailedError where the partitions belong to others by now."""
        left = dict(offsets)

        async def attempt(seconds: float) -> list[ClientError]:
            identity = self._identity()
            body = self._commit_body(left, identity)
            answer = await self._ask(ApiKey.OFFSET_COMMIT, body, 2, _HIGHEST_COMMIT, seconds)
            problems: list[ClientError] = []
            for topic in answer.topics:
                for one in topic.partitions:
                    place = TopicPartition(topic.name, one.partition_index)
                    if one.error_code == ErrorCode.none:
                        left.pop(place, None)
                    elif one.error_code == ErrorCode.illegal_generation and self._has_moved_on(identity):
                        problems.append(error_of(ErrorCode.rebalance_in_progress, about=str(place)))
                    else:
                        problems.append(self._problem(one.error_code, place))
            return problems

        if left:
            await self._repeat(attempt, timeout)

    async def committed(
        self, places: Iterable[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(places)
        if not found:
            return found

        async def attempt(seconds: float) -> list[ClientError]:
            answer = await self._ask(ApiKey.OFFSET_FETCH, self._fetch_body(list(found)), 1, _HIGHEST_FETCH, seconds)
            told = answer.groups[0] if getattr(answer, "groups", None) else answer
            code = getattr(told, "error_code", ErrorCode.none)
            if code != ErrorCode.none:
                return [self._problem(code, f"group {self.group_id!r}")]
            problems: list[ClientError] = []
            for topic in told.topics:
                for one in topic.partitions:
                    place = TopicPartition(topic.name, one.partition_index)
                    if one.error_code != ErrorCode.none:
                        problems.append(self._problem(one.error_code, place))
                    elif one.committed_offset >= 0:
                        epoch = getattr(one, "committed_leader_epoch", -1)
                        found[place] = OffsetAndMetadata(one.committed_offset, one.metadata or "", epoch)
            return problems

        await self._repeat(attempt, timeout)
        return found

    async def _repeat(self, attempt: Callable[[float], Any], timeout: float) -> None:
        """Until there are no problems; those that pass are tried again while there is time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        failures = 0
        while True:
            problems: list[ClientError] = await attempt(max(0.001, deadline - loop.time()))
            if not problems:
                return
            for problem in problems:
                if problem.code not in _AGAIN:
                    raise problem
            failures += 1
            wait = self._backoff.seconds(failures)
            if loop.time() + wait > deadline:
                raise problems[0]
            await asyncio.sleep(wait)

    async def _ask(self, api: ApiKey, body: dict[str, Any], lowest: int, highest: int, timeout: float) -> Any:
        return await self._cluster.ask_coordinator(
            CoordinatorKind.GROUP, self.group_id, api, body, lowest=lowest, highest=highest, timeout=timeout
        )

    def _problem(self, code: ErrorCode, about: object) -> ClientError:
        if code in _NOT_A_MEMBER:
            return CommitFailedError(
                f"{about}: not committed ({code.name.upper()}): the group has given the partitions to others, because "
                f"this member did not poll for max.poll.interval.ms ({self._settings.max_poll_interval_ms}), or was "
                f"not heard of for session.timeout.ms; take fewer records a poll (max.poll.records), or allow more time"
            )
        return error_of(code, about=str(about))

    def _has_moved_on(self, before: Identity) -> bool:
        """Whether the same member is of a later generation now: the commit was behind a JoinGroup."""
        now = self._identity()
        return now.member_id == before.member_id and now.generation > before.generation

    def _commit_body(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], identity: Identity) -> dict[str, Any]:
        return {
            "group_id": self.group_id,
            "generation_id_or_member_epoch": identity.generation,
            "member_id": identity.member_id,
            "group_instance_id": identity.instance_id,
            "topics": offset_topics(offsets),
        }

    def _fetch_body(self, places: list[TopicPartition]) -> dict[str, Any]:
        by_topic: dict[str, list[int]] = {}
        for place in places:
            by_topic.setdefault(place.topic, []).append(place.partition)
        topics = [{"name": topic, "partition_indexes": indexes} for topic, indexes in by_topic.items()]
        group = {"group_id": self.group_id, "topics": topics, "member_id": None, "member_epoch": -1}
        require_stable = self._settings.isolation_level == "read_committed"
        return {"group_id": self.group_id, "topics": topics, "groups": [group], "require_stable": require_stable}
