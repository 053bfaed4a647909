"""ElectLeaders (key 43) 0-2, AlterPartitionReassignments (key 45) 0-1, ListPartitionReassignments (key 46) 0, in a
cluster. Every broker serves them. It first reads what ZooKeeper has now, because another broker may have served the
client's last request, and plans from that. ZooKeeper checks each change when it is written.

- ElectLeaders makes the preferred leaders lead, or gives leaders to partitions without one (unclean). The response to a
  request for all partitions (null) leaves out those that need no election.
- AlterPartitionReassignments begins to move replicas, and replaces or cancels (null) a reassignment that runs. The
  controller ends a reassignment when every new replica is in sync.

A change that ZooKeeper does not answer within the request's timeout gets REQUEST_TIMED_OUT: it has perhaps happened. If
a request has a partition twice, the response has it once, and its last entry counts.

Known gap: the traffic of a reassignment can't be throttled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

from stratalog.broker.apis.error_fields import RefusedError, error_fields
from stratalog.broker.apis.replicas import UNCLEAN, ReplicaApis, check_election_type, election_type
from stratalog.broker.apis.requested_partitions import each_partition_once
from stratalog.broker.controller.administration import Outcomes, elect_preferred, elect_unclean, reassign
from stratalog.broker.metadata.cluster_metadata import ClusterMetadata
from stratalog.broker.metadata.cluster_view import PartitionId
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.metadata.zookeeper_errors import ZooKeeperError
from stratalog.broker.requests import Reply, RequestContext
from stratalog.errors import StratalogError
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import to_ms

_LONGEST_WAIT_MS = 60_000
_NO_ERROR: Reply = {"error_code": ErrorCode.none, "error_message": None}
_UNKNOWN: Reply = {
    "error_code": ErrorCode.unknown_topic_or_partition,
    "error_message": "the partition does not exist",
}


class ClusterReplicaApis(ReplicaApis):
    def __init__(self, topics: TopicRegistry, metadata: ClusterMetadata, data_directory: Path) -> None:
        super().__init__(topics, metadata.node_id, data_directory)
        self._metadata = metadata

    # Elections

    async def elect_leaders(self, request: Any, context: RequestContext) -> Reply:  # type: ignore[override]  # noqa: ARG002
        await self._metadata.catch_up()
        code, message = check_election_type(request)
        is_for_all = request.topic_partitions is None
        requested = self._all() if is_for_all else _requested(request.topic_partitions)
        ids = self._ids(requested)
        replies: dict[tuple[str, int], Reply]
        if code:
            replies = dict.fromkeys(ids, error_fields(RefusedError(code, message)))
        else:
            elect = elect_unclean if election_type(request) == UNCLEAN else elect_preferred
            replies = await self._change(ids, elect(self._metadata, ids.values()), to_ms(request.timeout))
        results = []
        for name, indexes in requested.items():
            of_topic = ((index, replies.get((name, index), _UNKNOWN)) for index in indexes)
            shown = [
                {"partition_id": index, **reply}
                for index, reply in of_topic
                if not (is_for_all and reply["error_code"] in _LEFT_OUT)
            ]
            results.append({"topic": name, "partition_result": shown})
        return {"error_code": code, "replica_election_results": results}

    # Reassignments

    async def alter_partition_reassignments(  # type: ignore[override]
        self,
        request: Any,
        context: RequestContext,  # noqa: ARG002 - a handler
    ) -> Reply:
        await self._metadata.catch_up()
        requested = each_partition_once(
            (topic.name, ((partition.partition_index, partition.replicas) for partition in topic.partitions))
            for topic in request.topics
        )
        ids = self._ids(requested)
        targets = {
            id: None if (replicas := requested[name][index]) is None else tuple(replicas)
            for (name, index), id in ids.items()
        }
        may_change_factor = getattr(request, "allow_replication_factor_change", True)
        change = reassign(self._metadata, targets, may_change_factor=may_change_factor)
        replies = await self._change(ids, change, to_ms(request.timeout))
        return {
            **_NO_ERROR,
            "allow_replication_factor_change": may_change_factor,
            "responses": [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": index, **replies.get((name, index), _UNKNOWN)} for index in partitions
                    ],
                }
                for name, partitions in requested.items()
            ],
        }

    async def list_partition_reassignments(  # type: ignore[override]
        self,
        request: Any,
        context: RequestContext,  # noqa: ARG002 - a handler
    ) -> Reply:
        await self._metadata.catch_up()
        requested = (
            self._all()
            if request.topics is None
            else each_partition_once(
                (topic.name, ((index, None) for index in topic.partition_indexes)) for topic in request.topics
            )
        )
        topics = []
        for name, indexes in requested.items():
            states = ((index, self._metadata.view.state(name, index)) for index in indexes)
            moving = [_moving(index, state) for index, state in states if state is not None and state.is_reassigning]
            if moving:
                topics.append({"name": name, "partitions": moving})
        return {**_NO_ERROR, "topics": topics}

    # Steps

    def _all(self) -> dict[str, Iterable[int]]:
        return {topic.name: range(topic.partition_count) for topic in self._metadata.view.topics.values()}

    def _ids(self, requested: Mapping[str, Iterable[int]]) -> dict[tuple[str, int], PartitionId]:
        """Return the ids of the requested partitions that exist."""
        topics = self._metadata.view.topics
        return {
            (name, index): PartitionId(topic.id, index)
            for name, indexes in requested.items()
            if (topic := topics.get(name)) is not None
            for index in indexes
            if 0 <= index < topic.partition_count
        }

    async def _change(
        self, ids: Mapping[tuple[str, int], PartitionId], change: Coroutine[Any, Any, Outcomes], timeout_ms: int
    ) -> dict[tuple[str, int], Reply]:
        """Return the reply for each partition, when the change is in this broker's view."""
        try:
            async with asyncio.timeout(min(max(timeout_ms, 0), _LONGEST_WAIT_MS) / 1000):
                outcomes = await change
                await self._metadata.catch_up()
        except TimeoutError:
            return dict.fromkeys(ids, _error("ZooKeeper did not answer within the request's timeout"))
        except ZooKeeperError as error:
            return dict.fromkeys(ids, _error(f"ZooKeeper can't be asked now: {error}"))
        return {key: _outcome(outcomes[id]) for key, id in ids.items() if id in outcomes}


_LEFT_OUT = (ErrorCode.election_not_needed, ErrorCode.unknown_topic_or_partition)  # if all partitions are requested


def _requested(topics: Any) -> dict[str, dict[int, None]]:
    return each_partition_once((topic.topic, ((index, None) for index in topic.partitions)) for topic in topics)


def _outcome(outcome: PartitionState | StratalogError) -> Reply:
    return error_fields(outcome) if isinstance(outcome, StratalogError) else _NO_ERROR


def _error(reason: str) -> Reply:
    message = f"{reason}; the change has perhaps happened: look, and repeat it if it has not"
    return error_fields(RefusedError(ErrorCode.request_timed_out, message))


def _moving(index: int, state: PartitionState) -> Reply:
    return {
        "partition_index": index,
        "replicas": state.replicas,
        "adding_replicas": state.adding,
        "removing_replicas": state.removing,
    }
