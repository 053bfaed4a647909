"""DeleteRecords (key 21), versions 0-2: raises the log start offsets of partitions. No reader sees the records before
them any more.

Offset -1 stands for the high watermark, and deletes all records. An offset before the log start offset changes nothing
and succeeds; an offset after the high watermark gets OFFSET_OUT_OF_RANGE. The deletion is durable before the broker
responds. Records of internal topics can't be deleted (INVALID_TOPIC_EXCEPTION), as in Kafka. Retention deletes the
files.

One save stores the log start offsets of a few hundred partitions, whose logs are flushed in parallel. Between two
saves, the background thread serves requests of other clients.

The request's timeout is not used: it limits the wait for other replicas, and there are no other replicas.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from stratalog.broker.apis.requested_partitions import each_partition_once
from stratalog.broker.background import RunInBackground
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.errors import LogClosedError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage.log_directory import LogDirectory
from stratalog.storage.names import TopicPartition

_HIGH_WATERMARK = -1
_INVALID_LOW_WATERMARK = -1
_PORTION = 500  # partitions per save


class DeleteRecordsApi:
    def __init__(self, topics: TopicRegistry, directory: LogDirectory, run_in_background: RunInBackground) -> None:
        self._topics = topics
        self._directory = directory
        self._run_in_background = run_in_background

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.DELETE_RECORDS: self.delete_records}

    async def delete_records(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        requested = each_partition_once(
            (topic.name, ((partition.partition_index, partition.offset) for partition in topic.partitions))
            for topic in request.topics
        )
        offsets = [
            (TopicPartition(name, index), offset)
            for name, partitions in requested.items()
            for index, offset in partitions.items()
        ]
        replies: dict[TopicPartition, Reply] = {}
        for start in range(0, len(offsets), _PORTION):
            portion = dict(offsets[start : start + _PORTION])
            refused = {key: _failed(key, code) for key in portion if (code := self._refusal(key)) is not None}
            accepted = {key: offset for key, offset in portion.items() if key not in refused}
            replies |= refused
            if accepted:
                replies |= await self._run_in_background(partial(self._advance_starts, accepted))
            else:
                await asyncio.sleep(0)  # a request may have very many partitions that do not exist
        return {
            "topics": [
                {"name": name, "partitions": [replies[TopicPartition(name, index)] for index in indexes]}
                for name, indexes in requested.items()
            ]
        }

    def _refusal(self, key: TopicPartition) -> ErrorCode | None:
        topic = self._topics.get(key.topic)
        if topic is None or not 0 <= key.partition < topic.partition_count:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.invalid_topic_exception if topic.is_internal else None

    def _advance_starts(self, requested: dict[TopicPartition, int]) -> dict[TopicPartition, Reply]:
        """Advance log start offsets. Runs in the background thread, because it waits for the disk."""
        replies: dict[TopicPartition, Reply] = {}
        offsets: dict[TopicPartition, int] = {}
        for key, offset in requested.items():
            partition = self._topics.partition(*key)
            if partition is None:  # deleted since the request was checked
                replies[key] = _failed(key, ErrorCode.unknown_topic_or_partition)
            elif partition.is_offline:
                replies[key] = _failed(key, ErrorCode.kafka_storage_error)
            elif offset == _HIGH_WATERMARK:
                offsets[key] = partition.high_watermark
            elif 0 <= offset <= partition.high_watermark:
                offsets[key] = offset
            else:
                replies[key] = _failed(key, ErrorCode.offset_out_of_range)
        failures = self._directory.advance_starts(offsets)
        for key in offsets:
            partition = self._topics.partition(*key)
            if key in failures or partition is None:
                replies[key] = _failed(key, failures[key].code if key in failures else LogClosedError.code)
            else:
                replies[key] = {
                    "partition_index": key.partition,
                    "low_watermark": partition.log.log_start_offset,
                    "error_code": ErrorCode.none,
                }
        return replies


def _failed(key: TopicPartition, code: int) -> Reply:
    return {"partition_index": key.partition, "low_watermark": _INVALID_LOW_WATERMARK, "error_code": code}
