"""The requests of members of classic groups, independent of protocol versions.

Each request looks up the group by its id, calls it, and then calls `GroupCoordinator.refresh`. `ConsumerGroups` serves
the classic members of a KIP-848 group.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.broker.groups.classic_group import ClassicGroup
from stratalog.broker.groups.classic_messages import (
    JoinCallback,
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    SyncCallback,
    SyncRequest,
    SyncResponse,
)
from stratalog.broker.groups.classic_rebalance import append_error, group_bytes
from stratalog.broker.groups.consumer_coordinator import ConsumerGroups
from stratalog.broker.groups.consumer_group import ConsumerGroup
from stratalog.broker.groups.coordinator import GroupCoordinator
from stratalog.errors import StateBudgetError, StratalogError
from stratalog.protocol.error_codes import ErrorCode

MOST_PROTOCOLS = 100  # of one member; clients send one to five
LONGEST_NAME = 2**15 - 1  # bytes; the limit of a string in a record


class ClassicGroups:
    """`consumer_groups` serves classic members of KIP-848 groups. Without it, such groups refuse them."""

    def __init__(self, coordinator: GroupCoordinator, consumer_groups: ConsumerGroups | None = None) -> None:
        self._coordinator = coordinator
        self._config = coordinator.config
        self._consumer_groups = consumer_groups

    def _find(self, group_id: str) -> ClassicGroup | None:
        group = self._coordinator.group(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def _mixed(self, group_id: str) -> tuple[ConsumerGroups, ConsumerGroup] | None:
        """Return a KIP-848 group that has members, and the object that serves it. Return None for other groups."""
        group = self._coordinator.group(group_id)
        if self._consumer_groups is not None and isinstance(group, ConsumerGroup) and not group.is_empty:
            return self._consumer_groups, group
        return None

    def join(self, group_id: str, request: JoinRequest, respond: JoinCallback) -> None:
        """Let a member join a group for which `prepare` returned no error. `respond` is called once: now, or when the
        join phase ends."""
        error = self._check(request)
        group = None
        mixed = self._mixed(group_id)
        if error is ErrorCode.none and mixed is not None:
            respond(mixed[0].classic_join(mixed[1], request))
            return
        if error is ErrorCode.none:
            group, error = self._group_to_join(group_id, request.member_id)
        if group is None:
            respond(JoinResponse(error, request.member_id))
            return
        group.join(request, self._coordinator.now(), respond)
        self._coordinator.refresh(group)

    def _check(self, request: JoinRequest) -> ErrorCode:
        config = self._config
        if not (
            config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms
        ):
            return ErrorCode.invalid_session_timeout
        if len(request.protocols) > MOST_PROTOCOLS:
            return ErrorCode.invalid_request
        names = (request.member_id, request.group_instance_id or "", request.protocol_type, *request.protocols)
        if any(len(name.encode()) > LONGEST_NAME for name in names):
            return ErrorCode.invalid_request
        return ErrorCode.none

    def _group_to_join(self, group_id: str, member_id: str) -> tuple[ClassicGroup | None, ErrorCode]:
        group = self._coordinator.group(group_id)
        if isinstance(group, ClassicGroup):
            return group, ErrorCode.none
        if group is not None and not group.is_empty:
            return None, ErrorCode.inconsistent_group_protocol  # KIP-848 members are in it
        if member_id:
            return None, ErrorCode.unknown_member_id
        try:
            self._coordinator.check_room(group_bytes(group_id), f"group {group_id[:200]!r}", is_new=True)
            if group is not None:
                self._coordinator.append(group_id, group.tombstones())
        except StateBudgetError:
            return None, ErrorCode.group_max_size_reached  # clients fail with this error, and would retry on others
        except StratalogError as error:
            return None, append_error(error)
        return self._coordinator.new_classic_group(group_id), ErrorCode.none

    def abandon_join(self, group_id: str, callback: JoinCallback) -> None:
        """Drop the JoinGroup of a client that disconnected while it waited."""
        group = self._find(group_id)
        if group is not None:
            group.abandon_join(callback, self._coordinator.now())
            self._coordinator.refresh(group)

    def sync(self, group_id: str, request: SyncRequest, respond: SyncCallback) -> None:
        mixed = self._mixed(group_id)
        if mixed is not None:
            respond(mixed[0].classic_sync(mixed[1], request))
            return
        group = self._find(group_id)
        if group is None:
            respond(SyncResponse(ErrorCode.unknown_member_id))
            return
        group.sync(request, self._coordinator.now(), respond)
        self._coordinator.refresh(group)

    def abandon_sync(self, group_id: str, callback: SyncCallback) -> None:
        group = self._find(group_id)
        if group is not None:
            group.abandon_sync(callback, self._coordinator.now())
            self._coordinator.refresh(group)

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        mixed = self._mixed(group_id)
        if mixed is not None:
            return mixed[0].classic_heartbeat(mixed[1], member_id, group_instance_id, generation)
        group = self._find(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        error = group.heartbeat(member_id, group_instance_id, generation, self._coordinator.now())
        self._coordinator.refresh(group)
        return error

    def leave(self, group_id: str, identities: Sequence[MemberIdentity]) -> list[ErrorCode]:
        mixed = self._mixed(group_id)
        if mixed is not None:
            return mixed[0].classic_leave(mixed[1], identities)
        group = self._find(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id for _ in identities]
        errors = group.leave(identities, self._coordinator.now())
        self._coordinator.refresh(group)
        return errors
