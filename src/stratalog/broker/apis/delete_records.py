"""DeleteRecords (key 21), versions 0-2: raises the log start offsets of partitions. No reader sees the records before
them any more.

Offset -1 stands for the high watermark, and deletes all records. An offset before the log start offset changes nothing
and succeeds; an offset after the high watermark gets OFFSET_OUT_OF_RANGE. The deletion is durable before the broker
responds. Records of internal topics can't be deleted (INVALID_TOPIC_EXCEPTION), as in Kafka. Retention deletes the
files.

One save stores the log start offsets of a few hundred partitions, whose logs are flushed in parallel. Between two
saves, the background thread serves requests of other clients.

In a cluster, the leader deletes the records first, and responds when every in-sync replica has deleted them too, with
the lowest of their log start offsets. The request's timeout limits this wait: REQUEST_TIMED_OUT means that some replica
deletes the records later. A single broker has no other replicas, and does not use the timeout. A broker that does not
lead the partition refuses with NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from stratalog.broker.apis.requested_partitions import each_partition_once
from stratalog.broker.background import RunInBackground
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.partition import Partition
from stratalog.broker.replication.partition import OnReplicated, ReplicatedPartition
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.errors import LogClosedError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import to_ms
from stratalog.storage.log_directory import LogDirectory
from stratalog.storage.names import TopicPartition

_HIGH_WATERMARK = -1
_INVALID_LOW_WATERMARK = -1
_LONGEST_WAIT_MS = 600_000  # a client can set any timeout
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
        deletions = PendingDeletions()
        for start in range(0, len(offsets), _PORTION):
            portion = dict(offsets[start : start + _PORTION])
            refused = {key: _failed(key, code) for key in portion if (code := self._refusal(key)) is not None}
            accepted = {key: offset for key, offset in portion.items() if key not in refused}
            replies |= refused
            if accepted:
                answered, starts = await self._run_in_background(partial(self._advance_starts, accepted))
                replies |= answered
                for key, offset in starts.items():
                    deletions.add(self._topics.partition(*key), offset, answered[key])
            else:
                await asyncio.sleep(0)  # a request may have very many partitions that do not exist
        await deletions.wait(to_ms(request.timeout))
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
        if topic.is_internal:
            return ErrorCode.invalid_topic_exception
        partition = self._topics.partition(*key)
        return _not_led(partition) if partition is not None else ErrorCode.unknown_topic_or_partition

    def _advance_starts(
        self, requested: dict[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, Reply], dict[TopicPartition, int]]:
        """Advance log start offsets. Return the replies, and the offsets of those that succeeded. Runs in the
        background thread, because it waits for the disk."""
        replies: dict[TopicPartition, Reply] = {}
        offsets: dict[TopicPartition, int] = {}
        for key, offset in requested.items():
            partition = self._topics.partition(*key)
            if partition is None:  # deleted since the request was checked
                replies[key] = _failed(key, ErrorCode.unknown_topic_or_partition)
            elif _not_led(partition) is not None:  # since then
                replies[key] = _failed(key, ErrorCode.not_leader_or_follower)
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
        return replies, {key: offset for key, offset in offsets.items() if not replies[key]["error_code"]}


class PendingDeletions:
    """The deletions of a request that wait for other replicas. A single broker has none."""

    def __init__(self) -> None:
        self._waiting: dict[OnReplicated, tuple[ReplicatedPartition, Reply]] = {}
        self._finished = asyncio.Event()

    def add(self, partition: Partition | None, offset: int, reply: Reply) -> None:
        """Wait until the in-sync replicas have deleted what is before `offset`. `reply` gets the outcome."""
        if not isinstance(partition, ReplicatedPartition):
            return

        def deleted(error: ErrorCode) -> None:
            self._waiting.pop(deleted, None)
            reply["error_code"] = error
            reply["low_watermark"] = _INVALID_LOW_WATERMARK if error else partition.low_watermark
            if not self._waiting:
                self._finished.set()

        self._waiting[deleted] = partition, reply
        if partition.unavailable:
            deleted(ErrorCode.not_leader_or_follower)
        else:
            partition.when_deleted(offset, deleted)

    async def wait(self, timeout_ms: int) -> None:
        try:
            if self._waiting:
                async with asyncio.timeout(min(max(timeout_ms, 0), _LONGEST_WAIT_MS) / 1000):
                    await self._finished.wait()
        except TimeoutError:
            for partition, reply in self._waiting.values():
                reply["error_code"] = ErrorCode.request_timed_out
                reply["low_watermark"] = partition.low_watermark
        finally:
            for call, (partition, _) in self._waiting.items():
                partition.forget(call)


def _not_led(partition: Partition) -> ErrorCode | None:
    """Return the error for a partition of a cluster that this broker does not lead."""
    error = ErrorCode.not_leader_or_follower
    return error if partition.is_replicated and partition.unavailable is error else None


def _failed(key: TopicPartition, code: int) -> Reply:
    return {"partition_index": key.partition, "low_watermark": _INVALID_LOW_WATERMARK, "error_code": code}
