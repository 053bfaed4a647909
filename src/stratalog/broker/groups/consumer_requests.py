"""Heartbeat requests and responses of KIP-848 members, and the checks that do not depend on the group. Pure.

The rules, their order and their messages are Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.broker.groups.consumer_member import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from stratalog.broker.groups.consumer_records import Assignment
from stratalog.protocol.error_codes import ErrorCode

_LONGEST_ID = 2**15 - 1  # bytes; the limit of the key of a record
_FIRST_VERSION_WITH_MEMBER_IDS_BY_CLIENTS = 1


class GroupRefusedError(Exception):
    """A request that gets an error and changes nothing."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A ConsumerGroupHeartbeat request. None, or -1 for the timeout, means that the value has not changed."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """True if the request has all fields, as the first request has, and the first one after an error."""
        subscribes = self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None
        return self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    member_id: str
    member_epoch: int
    assignment: Assignment | None = None  # None: not changed


def check_request(request: Heartbeat, api_version: int, assignors: tuple[str, ...]) -> None:
    """Raise GroupRefusedError for a request that is not valid for any group."""
    client_makes_id = api_version >= _FIRST_VERSION_WITH_MEMBER_IDS_BY_CLIENTS
    if client_makes_id or request.member_epoch > 0 or request.member_epoch == LEAVE_EPOCH:
        _refuse_blank("MemberId", request.member_id)
    _refuse_blank("GroupId", request.group_id)
    _refuse_blank("InstanceId", request.instance_id)
    _refuse_blank("RackId", request.rack_id)
    if request.member_epoch == JOIN_EPOCH:
        _check_joining(request)
    elif request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif request.member_epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.rebalance_timeout_ms < -1:
        raise _invalid(f"RebalanceTimeoutMs is {request.rebalance_timeout_ms}; it must not be negative.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise GroupRefusedError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _check_joining(request: Heartbeat) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def _refuse_blank(name: str, value: str | None) -> None:
    if value is None:
        return
    if not value.strip():
        raise _invalid(f"{name} can't be empty.")
    if len(value.encode()) > _LONGEST_ID:
        raise _invalid(f"{name} has {len(value.encode())} bytes; {_LONGEST_ID} are allowed.")


def _invalid(message: str) -> GroupRefusedError:
    return GroupRefusedError(ErrorCode.invalid_request, message)
