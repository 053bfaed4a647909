"""InitProducerId (key 22) 0-5, DescribeProducers (key 61) 0.

InitProducerId gives an idempotent producer an id of its own and epoch 0. Ids come from blocks that are reserved in the
metadata, durably, before the first of a block is given: no id is given twice, whatever happens in between, and a crash
skips some. A producer that names an id and epoch it had (KIP-360) but no transactional id gets a new id, as in Kafka.

Known gaps: transactions. A transactional id is answered with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, of all codes: it is
the one that Java's client, librdkafka, aiokafka and kafka-python all take for fatal at once. With UNSUPPORTED_VERSION
or INVALID_REQUEST librdkafka would ask again until its timeout. And it says what is so: the id may not be used here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from stratalog.broker.apis.asked_partitions import each_partition_once
from stratalog.broker.background import RunInBackground
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.errors import StorageError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage.producer_state import Producer

NO_TRANSACTIONS = ErrorCode.transactional_id_authorization_failed
_NONE = -1
_BLOCK = 1000
_LARGEST_TO_MIND = 2**62  # a client can write any producer id into a batch; it must not use up all there are


class ProducerApis:
    def __init__(self, topics: TopicRegistry, store: MetadataStore, run_in_background: RunInBackground) -> None:
        self._topics = topics
        self._store = store
        self._run_in_background = run_in_background
        self._reserved = iter(range(0))
        self._one_at_a_time = asyncio.Lock()

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.DESCRIBE_PRODUCERS: self.describe_producers,
        }

    # InitProducerId

    async def init_producer_id(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        if request.transactional_id is not None:
            return _refused(ErrorCode.invalid_request if request.transactional_id == "" else NO_TRANSACTIONS)
        known_id = getattr(request, "producer_id", _NONE)
        known_epoch = getattr(request, "producer_epoch", _NONE)
        if (known_id == _NONE) != (known_epoch == _NONE):
            return _refused(ErrorCode.invalid_request)
        try:
            producer_id = await self._next_id()
        except StorageError:
            # All clients ask again after this one: the disk may be full only for now.
            return _refused(ErrorCode.coordinator_load_in_progress)
        return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}

    async def _next_id(self) -> int:
        async with self._one_at_a_time:
            producer_id = next(self._reserved, None)
            if producer_id is None:
                self._reserved = iter(await self._run_in_background(self._reserve))
                producer_id = next(self._reserved)
            return producer_id

    def _reserve(self) -> range:
        """In the background thread, which alone changes the metadata."""
        first = self._store.metadata.next_producer_id
        if first == 0:
            first = self._first_unused()
        self._store.change(next_producer_id=first + _BLOCK)
        return range(first, first + _BLOCK)

    def _first_unused(self) -> int:
        """Logs may be older than the metadata: another broker's, or from before it was lost. A new producer with an id
        that is known there would be taken for the old one."""
        highest = -1
        for partition in self._topics.all_partitions():
            for producer in list(partition.log.producers):
                if highest < producer.producer_id < _LARGEST_TO_MIND:
                    highest = producer.producer_id
        return highest + 1

    # DescribeProducers

    def describe_producers(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        wanted = each_partition_once(
            (topic.name, ((index, None) for index in topic.partition_indexes)) for topic in request.topics
        )
        return {
            "topics": [
                {"name": name, "partitions": [self._describe(name, index) for index in indexes]}
                for name, indexes in wanted.items()
            ]
        }

    def _describe(self, name: str, index: int) -> Reply:
        partition = self._topics.partition(name, index)
        if partition is None:
            return {
                "partition_index": index,
                "error_code": ErrorCode.unknown_topic_or_partition,
                "error_message": "the partition does not exist",
                "active_producers": (),
            }
        return {
            "partition_index": index,
            "error_code": ErrorCode.none,
            "error_message": None,
            "active_producers": [_producer(producer) for producer in list(partition.log.producers)],
        }


def _refused(code: int) -> Reply:
    return {"error_code": code, "producer_id": _NONE, "producer_epoch": _NONE}


def _producer(producer: Producer) -> Reply:
    start = producer.transaction_first_offset
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.batches[-1].last_sequence if producer.batches else _NONE,
        "last_timestamp": producer.last_timestamp,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": _NONE if start is None else start,
    }
