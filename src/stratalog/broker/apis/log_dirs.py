"""DescribeLogDirs (key 35), versions 1-4: returns the size of each partition on disk, and the free disk space.

There is one data directory. As in Kafka, the size of a partition is the size of the records in its segments, without
indexes. A request without a list of topics (null) is for all topics. The response leaves out partitions that do not
exist, and those without a replica on this broker. Replicas never move between directories here, so they have no lag.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from stratalog.broker.apis.requested_partitions import each_partition_once
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.partition import Partition
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode


class LogDirsApi:
    def __init__(self, topics: TopicRegistry, data_directory: Path) -> None:
        self._topics = topics
        self._path = data_directory.absolute()

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.DESCRIBE_LOG_DIRS: self.describe_log_dirs}

    def describe_log_dirs(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        result: Reply = {"log_dir": str(self._path), "topics": ()}
        try:
            usage = shutil.disk_usage(self._path)
        except OSError:
            result |= {"error_code": ErrorCode.kafka_storage_error, "total_bytes": -1, "usable_bytes": -1}
        else:
            result |= {"error_code": ErrorCode.none, "total_bytes": usage.total, "usable_bytes": usage.free}
            result["topics"] = [
                {"name": name, "partitions": [_describe(partition) for partition in partitions]}
                for name, partitions in self._requested(request.topics).items()
            ]
        return {"error_code": ErrorCode.none, "results": [result]}

    def _requested(self, topics: Any) -> dict[str, list[Partition]]:
        if topics is None:
            existing = {topic.name: self._hosted(topic.name) for topic in self._topics.all()}
        else:
            requested = each_partition_once(
                (topic.topic, ((index, None) for index in topic.partitions)) for topic in topics
            )
            existing = {
                name: [partition for partition in self._hosted(name) if partition.index in indexes]
                for name, indexes in requested.items()
            }
        return {name: partitions for name, partitions in existing.items() if partitions}

    def _hosted(self, topic: str) -> list[Partition]:
        return [partition for partition in self._topics.partitions(topic) if partition.is_hosted]


def _describe(partition: Partition) -> Reply:
    return {
        "partition_index": partition.index,
        "partition_size": partition.log.size,
        "offset_lag": 0,
        "is_future_key": False,
    }
