"""DeleteRecords (key 21), versions 0-2: a partition's log begins later; what lies before is gone for every reader.

Offset -1 is the high watermark: everything. An offset before the log's start changes nothing and is no error, one past
the high watermark is OFFSET_OUT_OF_RANGE. Durable when it is answered. Records of internal topics can't be deleted
(INVALID_TOPIC_EXCEPTION), as in Kafka. Files go with retention.

The timeout is not used: it bounds the wait for other replicas, and there are none.
"""

from __future__ import annotations

from typing import Any

from stratalog.broker.apis.asked_partitions import each_partition_once
from stratalog.broker.background import RunInBackground
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.errors import OffsetOutOfRangeError, StratalogError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_HIGH_WATERMARK = -1
_INVALID_LOW_WATERMARK = -1


class DeleteRecordsApi:
    def __init__(self, topics: TopicRegistry, run_in_background: RunInBackground) -> None:
        self._topics = topics
        self._run_in_background = run_in_background

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.DELETE_RECORDS: self.delete_records}

    async def delete_records(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        wanted = each_partition_once(
            (topic.name, ((each.partition_index, each.offset) for each in topic.partitions)) for topic in request.topics
        )
        return {
            "topics": [
                {
                    "name": name,
                    "partitions": [await self._delete(name, index, offset) for index, offset in offsets.items()],
                }
                for name, offsets in wanted.items()
            ]
        }

    async def _delete(self, name: str, index: int, offset: int) -> Reply:
        topic = self._topics.get(name)
        if topic is None or not 0 <= index < topic.partition_count:
            return _failed(index, ErrorCode.unknown_topic_or_partition)
        if topic.is_internal:
            return _failed(index, ErrorCode.invalid_topic_exception)
        return await self._run_in_background(lambda: self._advance_start(name, index, offset))

    def _advance_start(self, name: str, index: int, offset: int) -> Reply:
        """In the background thread: it waits for the disk."""
        partition = self._topics.partition(name, index)
        if partition is None:  # deleted meanwhile
            return _failed(index, ErrorCode.unknown_topic_or_partition)
        try:
            if offset == _HIGH_WATERMARK:
                offset = partition.high_watermark
            if not 0 <= offset <= partition.high_watermark:
                raise OffsetOutOfRangeError(f"offset is {offset}; {partition} ends at {partition.high_watermark}")
            partition.log.advance_start(offset)
        except StratalogError as error:
            return _failed(index, error.code)
        return {
            "partition_index": index,
            "low_watermark": partition.log.log_start_offset,
            "error_code": ErrorCode.none,
        }


def _failed(index: int, code: int) -> Reply:
    return {"partition_index": index, "low_watermark": _INVALID_LOW_WATERMARK, "error_code": code}
