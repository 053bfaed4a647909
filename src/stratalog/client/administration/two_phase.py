"""Transactions that one process prepares and another ends, any number of them at once: a Stratalog broker's own API.

All requests are idempotent. A request whose response is lost is therefore sent again, until the timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stratalog.client.administration.own import ask
from stratalog.client.cluster import Cluster
from stratalog.client.errors import MalformedResponseError
from stratalog.client.prepared_transaction import PreparedTransaction


async def prepare(
    cluster: Cluster, transaction: PreparedTransaction, within_ms: int | None, timeout: float | None
) -> None:
    """Prepare the transaction of a producer whose records are all acknowledged. It may stay prepared for `within_ms`
    milliseconds; None sets no limit."""
    arguments = _row(transaction) if within_ms is None else {**_row(transaction), "within_ms": within_ms}
    await _ask(cluster, "transactions.prepare", arguments, timeout)


async def prepared(cluster: Cluster, prefix: str, timeout: float | None) -> list[PreparedTransaction]:
    rows = await _ask(cluster, "transactions.prepared", {"prefix": prefix}, timeout)
    return _transactions("transactions.prepared", rows)


async def finish(
    cluster: Cluster, members: Iterable[PreparedTransaction], *, commit: bool, timeout: float | None
) -> list[PreparedTransaction]:
    rows = [_row(transaction) for transaction in members]
    if not rows:
        return []
    ended = await _ask(cluster, "transactions.finish", {"transactions": rows, "commit": commit}, timeout)
    return _transactions("transactions.finish", ended)


async def abort(cluster: Cluster, prefix: str, *, close: bool, timeout: float | None) -> list[str]:
    rows = await _ask(cluster, "transactions.abort", {"prefix": prefix, "close": close}, timeout)
    return [str(row.get("transactional_id")) for row in rows]


async def forget(cluster: Cluster, ids: Sequence[str], timeout: float | None) -> None:
    if ids:
        await _ask(cluster, "transactions.forget", {"transactional_ids": list(ids)}, timeout)


async def _ask(cluster: Cluster, method: str, arguments: dict[str, Any], timeout: float | None) -> list[dict[str, Any]]:
    return await cluster.retry(lambda seconds: ask(cluster, method, arguments, seconds), timeout)


def _row(transaction: PreparedTransaction) -> dict[str, Any]:
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
    }


def _transactions(method: str, rows: Iterable[dict[str, Any]]) -> list[PreparedTransaction]:
    try:
        return [
            PreparedTransaction(str(row["transactional_id"]), int(row["producer_id"]), int(row["producer_epoch"]))
            for row in rows
        ]
    except (KeyError, TypeError, ValueError) as broken:
        raise MalformedResponseError(f"the response to {method} can't be read: {broken!r}") from broken
