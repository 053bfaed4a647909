"""Classic consumer groups: requests of their members, and administration of groups.

| key | API | versions | notes |
|---|---|---|---|
| 11 | JoinGroup | 0-9 | waits for the rebalance; a new member gets its member id first from 4, static members from 5 |
| 12 | Heartbeat | 0-4 | |
| 13 | LeaveGroup | 0-5 | several members from 3 |
| 14 | SyncGroup | 0-5 | waits for the leader's assignment |
| 15 | DescribeGroups | 0-6 | an unknown group is Dead; from 6 it gets GROUP_ID_NOT_FOUND |
| 16 | ListGroups | 0-5 | filters by state from 4, by kind from 5 |
| 42 | DeleteGroups | 0-2 | groups of every kind, with their committed offsets |

A group with KIP-848 members also accepts classic members while it is being upgraded or downgraded. Their requests do
not wait, because the broker assigns the partitions. Known gap: there is no authorizer, so responses say that every
operation is allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from stratalog.broker.groups.classic_group import ClassicGroup
from stratalog.broker.groups.classic_messages import (
    DescribedGroup,
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    SyncRequest,
    SyncResponse,
)
from stratalog.broker.groups.classic_service import ClassicGroups
from stratalog.broker.groups.consumer_coordinator import ConsumerGroups
from stratalog.broker.groups.coordinator import GroupCoordinator
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.errors import MalformedRequestError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import to_ms

ALL_GROUP_OPERATIONS = sum(
    1 << code for code in (3, 6, 8, 10, 11)
)  # read, delete, describe, describe and alter configs
_NOT_ASKED = -(2**31)
_UNNAMED = "member"  # the beginning of the member id of a client without a client id

_FIRST_JOIN_WITH_REQUIRED_MEMBER_ID = 4
_FIRST_JOIN_WITH_NULL_PROTOCOL = 7
_FIRST_JOIN_WITH_SKIPPED_ASSIGNMENT = 9
_SECONDS_BEFORE_STORAGE_ERROR = 0.5
_FIRST_SYNC_WITH_PROTOCOL = 5
_FIRST_LEAVE_OF_SEVERAL = 3
_FIRST_DESCRIBE_WITH_NOT_FOUND = 6

MOST_GROUPS = 10_000  # in one request, because the response is many times larger than the request

T = TypeVar("T")


def distinct(items: Iterable[T], most: int, what: str) -> list[T]:
    """Return each item of a request once: a response must not repeat its entries, however often the request does."""
    once = list(dict.fromkeys(items))
    if len(once) > most:
        raise MalformedRequestError(f"{what} has {len(once)} entries; it must have at most {most}")
    return once


class GroupApis:
    def __init__(self, coordinator: GroupCoordinator, consumer_groups: ConsumerGroups | None = None) -> None:
        """`consumer_groups` serves members of KIP-848 groups that use the classic protocol."""
        self._coordinator = coordinator
        self._groups = ClassicGroups(coordinator, consumer_groups)

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.JOIN_GROUP: self.join_group,
            ApiKey.SYNC_GROUP: self.sync_group,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leave_group,
            ApiKey.DESCRIBE_GROUPS: self.describe_groups,
            ApiKey.LIST_GROUPS: self.list_groups,
            ApiKey.DELETE_GROUPS: self.delete_groups,
        }

    # Requests of members

    async def join_group(self, request: Any, context: RequestContext) -> Reply:
        error = await self._coordinator.prepare(request.group_id)
        if error is not ErrorCode.none:
            return _joined(JoinResponse(error, request.member_id), context.api_version)
        waiting = _Answer[JoinResponse]()
        try:
            self._groups.join(request.group_id, _join_request(request, context), waiting)
            return _joined(await waiting.future, context.api_version)
        except asyncio.CancelledError:
            self._groups.abandon_join(request.group_id, waiting)
            raise

    async def sync_group(self, request: Any, context: RequestContext) -> Reply:
        sync = _sync_request(request)
        error = self._coordinator.status(request.group_id)
        if context.api_version >= _FIRST_SYNC_WITH_PROTOCOL and None in (sync.protocol_type, sync.protocol_name):
            error = ErrorCode.inconsistent_group_protocol  # the fields are nullable, but required
        if error is not ErrorCode.none:
            return _synced(SyncResponse(error))
        waiting = _Answer[SyncResponse]()
        try:
            self._groups.sync(request.group_id, sync, waiting)
            answer = await waiting.future
            if answer.error is ErrorCode.not_coordinator:
                # The assignment could not be stored, and the member retries as soon as it has the response.
                await asyncio.sleep(_SECONDS_BEFORE_STORAGE_ERROR)
            return _synced(answer)
        except asyncio.CancelledError:
            self._groups.abandon_sync(request.group_id, waiting)
            raise

    def heartbeat(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002
        error = self._coordinator.status(request.group_id)
        if error is ErrorCode.none:
            instance_id = getattr(request, "group_instance_id", None)
            error = self._groups.heartbeat(request.group_id, request.member_id, instance_id, request.generation_id)
        return {"error_code": error}

    def leave_group(self, request: Any, context: RequestContext) -> Reply:
        error = self._coordinator.status(request.group_id)
        if error is not ErrorCode.none:
            return {"error_code": error, "members": []}
        if context.api_version < _FIRST_LEAVE_OF_SEVERAL:
            return {"error_code": self._groups.leave(request.group_id, [MemberIdentity(request.member_id)])[0]}
        identities = [MemberIdentity(member.member_id, member.group_instance_id) for member in request.members]
        errors = self._groups.leave(request.group_id, identities)
        return {
            "error_code": ErrorCode.none,
            "members": [
                {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "error_code": error}
                for member, error in zip(identities, errors, strict=True)
            ],
        }

    # Administration

    def describe_groups(self, request: Any, context: RequestContext) -> Reply:
        operations = ALL_GROUP_OPERATIONS if getattr(request, "include_authorized_operations", False) else _NOT_ASKED
        return {
            "groups": [
                {**self._describe(group_id, context.api_version), "authorized_operations": operations}
                for group_id in distinct(request.groups, MOST_GROUPS, "DescribeGroups")
            ]
        }

    def _describe(self, group_id: str, version: int) -> Reply:
        error = self._coordinator.status(group_id, may_be_empty=True)
        if error is not ErrorCode.none:
            return _described(group_id, DescribedGroup("", "", "", ()), error)
        group = self._coordinator.group(group_id)
        if isinstance(group, ClassicGroup):
            return _described(group_id, group.describe())
        dead = DescribedGroup("Dead", "", "", ())
        if version < _FIRST_DESCRIBE_WITH_NOT_FOUND:
            return _described(group_id, dead)
        message = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
        return _described(group_id, dead, ErrorCode.group_id_not_found, message)

    def list_groups(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002
        if self._coordinator.is_loading:
            return {"error_code": ErrorCode.coordinator_load_in_progress, "groups": []}
        states = {state.lower() for state in getattr(request, "states_filter", ())}  # empty: all
        kinds = {kind.lower() for kind in getattr(request, "types_filter", ())}
        return {
            "error_code": ErrorCode.none,
            "groups": [
                {
                    "group_id": group.group_id,
                    "protocol_type": group.protocol_type,
                    "group_state": group.state_name,
                    "group_type": group.kind,
                }
                for group in self._coordinator.groups()
                if (not states or group.state_name.lower() in states) and (not kinds or group.kind in kinds)
            ],
        }

    def delete_groups(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002
        results = []
        for group_id in distinct(request.groups_names, MOST_GROUPS, "DeleteGroups"):
            error = self._coordinator.status(group_id, may_be_empty=True)
            if error is ErrorCode.none:
                error = self._coordinator.delete(group_id)
            results.append({"group_id": group_id, "error_code": error})
        return {"results": results}


class _Answer(Generic[T]):
    """A callback that sets a future. The future is cancelled if the client has disconnected."""

    def __init__(self) -> None:
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def __call__(self, answer: T) -> None:
        if not self.future.done():
            self.future.set_result(answer)


def _join_request(request: Any, context: RequestContext) -> JoinRequest:
    session_timeout = to_ms(request.session_timeout)
    rebalance_timeout = to_ms(request.rebalance_timeout) if hasattr(request, "rebalance_timeout") else session_timeout
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    return JoinRequest(
        request.member_id,
        getattr(request, "group_instance_id", None),
        context.client_id or _UNNAMED,
        f"/{context.client_host}",  # as Java formats an address, and as tools show it
        session_timeout,
        max(rebalance_timeout, 0),
        request.protocol_type,
        protocols,
        context.api_version >= _FIRST_JOIN_WITH_REQUIRED_MEMBER_ID,
        context.api_version >= _FIRST_JOIN_WITH_SKIPPED_ASSIGNMENT,
    )


def _joined(answer: JoinResponse, version: int) -> Reply:
    no_protocol = None if version >= _FIRST_JOIN_WITH_NULL_PROTOCOL else ""
    return {
        "error_code": answer.error,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": no_protocol if answer.protocol_name is None else answer.protocol_name,
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "metadata": member.metadata}
            for member in answer.members
        ],
    }


def _sync_request(request: Any) -> SyncRequest:
    return SyncRequest(
        request.member_id,
        getattr(request, "group_instance_id", None),
        request.generation_id,
        getattr(request, "protocol_type", None),
        getattr(request, "protocol_name", None),
        {assignment.member_id: assignment.assignment for assignment in request.assignments},
    )


def _synced(answer: SyncResponse) -> Reply:
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }


def _described(
    group_id: str, group: DescribedGroup, error: ErrorCode = ErrorCode.none, message: str | None = None
) -> Reply:
    return {
        "error_code": error,
        "error_message": message,
        "group_id": group_id,
        "group_state": group.state_name,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }
