"""Transactions: ListTransactions, DescribeTransactions, DescribeProducers, and WriteTxnMarkers for those that hang.

A transaction hangs where a partition has one open that no coordinator will end: it does not know the producer, or does
not count the partition in. Readers of committed records wait there for ever.
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
_AT_ONCE = 64  # that are asked about; thousands at once would have the last wait past its timeout


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
    started_ms: int | None  # None: none was ever begun
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """One that a partition remembers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None  # None: no transaction of it has ended here yet
    transaction_start: int | None  # the first offset of its open transaction


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    place: TopicPartition
    producer: ActiveProducer


async def list_transactions(
    cluster: Cluster,
    states: Iterable[str],
    producer_ids: Iterable[int],
    longer_than_ms: int | None,
    pattern: str | None,
    timeout: float | None,
) -> list[TransactionListing]:
    """Each broker knows those that it coordinates."""
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
                raise error_of(response.error_code, about=f"the transactions of node {node}")
            if response.unknown_state_filters:
                unknown = ", ".join(response.unknown_state_filters)
                raise error_of(ErrorCode.invalid_request, f"states that the broker does not know: {unknown}")
            return response

        return await cluster.retry(attempt, timeout)

    responses = await asyncio.gather(*[ask(node) for node in cluster.metadata.nodes])
    found = {one.transactional_id: one for response in responses for one in response.transaction_states}
    return [TransactionListing(name, one.producer_id, one.transaction_state) for name, one in sorted(found.items())]


async def describe_transactions(
    cluster: Cluster, ids: Iterable[str], timeout: float | None
) -> Outcomes[str, TransactionDescription]:
    wanted = list(dict.fromkeys(ids))
    collected: Collected[str, TransactionDescription] = Collected({one: f"transactional id {one!r}" for one in wanted})
    turns = asyncio.Semaphore(_AT_ONCE)

    async def describe(name: str) -> None:
        try:
            async with turns:
                kind, body = CoordinatorKind.TRANSACTION, {"transactional_ids": [name]}
                answer = await cluster.ask_coordinator(kind, name, ApiKey.DESCRIBE_TRANSACTIONS, body, timeout=timeout)
            for one in answer.transaction_states:
                collected.take(one.transactional_id, one, _described(one))
        except ClientError as error:
            collected.fail(name, error)

    await asyncio.gather(*[describe(name) for name in wanted])
    return collected.outcomes()


def _described(one: Any) -> TransactionDescription:
    started = one.transaction_start_time
    started_ms = None if started is None else int(started.timestamp() * 1000)
    partitions = [TopicPartition(topic.topic, index) for topic in one.topics for index in topic.partitions]
    return TransactionDescription(
        one.transactional_id,
        one.transaction_state,
        one.producer_id,
        one.producer_epoch,
        int(one.transaction_timeout.total_seconds() * 1000),
        None if started_ms is None or started_ms < 0 else started_ms,
        tuple(sorted(partitions)),
    )


async def describe_producers(
    cluster: Cluster, places: Iterable[TopicPartition], timeout: float | None
) -> Outcomes[TopicPartition, tuple[ActiveProducer, ...]]:
    def body(asked: Mapping[TopicPartition, int]) -> dict[str, Any]:
        topics = [{"name": name, "partition_indexes": list(indexes)} for name, indexes in by_topic(asked).items()]
        return {"topics": topics}

    def result(one: Any) -> tuple[ActiveProducer, ...]:
        return tuple(_producer(each) for each in one.active_producers)

    wanted = dict.fromkeys((to_topic_partition(place) for place in places), 0)
    caller = LeaderCaller(cluster, ApiKey.DESCRIBE_PRODUCERS, body, result)
    return (await caller.call(wanted, timeout)).outcomes()


def _producer(one: Any) -> ActiveProducer:
    timestamp = one.last_timestamp
    return ActiveProducer(
        one.producer_id,
        one.producer_epoch,
        one.last_sequence,
        timestamp if isinstance(timestamp, int) else int(timestamp.timestamp() * 1000),
        None if one.coordinator_epoch < 0 else one.coordinator_epoch,
        None if one.current_txn_start_offset < 0 else one.current_txn_start_offset,
    )


async def find_hanging_transactions(
    cluster: Cluster, places: Iterable[TopicPartition], timeout: float | None
) -> list[HangingTransaction]:
    """The open transactions in these partitions that no coordinator counts there."""
    described = (await describe_producers(cluster, places, timeout)).check()
    opened = [
        HangingTransaction(place, producer)
        for place, producers in sorted(described.items())
        for producer in producers
        if producer.transaction_start is not None
    ]
    if not opened:
        return []
    ids = sorted({one.producer.producer_id for one in opened})
    listed = await list_transactions(cluster, (), ids, None, None, timeout)
    known = await describe_transactions(cluster, [one.transactional_id for one in listed], timeout)
    counted = {(one.producer_id, place) for one in known.check().values() for place in one.partitions}
    return [one for one in opened if (one.producer.producer_id, one.place) not in counted]


async def abort_transaction(
    cluster: Cluster,
    place: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timeout: float | None,
) -> None:
    """An ABORT marker, straight into the partition's log."""
    marker = {
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "transaction_result": False,
        "topics": [{"name": place.topic, "partition_indexes": [place.partition]}],
        "coordinator_epoch": coordinator_epoch,
    }
    found = (await ask_metadata(cluster, {place.topic: None}, timeout)).leader_of(*place)
    if found is None:
        raise error_of(ErrorCode.unknown_topic_or_partition, about=str(place))
    answer = await cluster.request(found.leader, ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]}, timeout=timeout)
    codes = [one.error_code for each in answer.markers for topic in each.topics for one in topic.partitions]
    if len(codes) != 1:
        raise MalformedResponseError(f"the answer about the marker for {place} tells of {len(codes)} partitions")
    if codes[0] != ErrorCode.none:
        raise error_of(codes[0], about=f"the marker of producer {producer_id} in {place}")
