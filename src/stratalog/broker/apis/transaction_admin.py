"""Administration of transactions, and markers that end a transaction by hand.

| key | API | versions | notes |
|---|---|---|---|
| 27 | WriteTxnMarkers | 1 | for a hanging transaction, which the coordinator does not know or has forgotten |
| 65 | DescribeTransactions | 0 | |
| 66 | ListTransactions | 0-2 | by state and producer id; by duration from 1; by a pattern of transactional ids from 2 |

DescribeProducers, which lists the open transactions of a partition, is with the producers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from stratalog.broker.apis.groups import MOST_GROUPS, distinct
from stratalog.broker.background import RunInBackground
from stratalog.broker.groups.topic_pattern import TopicPatternError, compile_pattern
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.broker.transactions.coordinator import TransactionCoordinator
from stratalog.broker.transactions.markers import Marker
from stratalog.broker.transactions.state import STATES, Transaction, TransactionState
from stratalog.clock import Clock
from stratalog.errors import StratalogError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage.names import TopicPartition

_MARKERS_A_TURN = 100


class TransactionAdminApis:
    def __init__(self, coordinator: TransactionCoordinator, clock: Clock, match_patterns: RunInBackground) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._match_patterns = match_patterns

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.WRITE_TXN_MARKERS: self.write_markers,
            ApiKey.DESCRIBE_TRANSACTIONS: self.describe,
            ApiKey.LIST_TRANSACTIONS: self.list,
        }

    # WriteTxnMarkers

    async def write_markers(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        return {
            "markers": [
                {
                    "producer_id": marker.producer_id,
                    "topics": [await self._write(marker, topic) for topic in marker.topics],
                }
                for marker in request.markers
            ]
        }

    async def _write(self, requested: Any, topic: Any) -> Reply:
        marker = Marker(
            requested.producer_id,
            requested.producer_epoch,
            requested.transaction_result,
            requested.coordinator_epoch,
        )
        partitions = []
        for index in dict.fromkeys(topic.partition_indexes):
            error = self._coordinator.markers.write(TopicPartition(topic.name, index), marker)
            partitions.append({"partition_index": index, "error_code": error})
            if len(partitions) % _MARKERS_A_TURN == 0:
                await asyncio.sleep(0)  # serve other requests
        written = [
            TopicPartition(topic.name, result["partition_index"]) for result in partitions if not result["error_code"]
        ]
        try:
            await self._coordinator.markers.flush(written)
        except StratalogError as error:
            partitions = [
                {**result, "error_code": result["error_code"] or ErrorCode(error.code)} for result in partitions
            ]
        return {"name": topic.name, "partitions": partitions}

    # DescribeTransactions

    def describe(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        ids = distinct(request.transactional_ids, MOST_GROUPS, "DescribeTransactions")
        return {"transaction_states": [self._describe(transactional_id) for transactional_id in ids]}

    def _describe(self, transactional_id: str) -> Reply:
        error = self._coordinator.status(transactional_id) if transactional_id else ErrorCode.invalid_request
        known = self._coordinator.get(transactional_id)
        if error is ErrorCode.none and known is None:
            error = ErrorCode.transactional_id_not_found
        if error is not ErrorCode.none or known is None:
            return _not_described(transactional_id, error)
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(known.partitions):
            topics.setdefault(topic, []).append(index)
        return {
            "error_code": ErrorCode.none,
            "transactional_id": transactional_id,
            "transaction_state": known.state.title,
            "transaction_timeout": known.timeout_ms,
            "transaction_start_time": known.started_ms,
            "producer_id": known.producer_id,
            "producer_epoch": known.epoch,
            "topics": [{"topic": topic, "partitions": indexes} for topic, indexes in topics.items()],
        }

    # ListTransactions

    async def list(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        if self._coordinator.loading.is_in_progress:
            return _nothing_listed(ErrorCode.coordinator_load_in_progress)
        try:
            transactions = await self._matching(getattr(request, "transactional_id_pattern", None))
        except TopicPatternError:
            return _nothing_listed(ErrorCode.invalid_regular_expression)
        states = {STATES[name] for name in request.state_filters if name in STATES}
        unknown = [name for name in dict.fromkeys(request.state_filters) if name not in STATES]
        producer_ids = set(request.producer_id_filters)
        longer_than = getattr(request, "duration_filter", -1)
        now_ms = self._clock.now_ms()
        return {
            "error_code": ErrorCode.none,
            "unknown_state_filters": unknown,
            "transaction_states": [
                _listed(transaction)
                for transaction in transactions
                if (not producer_ids or transaction.producer_id in producer_ids)
                and (not request.state_filters or transaction.state in states)
                and (longer_than < 0 or now_ms - transaction.started_ms > longer_than)
                and transaction.state is not TransactionState.DEAD
            ],
        }

    async def _matching(self, pattern: str | None) -> Iterable[Transaction]:
        """Return the transactions whose transactional ids match. Raises TopicPatternError if the pattern is not
        valid."""
        known = {transaction.transactional_id: transaction for transaction in self._coordinator.all()}
        if not pattern:
            return known.values()
        compiled = compile_pattern(pattern)
        transactional_ids = await self._match_patterns(lambda: compiled.matching(known))
        return [known[transactional_id] for transactional_id in transactional_ids]


def _listed(transaction: Transaction) -> Reply:
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "transaction_state": transaction.state.title,
    }


def _nothing_listed(error: ErrorCode) -> Reply:
    return {"error_code": error, "unknown_state_filters": [], "transaction_states": []}


def _not_described(transactional_id: str, error: ErrorCode) -> Reply:
    return {
        "error_code": error,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }
