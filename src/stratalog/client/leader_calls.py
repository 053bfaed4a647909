"""Requests that only the leader of a partition can answer: grouped by leader, sent, and retried with a back-off.

Leaders move: a partition whose leader has moved or can't be reached is requested again from the leader that metadata
has then, until the timeout. The other partitions keep their results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from stratalog.client.administration.outcomes import Collected
from stratalog.client.administration.topics import ask_metadata
from stratalog.client.backoff import Backoff
from stratalog.client.cluster import Cluster
from stratalog.client.errors import REFRESHES_METADATA, ClientError, UnknownTopicOrPartitionError, error_of
from stratalog.client.metadata import MetadataSnapshot, TopicPartition
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

V = TypeVar("V")

_MOST_UNKNOWN = 3  # attempts
_LEAST_SECONDS = 0.001


class LeaderCaller(Generic[V]):
    """Sends one kind of request. `body` makes it for the partitions of one leader, `result` reads one partition's part
    of the response.

    With `trusts_metadata` leaders are those that the cluster's metadata has, and the call stops at the first error that
    a retry can't mend: for a client that has just been using these partitions. Otherwise metadata is requested for each
    attempt, each partition has its own outcome, and a topic that stays unknown is given up after a few attempts.
    """

    def __init__(
        self,
        cluster: Cluster,
        key: ApiKey,
        body: Callable[[Mapping[TopicPartition, int]], dict[str, Any]],
        result: Callable[[Any], V],
        *,
        lowest: int = 0,
        trusts_metadata: bool = False,
    ) -> None:
        self._cluster = cluster
        self._key = key
        self._body = body
        self._result = result
        self._lowest = lowest
        self._trusts_metadata = trusts_metadata
        self._backoff = Backoff(cluster.settings.retry_backoff_ms, cluster.settings.retry_backoff_max_ms)

    async def call(self, values: Mapping[TopicPartition, int], timeout: float | None) -> Collected[TopicPartition, V]:
        """Send each partition's value to its leader, for up to `timeout` seconds (default.api.timeout.ms)."""
        collected: Collected[TopicPartition, V] = Collected({partition: str(partition) for partition in values})
        loop = asyncio.get_running_loop()
        seconds = self._cluster.settings.default_api_timeout_ms / 1000 if timeout is None else timeout
        deadline = loop.time() + seconds
        left = dict(values)
        failures = 0
        while left:
            by_leader = await self._group_by_leader(left, collected, failures, deadline - loop.time())
            calls = [
                self._call_leader(leader, of_leader, collected, deadline) for leader, of_leader in by_leader.items()
            ]
            await asyncio.gather(*calls)
            failures += 1
            left = self._left(values, collected, failures)
            wait = self._backoff.seconds(failures)
            if loop.time() + wait >= deadline:
                break
            if left:
                await asyncio.sleep(wait)
        return collected

    def _left(
        self, values: Mapping[TopicPartition, int], collected: Collected[TopicPartition, V], failures: int
    ) -> dict[TopicPartition, int]:
        if not self._trusts_metadata:
            return {
                partition: values[partition]
                for partition, error in collected.errors.items()
                if error.is_retriable
                # A topic that was just created may not be known everywhere yet; later, the name is wrong.
                and (failures < _MOST_UNKNOWN or not isinstance(error, UnknownTopicOrPartitionError))
            }
        if any(not error.is_retriable for error in collected.errors.values()):
            return {}
        return {partition: value for partition, value in values.items() if partition not in collected.results}

    async def _group_by_leader(
        self,
        values: Mapping[TopicPartition, int],
        collected: Collected[TopicPartition, V],
        failures: int,
        seconds: float,
    ) -> dict[int, dict[TopicPartition, int]]:
        problem: ClientError | None = None
        try:
            metadata = await self._metadata(values, failures, max(0.0, seconds))
        except ClientError as error:
            if not self._trusts_metadata or not error.is_retriable:
                raise
            metadata, problem = self._cluster.metadata, error
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition, value in values.items():
            leader = metadata.leader_of(*partition)
            if leader is not None:
                by_leader.setdefault(leader.leader, {})[partition] = value
            else:
                collected.fail(partition, problem or _lacks_leader(metadata, partition))
        return by_leader

    async def _metadata(self, values: Mapping[TopicPartition, int], failures: int, seconds: float) -> MetadataSnapshot:
        cluster = self._cluster
        if self._trusts_metadata:
            unknown = {partition.topic for partition in values if cluster.metadata.leader_of(*partition) is None}
            if unknown:  # always in a consumer's first call: it does not know the topic yet
                await cluster.refresh(unknown)
            return cluster.metadata
        if failures:
            await cluster.refresh(timeout=seconds)  # the leader may be a new broker
        return await ask_metadata(cluster, dict.fromkeys(partition.topic for partition in values), seconds)

    async def _call_leader(
        self,
        leader: int,
        values: Mapping[TopicPartition, int],
        collected: Collected[TopicPartition, V],
        deadline: float,
    ) -> None:
        cluster = self._cluster
        seconds = max(_LEAST_SECONDS, deadline - asyncio.get_running_loop().time())
        try:
            response = await cluster.request(
                leader, self._key, self._body(values), lowest=self._lowest, timeout=seconds
            )
        except ClientError as error:
            for partition in values:
                collected.fail(partition, error)
            if self._trusts_metadata and error.is_retriable:
                cluster.refresh_soon()
            return
        for topic in response.topics:
            for result in topic.partitions:
                collected.take(TopicPartition(topic.name, result.partition_index), result, self._result(result))
                if self._trusts_metadata and int(result.error_code) in REFRESHES_METADATA:
                    cluster.refresh_soon()


def _lacks_leader(metadata: MetadataSnapshot, partition: TopicPartition) -> ClientError:
    info = metadata.topics.get(partition.topic)
    code: int = ErrorCode.unknown_topic_or_partition
    if info is not None and info.error_code:
        code = info.error_code
    elif info is not None and 0 <= partition.partition < len(info.partitions):
        code = ErrorCode.leader_not_available
    return error_of(code, about=str(partition))
