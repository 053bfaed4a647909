"""Requests of transactional producers. InitProducerId, which comes first, is with the producers.

| key | API | versions | notes |
|---|---|---|---|
| 24 | AddPartitionsToTxn | 0-5 | several transactions from 4, which brokers of a cluster send to each other |
| 25 | AddOffsetsToTxn | 0-4 | the group's partition of `__consumer_offsets` becomes part of the transaction |
| 26 | EndTxn | 0-5 | from 5 on, the producer gets its next epoch (KIP-890) |
| 28 | TxnOffsetCommit | 0-5 | pending until the transaction ends; from 5 on, it adds the partition itself |

The broker responds to EndTxn when the markers are written, so that a reader finds the transaction ended.

Known gaps: KIP-939 is not implemented. For its purpose, `two_phase.py` has methods in Stratalog's own API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, Protocol

from stratalog.broker.apis.committed_offsets import commit_of
from stratalog.broker.groups import offsets_topic
from stratalog.broker.groups.coordinator import GroupCoordinator
from stratalog.broker.groups.offset_service import Committer, OffsetService
from stratalog.broker.groups.offsets import OffsetToCommit
from stratalog.broker.metadata.store import Topic
from stratalog.broker.partition import Partition
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.broker.transactions.admission import Admission, TransactionOperation
from stratalog.broker.transactions.coordinator import TransactionCoordinator, TransactionResponse
from stratalog.broker.transactions.state import ProducerIdAndEpoch
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage.names import TopicPartition

_FIRST_WITH_PRODUCER_FENCED = 2  # for all four APIs
_FIRST_ADD_OF_SEVERAL = 4
_FIRST_END_WITH_NEXT_EPOCH = 5
_FIRST_COMMIT_THAT_ADDS = 5


class TransactionTopics(Protocol):
    """The part of the TopicRegistry that is used here."""

    def get(self, name: str) -> Topic | None: ...

    def partition(self, name: str, index: int) -> Partition | None: ...


class TransactionApis:
    def __init__(
        self,
        coordinator: TransactionCoordinator,
        groups: GroupCoordinator,
        topics: TransactionTopics,
        admission: Admission,
    ) -> None:
        self._coordinator = coordinator
        self._groups = groups
        self._offsets = OffsetService(groups)
        self._topics = topics
        self._admission = admission

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self.add_offsets,
            ApiKey.END_TXN: self.end,
            ApiKey.TXN_OFFSET_COMMIT: self.txn_offset_commit,
        }

    # AddPartitionsToTxn

    def add_partitions(self, request: Any, context: RequestContext) -> Reply:
        version = context.api_version
        if version < _FIRST_ADD_OF_SEVERAL:
            producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
            transactional_id, topics = request.v3_and_below_transactional_id, request.v3_and_below_topics
            return {"results_by_topic_v3_and_below": self._add(transactional_id, producer, topics, False, version)}
        return {
            "results_by_transaction": [
                {
                    "transactional_id": transaction.transactional_id,
                    "topic_results": self._add(
                        transaction.transactional_id,
                        ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch),
                        transaction.topics,
                        transaction.verify_only,
                        version,
                    ),
                }
                for transaction in request.transactions
            ]
        }

    def _add(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        topics: Iterable[Any],
        verify_only: bool,
        version: int,
    ) -> list[Reply]:
        partitions = dict.fromkeys(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)
        unknown = [partition for partition in partitions if self._topics.partition(*partition) is None]
        errors: dict[TopicPartition, ErrorCode]
        if unknown:  # atomic: all partitions are added, or none
            errors = dict.fromkeys(partitions, ErrorCode.operation_not_attempted)
            errors |= dict.fromkeys(unknown, ErrorCode.unknown_topic_or_partition)
        elif verify_only:
            errors = {
                partition: self._coordinator.verify(transactional_id, producer, partition) for partition in partitions
            }
        else:
            transaction_version = 2 if version >= _FIRST_ADD_OF_SEVERAL else 0
            error = self._coordinator.add(transactional_id, producer, partitions, transaction_version)
            errors = dict.fromkeys(partitions, _as_known(error, version))
        return _by_topic(errors)

    # AddOffsetsToTxn

    async def add_offsets(self, request: Any, context: RequestContext) -> Reply:
        if not request.transactional_id:
            return {"error_code": ErrorCode.invalid_request}
        error = await self._groups.prepare(request.group_id)
        if error is ErrorCode.none:
            partition = TopicPartition(offsets_topic.NAME, self._groups.partition_of(request.group_id))
            producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
            error = self._coordinator.add(request.transactional_id, producer, (partition,), 0)
        return {"error_code": _as_known(error, context.api_version)}

    # EndTxn

    def end(self, request: Any, context: RequestContext) -> Reply | Awaitable[Reply]:
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        version = 2 if context.api_version >= _FIRST_END_WITH_NEXT_EPOCH else 0
        answer = self._coordinator.end_at_once(
            request.transactional_id, producer, commit=request.committed, version=version
        )
        if answer is None:
            return self._end_later(request, context, producer, version)
        return _end_reply(answer, context)

    async def _end_later(
        self, request: Any, context: RequestContext, producer: ProducerIdAndEpoch, version: int
    ) -> Reply:
        answer = await self._coordinator.end(
            request.transactional_id, producer, commit=request.committed, version=version
        )
        return _end_reply(answer, context)

    # TxnOffsetCommit

    async def txn_offset_commit(self, request: Any, context: RequestContext) -> Reply:
        commits: list[OffsetToCommit] = []
        results: list[Reply] = []  # of `commits`, in the same order
        topics = []
        for requested in request.topics:
            topic = self._topics.get(requested.name)
            partitions = []
            for partition in requested.partitions:
                index = partition.partition_index
                result = {"partition_index": index, "error_code": ErrorCode.unknown_topic_or_partition}
                partitions.append(result)
                if topic is not None and 0 <= index < topic.partition_count:
                    commits.append(commit_of(topic, partition))
                    results.append(result)
            topics.append({"name": requested.name, "partitions": partitions})
        if commits:
            for result, error in zip(results, await self._commit(request, context.api_version, commits), strict=True):
                result["error_code"] = error
        return {"topics": topics}

    async def _commit(self, request: Any, version: int, commits: list[OffsetToCommit]) -> list[ErrorCode]:
        group_id, producer = request.group_id, ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        error = await self._groups.prepare(group_id)
        if error is ErrorCode.none:
            error = self._admit(request.transactional_id, group_id, producer, version)
        committer = Committer(
            group_id,
            getattr(request, "member_id", ""),
            getattr(request, "generation_id", -1),
            getattr(request, "group_instance_id", None),
            version,
        )
        if error is ErrorCode.none:
            error = self._offsets.check_in_transaction(committer)
        if error is not ErrorCode.none:
            return [error for _ in commits]
        return self._offsets.commit_in_transaction(committer, commits, producer.producer_id, producer.epoch)

    def _admit(self, transactional_id: str, group_id: str, producer: ProducerIdAndEpoch, version: int) -> ErrorCode:
        partition = self._topics.partition(offsets_topic.NAME, self._groups.partition_of(group_id))
        if partition is None:
            return ErrorCode.coordinator_not_available
        error = self._admission.admit(
            transactional_id, partition, producer, TransactionOperation.of_offset_commit(version)
        )
        if error is ErrorCode.concurrent_transactions and version < _FIRST_COMMIT_THAT_ADDS:
            return ErrorCode.coordinator_load_in_progress  # after this error, older clients retry
        return error


def _end_reply(answer: TransactionResponse, context: RequestContext) -> Reply:
    return {
        "error_code": _as_known(answer.error, context.api_version),
        "producer_id": answer.producer.producer_id,
        "producer_epoch": answer.producer.epoch,
    }


def _as_known(error: ErrorCode, version: int) -> ErrorCode:
    """Return an error that clients of this version know: older ones don't know PRODUCER_FENCED."""
    if error is ErrorCode.producer_fenced and version < _FIRST_WITH_PRODUCER_FENCED:
        return ErrorCode.invalid_producer_epoch
    return error


def _by_topic(errors: dict[TopicPartition, ErrorCode]) -> list[Reply]:
    topics: dict[str, list[Reply]] = {}
    for (topic, index), error in errors.items():
        topics.setdefault(topic, []).append({"partition_index": index, "partition_error_code": error})
    return [{"name": topic, "results_by_partition": results} for topic, results in topics.items()]
