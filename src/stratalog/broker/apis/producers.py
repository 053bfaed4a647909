"""InitProducerId (key 22) 0-5, DescribeProducers (key 61) 0.

InitProducerId gives an idempotent producer a new producer id with epoch 0. No producer id is given twice: blocks of ids
are durably reserved in the metadata before use, and a crash skips the rest of a block. A producer that sends its former
id and epoch (KIP-360) without a transactional id gets a new producer id, as in Kafka.

With a transactional id, the producer gets the producer id of the transactional id and the next epoch, and its former
producer is fenced. If the former producer has a transaction open, the broker aborts it and responds with
CONCURRENT_TRANSACTIONS, after which clients retry.

DescribeProducers describes the producers of any replica, as in Kafka: of the leader's, and of a follower's. A partition
without a replica on this broker gets NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

from typing import Any

from stratalog.broker.apis.requested_partitions import each_partition_once
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.producer_ids import ProducerIdAllocator
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.broker.transactions.coordinator import TransactionCoordinator
from stratalog.broker.transactions.state import ProducerIdAndEpoch
from stratalog.errors import StorageError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import to_ms
from stratalog.storage.producer_state import ProducerEntry

_NONE = -1
_FIRST_WITH_PRODUCER_FENCED = 4


class ProducerApis:
    def __init__(self, topics: TopicRegistry, ids: ProducerIdAllocator, transactions: TransactionCoordinator) -> None:
        self._topics = topics
        self._ids = ids
        self._transactions = transactions

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.DESCRIBE_PRODUCERS: self.describe_producers,
        }

    # InitProducerId

    async def init_producer_id(self, request: Any, context: RequestContext) -> Reply:
        known_id = getattr(request, "producer_id", _NONE)
        known_epoch = getattr(request, "producer_epoch", _NONE)
        if (known_id == _NONE) != (known_epoch == _NONE):
            return _refused(ErrorCode.invalid_request)
        if request.transactional_id is not None:
            claimed = None if known_id == _NONE else ProducerIdAndEpoch(known_id, known_epoch)
            return await self._initialize(request, claimed, context.api_version)
        try:
            producer_id = await self._ids.next()
        except StorageError:
            # All clients retry after this error: the disk may have room again soon.
            return _refused(ErrorCode.coordinator_load_in_progress)
        return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}

    async def _initialize(self, request: Any, claimed: ProducerIdAndEpoch | None, version: int) -> Reply:
        timeout_ms = to_ms(request.transaction_timeout)
        error, producer = await self._transactions.initialize(request.transactional_id, timeout_ms, claimed)
        if error is ErrorCode.producer_fenced and version < _FIRST_WITH_PRODUCER_FENCED:
            error = ErrorCode.invalid_producer_epoch  # older clients don't know the newer error
        return {"error_code": error, "producer_id": producer.producer_id, "producer_epoch": producer.epoch}

    # DescribeProducers

    def describe_producers(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        requested = each_partition_once(
            (topic.name, ((index, None) for index in topic.partition_indexes)) for topic in request.topics
        )
        return {
            "topics": [
                {"name": name, "partitions": [self._describe(name, index) for index in indexes]}
                for name, indexes in requested.items()
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
        if not partition.is_hosted:
            return {
                "partition_index": index,
                "error_code": ErrorCode.not_leader_or_follower,
                "error_message": "this broker has no replica of the partition",
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


def _producer(producer: ProducerEntry) -> Reply:
    start = producer.transaction_first_offset
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.batches[-1].last_sequence if producer.batches else _NONE,
        "last_timestamp": producer.last_timestamp,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": _NONE if start is None else start,
    }
