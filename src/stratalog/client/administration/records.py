"""What partitions' leaders know: ListOffsets, and DeleteRecords.

Leaders move: partitions whose leader says so are asked for again, where metadata has it then, for as long as there is
time; all others have their answer meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from stratalog.client.administration.group_offsets import by_topic
from stratalog.client.administration.outcomes import Collected, Outcomes
from stratalog.client.administration.topics import ask_metadata, body_timeout
from stratalog.client.backoff import Backoff
from stratalog.client.cluster import Cluster
from stratalog.client.errors import ClientError, UnknownTopicOrPartitionError, error_of
from stratalog.client.metadata import TopicPartition, place_of
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

V = TypeVar("V")


class OffsetSpec(IntEnum):
    """Which offset. In their place stands a time in milliseconds: the first record at or after it."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3


_FIRST_WITH_MAX_TIMESTAMP = 7
_MOST_UNKNOWN = 3


class ListedOffset(NamedTuple):
    """`offset` is -1 where no record is at or after the time; `timestamp` is -1 where only the offset was asked for."""

    offset: int
    timestamp: int
    leader_epoch: int


async def list_offsets(
    cluster: Cluster, specs: Mapping[TopicPartition, OffsetSpec | int], read_committed: bool, timeout: float | None
) -> Outcomes[TopicPartition, ListedOffset]:
    wanted = {place_of(place): int(spec) for place, spec in specs.items()}
    lowest = _FIRST_WITH_MAX_TIMESTAMP if OffsetSpec.MAX_TIMESTAMP in wanted.values() else 1

    def body(places: Mapping[TopicPartition, int]) -> dict[str, Any]:
        topics = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
                    for index, timestamp in each.items()
                ],
            }
            for name, each in by_topic(places).items()
        ]
        return {
            "replica_id": -1,
            "isolation_level": int(read_committed),
            "topics": topics,
            "timeout": body_timeout(cluster, timeout),
        }

    def result(one: Any) -> ListedOffset:
        return ListedOffset(one.offset, one.timestamp, getattr(one, "leader_epoch", -1))

    return await ask_leaders(cluster, ApiKey.LIST_OFFSETS, wanted, body, result, lowest, timeout)


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], timeout: float | None
) -> Outcomes[TopicPartition, int]:
    wanted = {place_of(place): offset for place, offset in before.items()}

    def body(places: Mapping[TopicPartition, int]) -> dict[str, Any]:
        topics = [
            {
                "name": name,
                "partitions": [{"partition_index": index, "offset": offset} for index, offset in each.items()],
            }
            for name, each in by_topic(places).items()
        ]
        return {"topics": topics, "timeout": body_timeout(cluster, timeout)}

    def result(one: Any) -> int:
        return int(one.low_watermark)

    return await ask_leaders(cluster, ApiKey.DELETE_RECORDS, wanted, body, result, 0, timeout)


async def ask_leaders(
    cluster: Cluster,
    key: ApiKey,
    wanted: Mapping[TopicPartition, int],
    body: Callable[[Mapping[TopicPartition, int]], dict[str, Any]],
    result: Callable[[Any], V],
    lowest: int,
    timeout: float | None,
) -> Outcomes[TopicPartition, V]:
    collected: Collected[TopicPartition, V] = Collected({place: str(place) for place in wanted})
    settings = cluster.settings
    backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (settings.default_api_timeout_ms / 1000 if timeout is None else timeout)
    left = dict(wanted)
    failures = 0
    while left:
        by_leader = await _leaders(cluster, left, collected, deadline - loop.time())
        await asyncio.gather(
            *[
                _ask_leader(cluster, node, key, body(places), result, lowest, collected, deadline, places)
                for node, places in by_leader.items()
            ]
        )
        failures += 1
        left = {place: wanted[place] for place, error in collected.errors.items() if _may_pass(error, failures)}
        wait = backoff.seconds(failures)
        if loop.time() + wait >= deadline:
            break
        if left:
            await asyncio.sleep(wait)
            await cluster.refresh(timeout=max(0.0, deadline - loop.time()))
    return collected.outcomes()


def _may_pass(error: ClientError, failures: int) -> bool:
    """A topic that was just made may not be known everywhere yet; one that still is not, has another name."""
    if isinstance(error, UnknownTopicOrPartitionError):
        return failures < _MOST_UNKNOWN
    return error.is_retriable


async def _leaders(
    cluster: Cluster, places: Mapping[TopicPartition, int], collected: Collected[TopicPartition, Any], seconds: float
) -> dict[int, dict[TopicPartition, int]]:
    found = await ask_metadata(cluster, {place.topic: None for place in places}, seconds)
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for place, value in places.items():
        leader = found.leader_of(*place)
        if leader is not None:
            by_leader.setdefault(leader.leader, {})[place] = value
            continue
        info = found.topics.get(place.topic)
        code: int = ErrorCode.unknown_topic_or_partition
        if info is not None and info.error_code:
            code = info.error_code
        elif info is not None and 0 <= place.partition < len(info.partitions):
            code = ErrorCode.leader_not_available
        collected.fail(place, error_of(code, about=str(place)))
    return by_leader


async def _ask_leader(
    cluster: Cluster,
    node: int,
    key: ApiKey,
    body: dict[str, Any],
    result: Callable[[Any], V],
    lowest: int,
    collected: Collected[TopicPartition, V],
    deadline: float,
    places: Mapping[TopicPartition, int],
) -> None:
    seconds = max(0.0, deadline - asyncio.get_running_loop().time())
    try:
        response = await cluster.request(node, key, body, lowest=lowest, timeout=seconds)
    except ClientError as error:
        for place in places:
            collected.fail(place, error)
        return
    for topic in response.topics:
        for one in topic.partitions:
            collected.take(TopicPartition(topic.name, one.partition_index), one, result(one))
