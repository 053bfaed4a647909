"""Requests to classic groups and their responses, independent of protocol versions. Plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from stratalog.protocol.error_codes import ErrorCode


class Now(NamedTuple):
    """The current time. Wall time is stored in records, deadlines use monotonic time."""

    wall_ms: int
    monotonic_ms: int


class JoinRequest(NamedTuple):
    member_id: str  # "": a new member, to which the broker assigns an id
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Mapping[str, bytes]  # in the order of the member's preference
    needs_known_member_id: bool = False  # from version 4: a new member gets its id, and joins again with it
    may_skip_assignment: bool = False  # from version 9


class JoinedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResponse(NamedTuple):
    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()  # for the leader only


class SyncRequest(NamedTuple):
    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None  # None before version 5
    protocol_name: str | None
    assignments: Mapping[str, bytes]  # from the leader only


class SyncResponse(NamedTuple):
    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class MemberIdentity(NamedTuple):
    member_id: str
    group_instance_id: str | None = None


JoinCallback = Callable[[JoinResponse], None]
SyncCallback = Callable[[SyncResponse], None]


class DescribedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    state_name: str
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]
