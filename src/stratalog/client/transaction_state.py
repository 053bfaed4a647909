"""The states of a producer's transaction, the calls that each allows, and the errors of calls that it does not. Pure.

    NEW -> READY -> OPEN -> COMMITTING -> READY
                      |  -> PREPARED   -> COMMITTING, ABORTING
                      |  -> ABORTING   -> READY
                      |  -> DOOMED     -> ABORTING        the error is gone once the transaction is aborted
    any             -> FAILED                             only a new producer can continue

Errors are of two kinds, as in KIP-1050. Most doom the transaction: it must be aborted, and may be repeated. Fatal
errors concern the producer: it was fenced, may not use its transactional id, or its view of the transaction contradicts
the coordinator's. Each refused call gets an exception object of its own, which says what to do next.
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
    ErrorCode.invalid_producer_epoch,  # from the coordinator; after one from a partition, the coordinator is asked why
    ErrorCode.invalid_txn_state,
    ErrorCode.invalid_transaction_timeout,
    ErrorCode.unsupported_for_message_format,
    ErrorCode.unsupported_version,
}


class Phase(Enum):
    """The state of a producer's transaction."""

    NEW = "new"  # the transactional id is not claimed yet
    READY = "ready"  # the next transaction can begin
    OPEN = "open"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    DOOMED = "doomed"
    FAILED = "failed"
    CLOSED = "closed"


class TransactionLifecycle:
    """The current phase of a producer's transaction, and the error that ended it."""

    def __init__(self, transactional_id: str) -> None:
        self.phase = Phase.NEW
        self.cause: ClientError | None = None  # of DOOMED and FAILED
        self.is_decided = False  # a commit was sent to the coordinator: it can't be aborted any more
        self._transactional_id = transactional_id

    def __str__(self) -> str:
        return f"the transaction of {self._transactional_id!r}"

    def fail(self, error: ClientError) -> None:
        """Record an error, which dooms the transaction or, if it is fatal, the producer. The first error counts."""
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
            raise TransactionStateError(f"{self} is already open; call commit() or abort() before the next begin()")
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
                f"{self} may be committed already, but this is not confirmed; call commit() again to learn the outcome"
            )
        if self.phase not in (Phase.OPEN, Phase.PREPARED, Phase.COMMITTING, Phase.DOOMED, Phase.ABORTING):
            raise self.refusal("abort()")

    def check_not_lost(self) -> None:
        """Raise the error that doomed the transaction or the producer, if there is one."""
        if self.phase in (Phase.DOOMED, Phase.FAILED):
            raise self.refusal()

    def refusal(self, call: str = "send()") -> ClientError:
        """Return the error of a call that is not valid now."""
        if self.phase is Phase.FAILED:
            return self._fatal()
        if self.phase is Phase.DOOMED:
            error = TransactionAbortableError(
                f"{self} can't be committed any more: {self.cause}. Call abort(), then repeat it from begin() on"
            )
            error.__cause__ = self.cause
            return error
        if self.phase is Phase.CLOSED:
            return ClientClosedError("the producer is closed; create a new one")
        return TransactionStateError(f"{call}: {_NEXT[self.phase].format(self)}")

    def _fatal(self) -> ClientError:
        cause = self.cause
        if isinstance(cause, ProducerFencedError):
            return error_of(cause.code, cause.broker_message, about=cause.about)  # a copy, with its own traceback
        error = ProducerFailedError(
            f"the producer of transactional id {self._transactional_id!r} can't be used any more: {cause}. Close it "
            f"and create a new one"
        )
        error.__cause__ = cause
        return error


_NEXT = {
    Phase.NEW: "no transaction is open; call begin(), or use `with producer.transaction():`",
    Phase.READY: "no transaction is open; call begin(), or use `with producer.transaction():`",
    Phase.OPEN: "{} is open; call commit() or abort() first",
    Phase.PREPARED: "{} is prepared and accepts no more records; end it with Admin.finish_transactions, commit() or "
    "abort()",
    Phase.COMMITTING: "{} is being committed; call commit() again until it returns, then begin()",
    Phase.ABORTING: "{} is being aborted; call abort() again until it returns, then begin()",
}


def is_fatal(error: ClientError) -> bool:
    """Return whether only a new producer can continue."""
    if isinstance(error, BrokerError):
        return error.code in _FATAL
    return isinstance(error, UnsupportedVersionError)
