"""DescribeLogDirs (key 35), versions 1-4: how large each partition is on disk, and how much room there is.

There is one data directory. A partition's size is that of its segments' records, as in Kafka: indexes are not counted.
No list of topics (null) means all; partitions that do not exist are left out of the answer. Replicas that move between
directories, and their lag, do not exist here.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from stratalog.broker.apis.asked_partitions import each_partition_once
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
                for name, partitions in self._wanted(request.topics).items()
            ]
        return {"error_code": ErrorCode.none, "results": [result]}

    def _wanted(self, asked: Any) -> dict[str, list[Partition]]:
        if asked is None:
            return {topic.name: list(self._topics.partitions(topic.name)) for topic in self._topics.all()}
        wanted = each_partition_once((topic.topic, ((index, None) for index in topic.partitions)) for topic in asked)
        found = {
            name: [partition for partition in self._topics.partitions(name) if partition.index in indexes]
            for name, indexes in wanted.items()
        }
        return {name: partitions for name, partitions in found.items() if partitions}


def _describe(partition: Partition) -> Reply:
    return {
        "partition_index": partition.index,
        "partition_size": partition.log.size,
        "offset_lag": 0,
        "is_future_key": False,
    }
