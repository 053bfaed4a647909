"""Requests about transactions: ListTransactions, DescribeTransactions, DescribeProducers, and WriteTxnMarkers, which
aborts hanging transactions.

A transaction hangs if it is open in a partition and no coordinator will end it: the coordinator does not know the
producer, or does not count the partition as part of the transaction. Consumers that read committed records never get
past it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stratalog.client.administration.group_offsets import by_topic
from stratalog.client.administration.outcomes import Collected, Outcomes
from stratalog.client.administration.topics import ask_metadata
from stratalog.client.cluster import Cluster, CoordinatorKind
from stratalog.client.errors import ClientError, error_of
from stratalog.client.leader_calls import LeaderCaller
from stratalog.client.metadata import TopicPartition, to_topic_partition
from stratalog.errors import MalformedResponseError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_FIRST_WITH_DURATION = 1  # of ListTransactions
_FIRST_WITH_PATTERN = 2
_AT_ONCE = 64  # transactional ids in flight; with thousands at once, the last requests would wait past their timeout


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str  # Empty, Ongoing, PrepareCommit, ...


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None  # None if no transaction was ever begun
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer that a partition remembers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None  # None if no transaction of the producer has ended in this partition
    transaction_start: int | None  # the first offset of its open transaction


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    partition: TopicPartition
    producer: ActiveProducer


async def list_transactions(
    cluster: Cluster,
    states: Iterable[str],
    producer_ids: Iterable[int],
    longer_than_ms: int | None,
    pattern: str | None,
    timeout: float | None,
) -> list[TransactionListing]:
    """List the transactional ids of all brokers. Each broker lists the ids that it coordinates."""
    body = {
        "state_filters": list(states),
        "producer_id_filters": list(producer_ids),
        "duration_filter": -1 if longer_than_ms is None else longer_than_ms,
        "transactional_id_pattern": pattern,
    }
    lowest = _FIRST_WITH_PATTERN if pattern is not None else 0 if longer_than_ms is None else _FIRST_WITH_DURATION
    await cluster.retry(lambda seconds: cluster.refresh(timeout=seconds), timeout)

    async def ask(node: int) -> Any:
        async def attempt(seconds: float) -> Any:
            response = await cluster.request(node, ApiKey.LIST_TRANSACTIONS, body, lowest=lowest, timeout=seconds)
            if response.error_code != ErrorCode.none:
                raise error_of(response.error_code, about=f"the transactions of broker {node}")
            if response.unknown_state_filters:
                unknown = ", ".join(response.unknown_state_filters)
                raise error_of(
                    ErrorCode.invalid_request, f"the broker does not know these transaction states: {unknown}"
                )
            return response

        return await cluster.retry(attempt, timeout)

    responses = await asyncio.gather(*[ask(node) for node in cluster.metadata.nodes])
    by_id = {each.transactional_id: each for response in responses for each in response.transaction_states}
    return [TransactionListing(name, each.producer_id, each.transaction_state) for name, each in sorted(by_id.items())]


async def describe_transactions(
    cluster: Cluster, ids: Iterable[str], timeout: float | None
) -> Outcomes[str, TransactionDescription]:
    requested = list(dict.fromkeys(ids))
    collected: Collected[str, TransactionDescription] = Collected(
        {name: f"transactional id {name!r}" for name in requested}
    )
    slots = asyncio.Semaphore(_AT_ONCE)

    async def describe(name: str) -> None:
        try:
            async with slots:
                kind, body = CoordinatorKind.TRANSACTION, {"transactional_ids": [name]}
                response = await cluster.ask_coordinator(
                    kind, name, ApiKey.DESCRIBE_TRANSACTIONS, body, timeout=timeout
                )
            for each in response.transaction_states:
                collected.take(each.transactional_id, each, _description(each))
        except ClientError as error:
            collected.fail(name, error)

    await asyncio.gather(*[describe(name) for name in requested])
    return collected.outcomes()


def _description(transaction: Any) -> TransactionDescription:
    started = transaction.transaction_start_time
    started_ms = None if started is None else int(started.timestamp() * 1000)
    partitions = [TopicPartition(topic.topic, index) for topic in transaction.topics for index in topic.partitions]
    return TransactionDescription(
        transaction.transactional_id,
        transaction.transaction_state,
        transaction.producer_id,
        transaction.producer_epoch,
        int(transaction.transaction_timeout.total_seconds() * 1000),
        None if started_ms is None or started_ms < 0 else started_ms,
        tuple(sorted(partitions)),
    )


async def describe_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition], timeout: float | None
) -> Outcomes[TopicPartition, tuple[ActiveProducer, ...]]:
    def body(requested: Mapping[TopicPartition, int]) -> dict[str, Any]:
        topics = [{"name": name, "partition_indexes": list(indexes)} for name, indexes in by_topic(requested).items()]
        return {"topics": topics}

    def result(described: Any) -> tuple[ActiveProducer, ...]:
        return tuple(_producer(producer) for producer in described.active_producers)

    values = dict.fromkeys((to_topic_partition(partition) for partition in partitions), 0)
    caller = LeaderCaller(cluster, ApiKey.DESCRIBE_PRODUCERS, body, result)
    return (await caller.call(values, timeout)).outcomes()


def _producer(producer: Any) -> ActiveProducer:
    timestamp = producer.last_timestamp
    return ActiveProducer(
        producer.producer_id,
        producer.producer_epoch,
        producer.last_sequence,
        timestamp if isinstance(timestamp, int) else int(timestamp.timestamp() * 1000),
        None if producer.coordinator_epoch < 0 else producer.coordinator_epoch,
        None if producer.current_txn_start_offset < 0 else producer.current_txn_start_offset,
    )


async def find_hanging_transactions(
    cluster: Cluster, partitions: Iterable[TopicPartition], timeout: float | None
) -> list[HangingTransaction]:
    """Return the open transactions in these partitions that no coordinator will end there."""
    described = (await describe_producers(cluster, partitions, timeout)).check()
    opened = [
        HangingTransaction(partition, producer)
        for partition, producers in sorted(described.items())
        for producer in producers
        if producer.transaction_start is not None
    ]
    if not opened:
        return []
    ids = sorted({each.producer.producer_id for each in opened})
    listed = await list_transactions(cluster, (), ids, None, None, timeout)
    known = await describe_transactions(cluster, [listing.transactional_id for listing in listed], timeout)
    counted = {
        (transaction.producer_id, partition)
        for transaction in known.check().values()
        for partition in transaction.partitions
    }
    return [each for each in opened if (each.producer.producer_id, each.partition) not in counted]


async def abort_transaction(
    cluster: Cluster,
    partition: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timeout: float | None,
) -> None:
    """Append an ABORT marker directly to the log of a partition."""
    marker = {
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "transaction_result": False,
        "topics": [{"name": partition.topic, "partition_indexes": [partition.partition]}],
        "coordinator_epoch": coordinator_epoch,
    }
    leader = (await ask_metadata(cluster, {partition.topic: None}, timeout)).leader_of(*partition)
    if leader is None:
        raise error_of(ErrorCode.unknown_topic_or_partition, about=str(partition))
    response = await cluster.request(leader.leader, ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]}, timeout=timeout)
    codes = [each.error_code for marked in response.markers for topic in marked.topics for each in topic.partitions]
    if len(codes) != 1:
        raise MalformedResponseError(
            f"the response about the marker for {partition} mentions {len(codes)} partitions; expected 1"
        )
    if codes[0] != ErrorCode.none:
        raise error_of(codes[0], about=f"the marker of producer {producer_id} in {partition}")
