"""Offsets by time, the first and the last ones: ListOffsets, asked of the partitions' leaders, with retries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from stratalog.client.backoff import Backoff
from stratalog.client.cluster import Cluster
from stratalog.client.errors import REFRESHES_METADATA, error_of, is_retriable
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import OffsetAndTimestamp
from stratalog.client.settings import CommonSettings
from stratalog.errors import ClientError, RequestTimeoutError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_CONSUMER = -1
NONE_FOUND = -1


class OffsetLookup:
    def __init__(self, cluster: Cluster, settings: CommonSettings, *, read_committed: bool) -> None:
        self._cluster = cluster
        self._settings = settings
        self._read_committed = read_committed
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)

    async def offsets(
        self, wanted: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the first record at or after the timestamp, or what -1 (end) and -2 (start) ask for. An
        offset of -1: there is none. Raises what can't be retried, and after `timeout` what was in the way."""
        deadline = asyncio.get_running_loop().time() + timeout
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        failures = 0
        while len(found) < len(wanted):
            missing = {place: timestamp for place, timestamp in wanted.items() if place not in found}
            problems = await self._ask(missing, found, deadline)
            if len(found) == len(wanted):
                break
            failures += 1
            wait = self._backoff.seconds(failures)
            if asyncio.get_running_loop().time() + wait > deadline:
                raise self._too_late(missing, problems, timeout)
            await asyncio.sleep(wait)
        return found

    async def _ask(
        self, missing: Mapping[TopicPartition, int], found: dict[TopicPartition, OffsetAndTimestamp], deadline: float
    ) -> list[ClientError]:
        problems: list[ClientError] = []
        by_leader: dict[int, list[TopicPartition]] = {}
        unknown = [place for place in missing if self._cluster.metadata.leader_of(*place) is None]
        if unknown:  # at first always: a consumer that has just begun has not heard of the topic
            problems += await self._learn(unknown)
        for place in missing:
            leader = self._cluster.metadata.leader_of(*place)
            if leader is not None:
                by_leader.setdefault(leader.leader, []).append(place)
        left = max(0.001, deadline - asyncio.get_running_loop().time())
        asked = [self._ask_leader(leader, places, missing, left) for leader, places in by_leader.items()]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, ClientError) and answer.is_retriable:
                problems.append(answer)
                self._cluster.refresh_soon()
            elif isinstance(answer, BaseException):
                raise answer
            else:
                problems += self._read(answer, found)
        return problems

    async def _learn(self, places: Iterable[TopicPartition]) -> list[ClientError]:
        try:
            await self._cluster.refresh({place.topic for place in places})
        except ClientError as error:
            if not error.is_retriable:
                raise
            return [error]
        problems: list[ClientError] = []
        for place in places:
            info = self._cluster.metadata.topics.get(place.topic)
            if info is not None and info.error_code and not is_retriable(info.error_code):
                raise error_of(info.error_code, about=place.topic)
            if self._cluster.metadata.leader_of(*place) is None:
                code = ErrorCode.unknown_topic_or_partition
                if info is not None and place.partition < len(info.partitions):
                    code = ErrorCode.leader_not_available
                problems.append(error_of(int(code), about=str(place)))
        return problems

    async def _ask_leader(
        self, leader: int, places: list[TopicPartition], wanted: Mapping[TopicPartition, int], timeout: float
    ) -> Any:
        topics: dict[str, list[dict[str, Any]]] = {}
        for place in places:
            known = self._cluster.metadata.leader_of(*place)
            one = {
                "partition_index": place.partition,
                "current_leader_epoch": -1 if known is None else known.leader_epoch,
                "timestamp": wanted[place],
            }
            topics.setdefault(place.topic, []).append(one)
        body = {
            "replica_id": _CONSUMER,
            "isolation_level": int(self._read_committed),
            "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
            "timeout": self._settings.request_timeout_ms,
        }
        timeout = min(timeout, self._settings.request_timeout_ms / 1000)
        return await self._cluster.request(leader, ApiKey.LIST_OFFSETS, body, lowest=1, timeout=timeout)

    def _read(self, answer: Any, found: dict[TopicPartition, OffsetAndTimestamp]) -> list[ClientError]:
        problems: list[ClientError] = []
        for topic in answer.topics:
            for one in topic.partitions:
                place = TopicPartition(topic.name, one.partition_index)
                code = int(one.error_code)
                if code == 0:
                    found[place] = OffsetAndTimestamp(one.offset, one.timestamp, getattr(one, "leader_epoch", -1))
                    continue
                problem = error_of(code, about=str(place))
                if not problem.is_retriable:
                    raise problem
                problems.append(problem)
                if code in REFRESHES_METADATA:
                    self._cluster.refresh_soon()
        return problems

    def _too_late(
        self, missing: Mapping[TopicPartition, int], problems: list[ClientError], timeout: float
    ) -> ClientError:
        if problems:
            return problems[-1]
        names = ", ".join(str(place) for place in list(missing)[:10])
        return RequestTimeoutError(f"the offsets of {names} could not be looked up within {timeout:g} s")
