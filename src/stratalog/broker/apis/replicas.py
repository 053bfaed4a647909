"""AlterReplicaLogDirs (key 34) 1-2, ElectLeaders (key 43) 0-2, AlterPartitionReassignments (key 45) 0-1,
ListPartitionReassignments (key 46) 0: moving replicas and electing leaders, on a single broker. `cluster_replicas.py`
serves them in a cluster, except for AlterReplicaLogDirs.

Each partition has one replica, which leads, in the one data directory of this broker. So there is nothing to move or to
elect. As in Kafka, a request to move a replica to its current broker or directory succeeds:

- A reassignment to this broker changes nothing. A reassignment to other brokers, to no broker, or to this broker twice
  gets INVALID_REPLICA_ASSIGNMENT. Cancelling a reassignment gets NO_REASSIGNMENT_IN_PROGRESS. The list of reassignments
  is always empty.
- A preferred or unclean election gets ELECTION_NOT_NEEDED. The response to a request for all partitions (null) leaves
  such partitions out.
- A directory other than the data directory gets LOG_DIR_NOT_FOUND. In a cluster, a partition without a replica here
  gets REPLICA_NOT_AVAILABLE.

If a request has a partition twice, the response has it once, and its last entry counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stratalog.broker.apis.requested_partitions import each_partition_once
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

PREFERRED, UNCLEAN = _ELECTION_TYPES = (0, 1)
_NOT_NEEDED = "the partition has one replica, which leads"
_SHOWN = 10  # brokers of a list that a client sent


class ReplicaApis:
    def __init__(self, topics: TopicRegistry, node_id: int, data_directory: Path) -> None:
        self._topics = topics
        self._node_id = node_id
        self._path = str(data_directory.absolute())

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.ALTER_REPLICA_LOG_DIRS: self.alter_replica_log_dirs,
            ApiKey.ELECT_LEADERS: self.elect_leaders,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self.alter_partition_reassignments,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self.list_partition_reassignments,
        }

    # Directories

    def alter_replica_log_dirs(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        requested = each_partition_once(
            (topic.name, ((index, directory.path) for index in topic.partitions))
            for directory in request.dirs
            for topic in directory.topics
        )
        return {
            "results": [
                {
                    "topic_name": name,
                    "partitions": [
                        {"partition_index": index, "error_code": self._moved(name, index, path)}
                        for index, path in paths.items()
                    ],
                }
                for name, paths in requested.items()
            ]
        }

    def _moved(self, name: str, index: int, path: str) -> ErrorCode:
        if path != self._path:
            return ErrorCode.log_dir_not_found
        partition = self._topics.partition(name, index)
        if partition is None:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.none if partition.is_hosted else ErrorCode.replica_not_available

    # Elections

    def elect_leaders(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        code, message = check_election_type(request)
        if request.topic_partitions is None:
            all_topics = [{"topic": topic.name, "partition_result": ()} for topic in self._topics.all()]
            return {"error_code": code, "replica_election_results": all_topics}
        requested = each_partition_once(
            (topic.topic, ((index, None) for index in topic.partitions)) for topic in request.topic_partitions
        )
        results = [
            {
                "topic": name,
                "partition_result": [
                    {"partition_id": index, **(_error(code, message) if code else self._elected(name, index))}
                    for index in indexes
                ],
            }
            for name, indexes in requested.items()
        ]
        return {"error_code": code, "replica_election_results": results}

    def _elected(self, name: str, index: int) -> Reply:
        partition = self._topics.partition(name, index)
        if partition is None:
            return _error(ErrorCode.unknown_topic_or_partition, "the partition does not exist")
        if partition.is_offline:
            return _error(ErrorCode.preferred_leader_not_available, "the only replica is offline; see the broker's log")
        return _error(ErrorCode.election_not_needed, _NOT_NEEDED)

    # Reassignments

    def list_partition_reassignments(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002
        return {"error_code": ErrorCode.none, "error_message": None, "topics": ()}

    def alter_partition_reassignments(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002
        requested = each_partition_once(
            (topic.name, ((partition.partition_index, partition.replicas) for partition in topic.partitions))
            for topic in request.topics
        )
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "allow_replication_factor_change": getattr(request, "allow_replication_factor_change", True),
            "responses": [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": index, **self._reassigned(name, index, replicas)}
                        for index, replicas in partitions.items()
                    ],
                }
                for name, partitions in requested.items()
            ],
        }

    def _reassigned(self, name: str, index: int, replicas: Sequence[int] | None) -> Reply:
        if self._topics.partition(name, index) is None:
            return _error(ErrorCode.unknown_topic_or_partition, "the partition does not exist")
        if replicas is None:
            return _error(ErrorCode.no_reassignment_in_progress, None)
        if list(replicas) != [self._node_id]:
            return _error(
                ErrorCode.invalid_replica_assignment,
                f"replicas are {list(replicas[:_SHOWN])}; there is one broker, so they must be [{self._node_id}]",
            )
        return _error(ErrorCode.none, None)


def check_election_type(request: Any) -> tuple[ErrorCode, str]:
    """Return the error for a request with an unknown type of election."""
    kind = election_type(request)
    if kind in _ELECTION_TYPES:
        return ErrorCode.none, ""
    return ErrorCode.invalid_request, f"election type is {kind}; it must be 0 (preferred) or 1 (unclean)"


def election_type(request: Any) -> int:
    kind: int = getattr(request, "election_type", PREFERRED)
    return kind


def _error(code: ErrorCode, message: str | None) -> Reply:
    return {"error_code": code, "error_message": message}
