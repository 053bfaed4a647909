"""The exceptions of the clients: a subclass of ClientError for each case that a program may want to handle.

`is_retriable` says whether the same call may succeed a moment later. The client retries such errors itself for as long
as its settings allow, and raises them when that time is over. A broker's error code becomes a BrokerError, or the
subclass for this code; its message says where it happened, what the broker reported, and what to do next.
"""

from __future__ import annotations

from typing import Self

from stratalog import errors
from stratalog.errors import (
    BrokerUnreachableError,
    ClientError,
    ConfigError,
    MalformedResponseError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from stratalog.protocol.error_codes import ErrorCode

__all__ = [
    "REFRESHES_METADATA",
    "RETRIABLE",
    "BrokerError",
    "BrokerUnreachableError",
    "BufferExhaustedError",
    "ClientClosedError",
    "ClientError",
    "CommitFailedError",
    "ConfigError",
    "CoordinatorError",
    "DeliveryTimeoutError",
    "DeserializationError",
    "FencedInstanceIdError",
    "FencedMemberEpochError",
    "ForkedClientError",
    "GroupAuthorizationError",
    "GroupNotEmptyError",
    "GroupNotFoundError",
    "IllegalGenerationError",
    "InvalidConfigError",
    "InvalidPartitionsError",
    "InvalidTopicError",
    "LeaderUnknownError",
    "MalformedResponseError",
    "NoOffsetError",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "PolicyViolationError",
    "ProducerFailedError",
    "ProducerFencedError",
    "RebalanceInProgressError",
    "RecordTooLargeError",
    "RequestTimeoutError",
    "Subject",
    "TopicAuthorizationError",
    "TopicExistsError",
    "TransactionAbortableError",
    "TransactionAbortedError",
    "TransactionStateError",
    "TransactionTimeoutError",
    "UnknownMemberError",
    "UnknownTopicOrPartitionError",
    "UnsupportedVersionError",
    "WakeupError",
    "error_of",
    "is_retriable",
]


class ClientClosedError(ClientError):
    """A call on a closed client. Create a new one."""


class ForkedClientError(ClientError):
    """A client that was created before a fork: its thread and connections stay with the parent. Create clients after
    the fork."""


class BufferExhaustedError(ClientError):
    """No room for a record within max.block.ms: the application sends faster than the brokers accept."""

    is_retriable = True


class DeliveryTimeoutError(ClientError):
    """A record that was not acknowledged within delivery.timeout.ms. It may have been written or not."""


class DeserializationError(ClientError):
    """A key or value that its deserializer rejected. The position stays at the record: seek past it to continue."""


class NoOffsetError(ClientError, LookupError):
    """A partition without a position, and auto.offset.reset=none forbids choosing one."""


class CommitFailedError(ClientError):
    """Offsets that can't be committed: the partitions belong to another member of the group."""


class WakeupError(ClientError):
    """A poll that wakeup() ended."""


class TransactionStateError(ClientError):
    """A call that is not valid in the current state of the producer's transaction. It had no effect; the message says
    which call is valid."""


class TransactionAbortedError(ClientError):
    """A record of an aborted transaction: no reader of committed records will see it, whether it was written or not."""


class TransactionAbortableError(ClientError):
    """A transaction that can't be committed any more; `__cause__` says why. Call abort() and repeat the transaction
    from begin() on."""


class TransactionTimeoutError(RequestTimeoutError):
    """A commit or abort that was not confirmed within max.block.ms: it may have happened or not. Repeat the call to
    learn its outcome."""


class ProducerFailedError(ClientError):
    """A transactional producer that can't continue; `__cause__` says why. Close it and create a new one."""


class Subject(str):
    """The thing that an error is about, like "topic 'orders'". `kind` and `name` are its parts."""

    kind: str
    name: str

    def __new__(cls, kind: str, name: str) -> Self:
        subject = super().__new__(cls, f"{kind} {name!r}")
        subject.kind, subject.name = kind, name
        return subject

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # str has one argument
        return self.kind, self.name


class BrokerError(ClientError):
    """A broker's error code: `code` is its number, `name` is Kafka's name for it, `about` is the object concerned."""

    def __init__(self, code: int, message: str | None = None, *, about: str = "") -> None:
        self.code = int(code)  # type: ignore[misc]
        self.name = name_of(code)
        self.about = about
        self.subject = about if isinstance(about, Subject) else None
        self.is_retriable = is_retriable(code)
        self.broker_message = message
        is_repeated = bool(about) and (message or "").startswith(about)  # the broker's message names it already
        problem = f"{about}: " if about and not is_repeated else ""
        problem += f"{self.name} (error {self.code})"
        if message:
            problem += f": {message.rstrip('.')}"
        advice = self._advice_for(message or "") or ("it may be temporary; retry" if self.is_retriable else "")
        super().__init__(problem, advice)

    def _advice_for(self, message: str) -> str:  # noqa: ARG002 - some subclasses use it
        """Return what to do next, given the broker's message."""
        return self.advice

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle_error, (self.code, self.broker_message, self.about)


class UnknownTopicOrPartitionError(BrokerError, errors.UnknownTopicError):
    advice = "check the name, or create the topic: Admin.create_topics, `stratalog topic create`"


class LeaderUnknownError(BrokerError):
    advice = "the partition's leader is unknown or has moved; retry once a leader is elected"


class TopicAuthorizationError(BrokerError):
    advice = "ask the cluster's administrator for access to the topic"


class GroupAuthorizationError(BrokerError):
    advice = "ask the cluster's administrator for access to the group"


class RecordTooLargeError(BrokerError, errors.MessageTooLargeError):
    """A record or batch over a limit. `size` is in bytes, if it is known. If the producer refused the record, so that
    no broker has seen it, `setting` names the producer's limit."""

    advice = "send smaller records, or raise the topic's max.message.bytes"

    def __init__(
        self,
        code: int,
        message: str | None = None,
        *,
        about: str = "",
        size: int | None = None,
        setting: str | None = None,
    ) -> None:
        self.size = size
        self.setting = setting
        super().__init__(code, message, about=about)

    @classmethod
    def at_client(cls, what: str, size: int, setting: str, limit: int, topic: str) -> Self:
        """Return the error of a producer whose `setting` is less than the `size` of `what`."""
        message = f"{what} of {size} bytes with its overhead is more than {setting} = {limit}"
        return cls(ErrorCode.message_too_large, message, about=topic, size=size, setting=setting)

    def _advice_for(self, message: str) -> str:
        if self.setting is None:
            return super()._advice_for(message)
        return f"send smaller records, or raise the producer's {self.setting}"

    def __reduce__(self) -> tuple[object, ...]:
        return _too_large_again, (self.code, self.broker_message, self.about, self.size, self.setting)


class OffsetOutOfRangeError(BrokerError, errors.OffsetOutOfRangeError):
    advice = "seek to an offset that exists, or set auto.offset.reset"


class OutOfOrderSequenceError(BrokerError, errors.OutOfOrderSequenceError):
    advice = (
        "earlier records were lost; close this producer, and continue after the last acknowledged record with a new one"
    )


class ProducerFencedError(BrokerError):
    advice = (
        "a newer producer has claimed the transactional id, or the transaction was open for longer than "
        "transaction.timeout.ms; close this producer"
    )


class IllegalGenerationError(BrokerError):
    advice = "the group has rebalanced; poll to join it again"


class UnknownMemberError(BrokerError):
    advice = "the group has removed this member; poll more often, or raise session.timeout.ms or max.poll.interval.ms"


class RebalanceInProgressError(BrokerError):
    advice = "the group is rebalancing; poll to take part"


class FencedInstanceIdError(BrokerError):
    advice = "another consumer uses the same group.instance.id; give each consumer a different one"


class FencedMemberEpochError(BrokerError):
    advice = "the coordinator has removed this member; poll to join the group again"


class CoordinatorError(BrokerError):
    advice = "the group's coordinator is moving or loading; retry"


class GroupNotFoundError(BrokerError, LookupError):
    advice = "check the name; `stratalog group list` lists all groups"


class GroupNotEmptyError(BrokerError):
    advice = "stop the group's consumers first"


class TopicExistsError(BrokerError, errors.TopicExistsError):
    advice = "choose another name, or use the existing topic"


class InvalidTopicError(BrokerError, errors.InvalidTopicError):
    advice = "a name consists of 1 to 249 letters, digits, dots, underscores and hyphens"

    def _advice_for(self, message: str) -> str:
        if not message:
            return self.advice
        # All other messages of brokers say which names are valid, or name a topic.
        return "choose another name" if "colli" in message else ""


class InvalidPartitionsError(BrokerError, errors.InvalidPartitionsError):
    advice = "the number of a topic's partitions can only grow"

    def _advice_for(self, message: str) -> str:
        return "" if message else self.advice  # the message may say that there are too many


class InvalidConfigError(BrokerError, errors.ConfigError):
    advice = ""


class PolicyViolationError(BrokerError):
    advice = "the cluster's policy forbids the request"


_CLASSES: dict[int, type[BrokerError]] = {
    ErrorCode.offset_out_of_range: OffsetOutOfRangeError,
    ErrorCode.unknown_topic_or_partition: UnknownTopicOrPartitionError,
    ErrorCode.unknown_topic_id: UnknownTopicOrPartitionError,
    ErrorCode.leader_not_available: LeaderUnknownError,
    ErrorCode.not_leader_or_follower: LeaderUnknownError,
    ErrorCode.message_too_large: RecordTooLargeError,
    ErrorCode.record_list_too_large: RecordTooLargeError,
    ErrorCode.coordinator_load_in_progress: CoordinatorError,
    ErrorCode.coordinator_not_available: CoordinatorError,
    ErrorCode.not_coordinator: CoordinatorError,
    ErrorCode.invalid_topic_exception: InvalidTopicError,
    ErrorCode.illegal_generation: IllegalGenerationError,
    ErrorCode.unknown_member_id: UnknownMemberError,
    ErrorCode.rebalance_in_progress: RebalanceInProgressError,
    ErrorCode.topic_authorization_failed: TopicAuthorizationError,
    ErrorCode.group_authorization_failed: GroupAuthorizationError,
    ErrorCode.topic_already_exists: TopicExistsError,
    ErrorCode.invalid_partitions: InvalidPartitionsError,
    ErrorCode.invalid_config: InvalidConfigError,
    ErrorCode.policy_violation: PolicyViolationError,
    ErrorCode.out_of_order_sequence_number: OutOfOrderSequenceError,
    ErrorCode.unknown_producer_id: OutOfOrderSequenceError,
    ErrorCode.invalid_producer_epoch: ProducerFencedError,
    ErrorCode.producer_fenced: ProducerFencedError,
    ErrorCode.non_empty_group: GroupNotEmptyError,
    ErrorCode.group_id_not_found: GroupNotFoundError,
    ErrorCode.fenced_instance_id: FencedInstanceIdError,
    ErrorCode.unreleased_instance_id: FencedInstanceIdError,
    ErrorCode.fenced_member_epoch: FencedMemberEpochError,
    ErrorCode.stale_member_epoch: FencedMemberEpochError,
}

RETRIABLE: frozenset[int] = frozenset(int(code) for code in ErrorCode if code.retriable)
"""Error codes after which the same request may succeed later, at this broker or another."""

REFRESHES_METADATA: frozenset[int] = frozenset(
    int(code)
    for code in (
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.network_exception,
        ErrorCode.listener_not_found,
        ErrorCode.not_controller,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
    )
)
"""Error codes which show that the client's metadata is out of date."""


def error_of(code: int, message: str | None = None, *, about: str = "") -> BrokerError:
    """Return the exception for an error code. `about` is the topic, partition or group concerned."""
    return _CLASSES.get(int(code), BrokerError)(code, message, about=about)


def is_retriable(code: int) -> bool:
    return int(code) in RETRIABLE


def name_of(code: int) -> str:
    """Return Kafka's name of an error code; UNKNOWN_ERROR_CODE for a code of a newer broker."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return "UNKNOWN_ERROR_CODE"


def _unpickle_error(code: int, message: str | None, about: str) -> BrokerError:
    """Create the exception again; pickle calls it."""
    return error_of(code, message, about=about)


def _too_large_again(
    code: int, message: str | None, about: str, size: int | None, setting: str | None
) -> RecordTooLargeError:
    """Recreate the error from its pickle."""
    return RecordTooLargeError(code, message, about=about, size=size, setting=setting)
