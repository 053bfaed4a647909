"""Prepared transactions: their producers prepare them, and another client ends all of them together. The methods are
part of Stratalog's own API (key 20000):

- `transactions.prepare`: transactional_id, producer_id, producer_epoch, within_ms (optional; default: without limit).
  Prepares the open transaction, which then waits to be ended; its own timeout does not abort it.
- `transactions.prepared`: prefix (optional). Returns the prepared transactions.
- `transactions.finish`: transactions (transactional_id, producer_id and producer_epoch of each), commit. Ends all of
  them or none; their transactional ids must share a partition of `__transaction_state`. Returns the producer id and
  producer epoch that each producer has from then on.
- `transactions.abort`: prefix, close (optional; default: false). Aborts all open transactions whose transactional ids
  have this prefix, prepared or not, and fences their producers. With close, no transaction can begin under the prefix
  from then on, and the result also has ids without an open transaction.
- `transactions.forget`: transactional_ids. Removes idle transactional ids, as their expiry would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratalog.broker.apis.own import LoopMethod, MethodError
from stratalog.broker.transactions.closed_prefixes import LONGEST_PREFIX
from stratalog.broker.transactions.state import NEVER_MS, ProducerIdAndEpoch
from stratalog.broker.transactions.two_phase import MOST_MEMBERS, PreparedProducer, Refusal, TwoPhase
from stratalog.errors import MalformedRequestError


class TwoPhaseApi:
    def __init__(self, two_phase: TwoPhase) -> None:
        self._two_phase = two_phase

    def methods(self) -> dict[str, LoopMethod]:
        return {
            "transactions.prepare": self.prepare,
            "transactions.prepared": self.prepared,
            "transactions.finish": self.finish,
            "transactions.abort": self.abort,
            "transactions.forget": self.forget,
        }

    async def prepare(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        _check_names(arguments, "transactional_id", "producer_id", "producer_epoch", "within_ms")
        within_ms = arguments.get("within_ms", NEVER_MS)
        if not _is_number(within_ms) or not 0 < within_ms <= NEVER_MS:
            raise MalformedRequestError(f"within_ms is {within_ms!r}; it must be 1 to {NEVER_MS}, which means no limit")
        _check(self._two_phase.prepare(_member(arguments), within_ms))
        return []

    async def prepared(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        _check_names(arguments, "prefix")
        prefix = arguments.get("prefix", "")
        if not isinstance(prefix, str):
            raise MalformedRequestError(f"prefix is {prefix!r}; it must be text")
        _check(self._two_phase.refuse_while_loading())
        return [
            {
                "transactional_id": prepared.transactional_id,
                "producer_id": prepared.producer_id,
                "producer_epoch": prepared.epoch,
                "started_ms": prepared.started_ms,
                "prepared_ms": prepared.updated_ms,
                "until_ms": None if prepared.timeout_ms == NEVER_MS else prepared.started_ms + prepared.timeout_ms,
            }
            for prepared in self._two_phase.prepared(prefix)
        ]

    async def finish(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        _check_names(arguments, "transactions", "commit")
        commit = arguments.get("commit")
        if not isinstance(commit, bool):
            raise MalformedRequestError(f"commit is {commit!r}; it must be true or false")
        members = [_parse_member(entry) for entry in _list(arguments, "transactions")]
        result = await self._two_phase.finish(members, commit=commit)
        if isinstance(result, Refusal):
            raise MethodError(*result)
        return [
            {
                "transactional_id": member.transactional_id,
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
            }
            for member, producer in zip(members, result, strict=True)
        ]

    async def abort(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        _check_names(arguments, "prefix", "close")
        prefix, close = arguments.get("prefix"), arguments.get("close", False)
        if not isinstance(prefix, str) or not prefix:
            raise MalformedRequestError(f"prefix is {prefix!r}; it must be the beginning of the transactional ids")
        if not isinstance(close, bool):
            raise MalformedRequestError(f"close is {close!r}; it must be true or false")
        if close and len(prefix) > LONGEST_PREFIX:
            raise MalformedRequestError(
                f"prefix has {len(prefix)} characters; with close, it must have at most {LONGEST_PREFIX}"
            )
        _check(self._two_phase.refuse_while_loading())
        aborted = await self._two_phase.abort(prefix, close=close)
        return [{"transactional_id": transactional_id} for transactional_id in aborted]

    async def forget(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        _check_names(arguments, "transactional_ids")
        ids = _list(arguments, "transactional_ids")
        for transactional_id in ids:
            _check_id(transactional_id)
        _check(self._two_phase.forget(ids))
        return []


def _parse_member(entry: Any) -> PreparedProducer:
    if not isinstance(entry, dict):
        raise MalformedRequestError(f"transactions has {entry!r}; its entries must be JSON objects")
    _check_names(entry, "transactional_id", "producer_id", "producer_epoch")
    return _member(entry)


def _member(fields: Mapping[str, Any]) -> PreparedProducer:
    transactional_id, producer_id = fields.get("transactional_id"), fields.get("producer_id")
    epoch = fields.get("producer_epoch")
    _check_id(transactional_id)
    if not _is_number(producer_id):
        raise MalformedRequestError(f"producer_id is {producer_id!r}; it must be a number")
    if not _is_number(epoch):
        raise MalformedRequestError(f"producer_epoch is {epoch!r}; it must be a number")
    return PreparedProducer(str(transactional_id), ProducerIdAndEpoch(int(producer_id or 0), int(epoch or 0)))


def _check_id(value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise MalformedRequestError(f"transactional_id is {value!r}; it must be text")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list(arguments: Mapping[str, Any], name: str) -> list[Any]:
    value = arguments.get(name)
    if not isinstance(value, list) or not value:
        raise MalformedRequestError(f"{name} is {value!r}; it must be a list with at least one entry")
    if len(value) > MOST_MEMBERS:
        raise MalformedRequestError(f"{name} has {len(value)} entries; it must have at most {MOST_MEMBERS}")
    return value


def _check(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise MethodError(*refusal)


def _check_names(arguments: Mapping[str, Any], *known: str) -> None:
    for name in arguments:
        if name not in known:
            raise MalformedRequestError(
                f"{name!r} is not an argument of this method; its arguments are {', '.join(known)}"
            )
