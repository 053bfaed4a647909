"""Where a producer's transaction is, which calls fit that, and what those that don't are told. Pure.

    NEW -> READY -> OPEN -> COMMITTING -> READY
                      |  -> PREPARED   -> COMMITTING, ABORTING
                      |  -> ABORTING   -> READY
                      |  -> DOOMED     -> ABORTING        what went wrong is over once the transaction is aborted
    any             -> FAILED                             only a new producer goes on

Errors are of two kinds, as KIP-1050 has it. Most doom the transaction: abort it, and do it again. Some are the
producer's: it was fenced, may not use its transactional id, or speaks of a transaction that the coordinator knows
otherwise. Whoever hits a state is given an exception of their own, with what to do next.
"""

from __future__ import annotations

from enum import Enum

from stratalog.client.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    ProducerFailedError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionStateError,
    UnsupportedVersionError,
    error_of,
)
from stratalog.protocol.error_codes import ErrorCode

_FATAL = {
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_epoch,  # of the coordinator's; where it is a partition's, it is asked first
    ErrorCode.invalid_txn_state,
    ErrorCode.invalid_transaction_timeout,
    ErrorCode.unsupported_for_message_format,
    ErrorCode.unsupported_version,
}


class Phase(Enum):
    NEW = "new"  # the transactional id is not claimed yet
    READY = "ready"  # for the next transaction
    OPEN = "open"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    DOOMED = "doomed"
    FAILED = "failed"
    CLOSED = "closed"


class TransactionState:
    def __init__(self, transactional_id: str) -> None:
        self.phase = Phase.NEW
        self.cause: ClientError | None = None  # of DOOMED and FAILED
        self.is_decided = False  # the coordinator was told to commit: nothing else can come of it any more
        self._transactional_id = transactional_id

    def __str__(self) -> str:
        return f"the transaction of {self._transactional_id!r}"

    def fail(self, error: ClientError) -> None:
        """What went wrong dooms the transaction, or the producer. The first reason counts."""
        if self.phase in (Phase.FAILED, Phase.CLOSED):
            return
        if is_fatal(error):
            self.phase, self.cause = Phase.FAILED, error
        elif self.phase in (Phase.OPEN, Phase.COMMITTING, Phase.PREPARED):
            self.phase, self.cause, self.is_decided = Phase.DOOMED, error, False

    def check_can_begin(self) -> None:
        if self.phase is Phase.READY:
            return
        if self.phase is Phase.OPEN:
            raise TransactionStateError(f"{self} is open already; commit() or abort() it before the next begin()")
        raise self.refusal("begin()")

    def check_is_open(self, call: str) -> None:
        if self.phase is not Phase.OPEN:
            raise self.refusal(call)

    def check_can_commit(self) -> None:
        if self.phase not in (Phase.OPEN, Phase.PREPARED, Phase.COMMITTING):
            raise self.refusal("commit()")

    def check_can_abort(self) -> None:
        if self.phase is Phase.COMMITTING and self.is_decided:
            raise TransactionStateError(
                f"{self} may be committed already, which was not confirmed yet; call commit() again, to learn it"
            )
        if self.phase not in (Phase.OPEN, Phase.PREPARED, Phase.COMMITTING, Phase.DOOMED, Phase.ABORTING):
            raise self.refusal("abort()")

    def check_not_lost(self) -> None:
        """Raises what doomed the transaction or the producer, if something has."""
        if self.phase in (Phase.DOOMED, Phase.FAILED):
            raise self.refusal()

    def refusal(self, call: str = "send()") -> ClientError:
        """Why the call can't be made now."""
        if self.phase is Phase.FAILED:
            return self._fatal()
        if self.phase is Phase.DOOMED:
            error = TransactionAbortableError(
                f"{self} can't be committed any more: {self.cause}. Call abort(), then do it again from begin() on"
            )
            error.__cause__ = self.cause
            return error
        if self.phase is Phase.CLOSED:
            return ClientClosedError("the producer is closed; make a new one")
        return TransactionStateError(f"{call}: {_NEXT[self.phase].format(self)}")

    def _fatal(self) -> ClientError:
        cause = self.cause
        if isinstance(cause, ProducerFencedError):
            return error_of(cause.code, cause.broker_message, about=cause.about)  # each who raises it has a traceback
        error = ProducerFailedError(
            f"the producer of transactional id {self._transactional_id!r} can't be used any more: {cause}. Close it, "
            f"and make a new one"
        )
        error.__cause__ = cause
        return error


_NEXT = {
    Phase.NEW: "no transaction is open; call begin(), or use `with producer.transaction():`",
    Phase.READY: "no transaction is open; call begin(), or use `with producer.transaction():`",
    Phase.OPEN: "{} is open; commit() or abort() it first",
    Phase.PREPARED: "{} is prepared, and takes no more; end it with Admin.finish_transactions, commit() or abort()",
    Phase.COMMITTING: "{} is being committed; call commit() again until it returns, then begin()",
    Phase.ABORTING: "{} is being aborted; call abort() again until it returns, then begin()",
}


def is_fatal(error: ClientError) -> bool:
    """Whether only a new producer can go on."""
    if isinstance(error, BrokerError):
        return error.code in _FATAL
    return isinstance(error, UnsupportedVersionError)
