"""Transactions that are prepared by their producers and ended together by another, by Stratalog's own API (key 20000):

- `transactions.prepare`: transactional_id, producer_id, producer_epoch, within_ms (optional: for ever). The open
  transaction waits for a decision, which its own timeout does not end.
- `transactions.prepared`: prefix (optional). Those that wait for a decision.
- `transactions.finish`: transactions (of each transactional_id, producer_id, producer_epoch), commit. All at once or
  none; the ids must share a partition of `__transaction_state`. Who each producer is from then on.
- `transactions.abort`: prefix, close (optional: false). What ids with this prefix have open, prepared or not, is
  aborted, and their producers are fenced. With close, no transaction may begin under the prefix from then on, and idle
  ids are listed too.
- `transactions.forget`: transactional_ids. Ids that are at rest are dropped, as their expiry would.
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
            raise MalformedRequestError(f"within_ms is {within_ms!r}; 1 to {NEVER_MS} is wanted, which is for ever")
        _check(self._two_phase.prepare(_member(arguments), within_ms))
        return []

    async def prepared(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        _check_names(arguments, "prefix")
        prefix = arguments.get("prefix", "")
        if not isinstance(prefix, str):
            raise MalformedRequestError(f"prefix is {prefix!r}; text is wanted")
        _check(self._two_phase.refuse_while_loading())
        return [
            {
                "transactional_id": one.transactional_id,
                "producer_id": one.producer_id,
                "producer_epoch": one.epoch,
                "started_ms": one.started_ms,
                "prepared_ms": one.updated_ms,
                "until_ms": None if one.timeout_ms == NEVER_MS else one.started_ms + one.timeout_ms,
            }
            for one in self._two_phase.prepared(prefix)
        ]

    async def finish(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        _check_names(arguments, "transactions", "commit")
        commit = arguments.get("commit")
        if not isinstance(commit, bool):
            raise MalformedRequestError(f"commit is {commit!r}; true or false is wanted")
        members = [_listed(one) for one in _list(arguments, "transactions")]
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
            raise MalformedRequestError(f"prefix is {prefix!r}; the beginning of the transactional ids is wanted")
        if not isinstance(close, bool):
            raise MalformedRequestError(f"close is {close!r}; true or false is wanted")
        if close and len(prefix) > LONGEST_PREFIX:
            raise MalformedRequestError(
                f"prefix has {len(prefix)} characters; a prefix of at most {LONGEST_PREFIX} can be closed"
            )
        _check(self._two_phase.refuse_while_loading())
        aborted = await self._two_phase.abort(prefix, close=close)
        return [{"transactional_id": transactional_id} for transactional_id in aborted]

    async def forget(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        _check_names(arguments, "transactional_ids")
        ids = _list(arguments, "transactional_ids")
        for one in ids:
            _check_id(one)
        _check(self._two_phase.forget(ids))
        return []


def _listed(one: Any) -> PreparedProducer:
    if not isinstance(one, dict):
        raise MalformedRequestError(f"transactions holds {one!r}; JSON objects are wanted")
    _check_names(one, "transactional_id", "producer_id", "producer_epoch")
    return _member(one)


def _member(fields: Mapping[str, Any]) -> PreparedProducer:
    transactional_id, producer_id = fields.get("transactional_id"), fields.get("producer_id")
    epoch = fields.get("producer_epoch")
    _check_id(transactional_id)
    if not _is_number(producer_id):
        raise MalformedRequestError(f"producer_id is {producer_id!r}; a number is wanted")
    if not _is_number(epoch):
        raise MalformedRequestError(f"producer_epoch is {epoch!r}; a number is wanted")
    return PreparedProducer(str(transactional_id), ProducerIdAndEpoch(int(producer_id or 0), int(epoch or 0)))


def _check_id(value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise MalformedRequestError(f"transactional_id is {value!r}; text is wanted")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list(arguments: Mapping[str, Any], name: str) -> list[Any]:
    value = arguments.get(name)
    if not isinstance(value, list) or not value:
        raise MalformedRequestError(f"{name} is {value!r}; a list of at least one is wanted")
    if len(value) > MOST_MEMBERS:
        raise MalformedRequestError(f"{name} has {len(value)} entries; {MOST_MEMBERS} are the most at once")
    return value


def _check(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise MethodError(*refusal)


def _check_names(arguments: Mapping[str, Any], *known: str) -> None:
    for name in arguments:
        if name not in known:
            raise MalformedRequestError(f"{name!r} is no argument of this method; {', '.join(known)} are")
