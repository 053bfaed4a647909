"""ListOffsets: looks up offsets by timestamp, and the start and end of partitions, for consumers and admin clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stratalog.client.administration.group_offsets import by_topic
from stratalog.client.cluster import Cluster
from stratalog.client.leader_calls import LeaderCaller
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import OffsetAndTimestamp
from stratalog.client.settings import CommonSettings
from stratalog.errors import RequestTimeoutError
from stratalog.protocol.api_keys import ApiKey

_CONSUMER = -1
NONE_FOUND = -1


def list_offsets_body(
    timestamps: Mapping[TopicPartition, int],
    leader_epoch: Callable[[TopicPartition], int],
    *,
    read_committed: bool,
    timeout_ms: int,
) -> dict[str, Any]:
    topics = [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": index,
                    "current_leader_epoch": leader_epoch(TopicPartition(name, index)),
                    "timestamp": timestamp,
                }
                for index, timestamp in indexes.items()
            ],
        }
        for name, indexes in by_topic(timestamps).items()
    ]
    return {
        "replica_id": _CONSUMER,
        "isolation_level": int(read_committed),
        "topics": topics,
        "timeout": timeout_ms,
    }


class OffsetLookup:
    """Looks up offsets of partitions whose leaders the cluster's metadata has."""

    def __init__(self, cluster: Cluster, settings: CommonSettings, *, read_committed: bool) -> None:
        def body(timestamps: Mapping[TopicPartition, int]) -> dict[str, Any]:
            return list_offsets_body(
                timestamps, known_epoch, read_committed=read_committed, timeout_ms=settings.request_timeout_ms
            )

        def known_epoch(partition: TopicPartition) -> int:
            leader = cluster.metadata.leader_of(*partition)
            return -1 if leader is None else leader.leader_epoch

        self._caller = LeaderCaller(cluster, ApiKey.LIST_OFFSETS, body, _result, lowest=1, trusts_metadata=True)

    async def offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return for each partition the first record at or after the timestamp, or what -1 (end) and -2 (start) mean.

        An offset of -1: there is no such record. Raises what can't be retried, and after `timeout` seconds the last
        error.
        """
        collected = await self._caller.call(timestamps, timeout)
        for error in collected.errors.values():
            if not error.is_retriable:
                raise error
        for error in reversed(collected.errors.values()):
            raise error
        missing = [str(partition) for partition in timestamps if partition not in collected.results]
        if missing:
            names = ", ".join(missing[:10])
            raise RequestTimeoutError(f"the offsets of {names} could not be looked up within {timeout:g} s")
        return collected.results


def _result(partition: Any) -> OffsetAndTimestamp:
    return OffsetAndTimestamp(partition.offset, partition.timestamp, getattr(partition, "leader_epoch", -1))
