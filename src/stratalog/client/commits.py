"""Commits and fetches the offsets of a group at its coordinator, with retries. In the I/O thread."""

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
_RETRIED = {
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.request_timed_out,
    ErrorCode.stale_member_epoch,
    ErrorCode.unstable_offset_commit,
    # A cooperative member keeps its partitions while it joins; the I/O thread completes the join.
    ErrorCode.rebalance_in_progress,
}


class CommittingMember(NamedTuple):
    """The member that commits. The defaults mean no member: a coordinator accepts them while the group is empty."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class Commits:
    def __init__(self, cluster: Cluster, settings: ConsumerSettings, identity: Callable[[], CommittingMember]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._identity = identity
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)

    @property
    def group_id(self) -> str:
        if self._settings.group_id is None:
            raise ClientError("the consumer has no group to commit for; set group_id")
        return self._settings.group_id

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float) -> None:
        """Commit offsets. Raises CommitFailedError if the partitions belong to other members by now."""
        left = dict(offsets)

        async def attempt(seconds: float) -> list[ClientError]:
            identity = self._identity()
            body = self._commit_body(left, identity)
            response = await self._request(ApiKey.OFFSET_COMMIT, body, 2, _HIGHEST_COMMIT, seconds)
            problems: list[ClientError] = []
            for topic in response.topics:
                for result in topic.partitions:
                    partition = TopicPartition(topic.name, result.partition_index)
                    if result.error_code == ErrorCode.none:
                        left.pop(partition, None)
                    elif result.error_code == ErrorCode.illegal_generation and self._has_rejoined(identity):
                        problems.append(error_of(ErrorCode.rebalance_in_progress, about=str(partition)))
                    else:
                        problems.append(self._problem(result.error_code, partition))
            return problems

        if left:
            await self._repeat(attempt, timeout)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offset of each partition; None for partitions without one."""
        committed: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions)
        if not committed:
            return committed

        async def attempt(seconds: float) -> list[ClientError]:
            body = self._fetch_body(list(committed))
            response = await self._request(ApiKey.OFFSET_FETCH, body, 1, _HIGHEST_FETCH, seconds)
            group = response.groups[0] if getattr(response, "groups", None) else response
            code = getattr(group, "error_code", ErrorCode.none)
            if code != ErrorCode.none:
                return [self._problem(code, f"group {self.group_id!r}")]
            problems: list[ClientError] = []
            for topic in group.topics:
                for result in topic.partitions:
                    partition = TopicPartition(topic.name, result.partition_index)
                    if result.error_code != ErrorCode.none:
                        problems.append(self._problem(result.error_code, partition))
                    elif result.committed_offset >= 0:
                        epoch = getattr(result, "committed_leader_epoch", -1)
                        committed[partition] = OffsetAndMetadata(result.committed_offset, result.metadata or "", epoch)
            return problems

        await self._repeat(attempt, timeout)
        return committed

    async def _repeat(self, attempt: Callable[[float], Any], timeout: float) -> None:
        """Call `attempt` until it returns no problems. Raises the first problem that is not retried, or is left when
        the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        failures = 0
        while True:
            problems: list[ClientError] = await attempt(max(0.001, deadline - loop.time()))
            if not problems:
                return
            for problem in problems:
                if problem.code not in _RETRIED:
                    raise problem
            failures += 1
            wait = self._backoff.seconds(failures)
            if loop.time() + wait > deadline:
                raise problems[0]
            await asyncio.sleep(wait)

    async def _request(self, api: ApiKey, body: dict[str, Any], lowest: int, highest: int, timeout: float) -> Any:
        return await self._cluster.ask_coordinator(
            CoordinatorKind.GROUP, self.group_id, api, body, lowest=lowest, highest=highest, timeout=timeout
        )

    def _problem(self, code: ErrorCode, about: object) -> ClientError:
        if code in _NOT_A_MEMBER:
            return CommitFailedError(
                f"{about}: not committed ({code.name.upper()}): the group has assigned the partitions to other "
                f"members, because this member did not poll for max.poll.interval.ms "
                f"({self._settings.max_poll_interval_ms}), or sent no heartbeat for session.timeout.ms; reduce "
                f"max.poll.records, or raise these timeouts"
            )
        return error_of(code, about=str(about))

    def _has_rejoined(self, before: CommittingMember) -> bool:
        """Return whether the member is in a later generation now, because its JoinGroup overtook the commit."""
        now = self._identity()
        return now.member_id == before.member_id and now.generation > before.generation

    def _commit_body(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], identity: CommittingMember
    ) -> dict[str, Any]:
        return {
            "group_id": self.group_id,
            "generation_id_or_member_epoch": identity.generation,
            "member_id": identity.member_id,
            "group_instance_id": identity.instance_id,
            "topics": offset_topics(offsets),
        }

    def _fetch_body(self, partitions: list[TopicPartition]) -> dict[str, Any]:
        by_topic: dict[str, list[int]] = {}
        for partition in partitions:
            by_topic.setdefault(partition.topic, []).append(partition.partition)
        topics = [{"name": topic, "partition_indexes": indexes} for topic, indexes in by_topic.items()]
        group = {"group_id": self.group_id, "topics": topics, "member_id": None, "member_epoch": -1}
        require_stable = self._settings.isolation_level == "read_committed"
        return {"group_id": self.group_id, "topics": topics, "groups": [group], "require_stable": require_stable}
