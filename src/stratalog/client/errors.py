"""What a client raises: one class for each case that a program may want to handle, all of them ClientErrors.

`is_retriable` says whether the same call may well succeed a moment later. The client itself has retried those for as
long as its settings allow, so a program sees them when that time is over. An error code of a broker's becomes a
BrokerError, or the subclass that it has here; its message says where it happened, what the broker said, and what to do
next.
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
    """A call on a client that was closed. Make a new one."""


class ForkedClientError(ClientError):
    """A client that a fork took along: its thread and connections stay with the parent. Make one after the fork."""


class BufferExhaustedError(ClientError):
    """No room for a record within max.block.ms: records come in faster than the brokers take them."""

    is_retriable = True


class DeliveryTimeoutError(ClientError):
    """A record that was not acknowledged within delivery.timeout.ms. It may have been written or not."""


class DeserializationError(ClientError):
    """A key or value that its deserializer could not read. The position stays at the record: seek past it to go on."""


class NoOffsetError(ClientError, LookupError):
    """A partition without a position, and auto.offset.reset says not to choose one."""


class CommitFailedError(ClientError):
    """Offsets that could not be committed: the partitions have gone to another member of the group."""


class WakeupError(ClientError):
    """A poll that wakeup() ended."""


class TransactionStateError(ClientError):
    """A call that does not fit what the producer's transaction has come to. Nothing has happened; the message says
    which call is next."""


class TransactionAbortedError(ClientError):
    """A record of a transaction that was aborted: no reader of committed records will see it, written or not."""


class TransactionAbortableError(ClientError):
    """The transaction can't be committed any more; `__cause__` says why. Call abort(), and do it again from begin()
    on."""


class TransactionTimeoutError(RequestTimeoutError):
    """A transaction's end that was not confirmed within max.block.ms, and may have been done or not. Make the same call
    again, to learn it."""


class ProducerFailedError(ClientError):
    """A transactional producer that is of no use any more; `__cause__` says why. Close it, and make a new one."""


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
    """An error code of a broker's: `code` is its number, `name` Kafka's name for it, `about` what it is about."""

    def __init__(self, code: int, message: str | None = None, *, about: str = "") -> None:
        self.code = int(code)  # type: ignore[misc]
        self.name = name_of(code)
        self.about = about
        self.subject = about if isinstance(about, Subject) else None
        self.is_retriable = is_retriable(code)
        self.broker_message = message
        is_named = bool(about) and (message or "").startswith(about)  # by the broker, who would say it twice
        problem = f"{about}: " if about and not is_named else ""
        problem += f"{self.name} (error {self.code})"
        if message:
            problem += f": {message.rstrip('.')}"
        super().__init__(
            problem, self._advice_for(message or "") or ("it may pass; try again" if self.is_retriable else "")
        )

    def _advice_for(self, message: str) -> str:  # noqa: ARG002 - some classes go by it
        """What to do next, given what the broker says."""
        return self.advice

    def __reduce__(self) -> tuple[object, ...]:
        return _error_again, (self.code, self.broker_message, self.about)


class UnknownTopicOrPartitionError(BrokerError, errors.UnknownTopicError):
    advice = "check the name, or create it: Admin.create_topics, `stratalog topic create`"


class LeaderUnknownError(BrokerError):
    advice = "the partition's leader is not known or has moved; try again once one is elected"


class TopicAuthorizationError(BrokerError):
    advice = "ask the cluster's administrator for access to the topic"


class GroupAuthorizationError(BrokerError):
    advice = "ask the cluster's administrator for access to the group"


class RecordTooLargeError(BrokerError, errors.MessageTooLargeError):
    """A record or batch past a limit. `size` is in bytes, if it is known. If the producer refused the record, so that
    no broker has seen it, `setting` names the producer's limit."""

    advice = "send less in a record, or raise the topic's max.message.bytes"

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
        return f"send less in a record, or raise the producer's {self.setting}"

    def __reduce__(self) -> tuple[object, ...]:
        return _too_large_again, (self.code, self.broker_message, self.about, self.size, self.setting)


class OffsetOutOfRangeError(BrokerError, errors.OffsetOutOfRangeError):
    advice = "seek to an offset that exists, or set auto.offset.reset"


class OutOfOrderSequenceError(BrokerError, errors.OutOfOrderSequenceError):
    advice = "records before it were lost; close this producer, and go on with a new one from what was acknowledged"


class ProducerFencedError(BrokerError):
    advice = (
        "a newer producer has taken this one's place, or its transaction was open for longer than "
        "transaction.timeout.ms; close it"
    )


class IllegalGenerationError(BrokerError):
    advice = "the group has rebalanced meanwhile; poll, to join it again"


class UnknownMemberError(BrokerError):
    advice = "the group has let this member go; poll more often, or raise session.timeout.ms or max.poll.interval.ms"


class RebalanceInProgressError(BrokerError):
    advice = "the group rebalances; poll, to take part"


class FencedInstanceIdError(BrokerError):
    advice = "another consumer uses the same group.instance.id; give each one its own"


class FencedMemberEpochError(BrokerError):
    advice = "the coordinator has let this member go; poll, to join the group again"


class CoordinatorError(BrokerError):
    advice = "the group's coordinator is moving or loading; try again"


class GroupNotFoundError(BrokerError, LookupError):
    advice = "check the name; `stratalog group list` has all groups"


class GroupNotEmptyError(BrokerError):
    advice = "stop the group's consumers first"


class TopicExistsError(BrokerError, errors.TopicExistsError):
    advice = "choose another name, or use the topic that exists"


class InvalidTopicError(BrokerError, errors.InvalidTopicError):
    advice = "a name has 1 to 249 letters, digits, dots, underscores and hyphens"

    def _advice_for(self, message: str) -> str:
        if not message:
            return self.advice
        return "choose another name" if "colli" in message else ""  # the others say what a name has, or name a topic


class InvalidPartitionsError(BrokerError, errors.InvalidPartitionsError):
    advice = "a topic can be given more partitions, never fewer"

    def _advice_for(self, message: str) -> str:
        return "" if message else self.advice  # there may be too many of them


class InvalidConfigError(BrokerError, errors.ConfigError):
    advice = ""


class PolicyViolationError(BrokerError):
    advice = "the cluster's policy forbids it"


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
"""The same request may succeed later, at this broker or another."""

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
"""What the client knows of the cluster is out of date."""


def error_of(code: int, message: str | None = None, *, about: str = "") -> BrokerError:
    """The exception for a code, to be raised. `about` is the topic, partition or group it is about."""
    return _CLASSES.get(int(code), BrokerError)(code, message, about=about)


def is_retriable(code: int) -> bool:
    return int(code) in RETRIABLE


def name_of(code: int) -> str:
    """Kafka's name of an error code; newer brokers may have some that are not known here."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return "UNKNOWN_ERROR_CODE"


def _error_again(code: int, message: str | None, about: str) -> BrokerError:
    """For pickle."""
    return error_of(code, message, about=about)


def _too_large_again(
    code: int, message: str | None, about: str, size: int | None, setting: str | None
) -> RecordTooLargeError:
    """Recreate the error from its pickle."""
    return RecordTooLargeError(code, message, about=about, size=size, setting=setting)
