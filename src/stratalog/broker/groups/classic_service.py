"""What members of classic groups may request, whatever the version of the request.

A group is found by its id, called, and settled. A classic member of a KIP-848 group is served by `ConsumerGroups`.
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

MOST_PROTOCOLS = 100  # that a member may know; clients name one to five
LONGEST_NAME = 2**15 - 1  # bytes; what a string of a record holds


class ClassicGroups:
    """`consumer_groups` serves classic members of KIP-848 groups; without it those groups refuse them."""

    def __init__(self, coordinator: GroupCoordinator, consumer_groups: ConsumerGroups | None = None) -> None:
        self._coordinator = coordinator
        self._config = coordinator.config
        self._consumer_groups = consumer_groups

    def _find(self, group_id: str) -> ClassicGroup | None:
        group = self._coordinator.group(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def _mixed(self, group_id: str) -> tuple[ConsumerGroups, ConsumerGroup] | None:
        """Return a KIP-848 group that has members, and who serves it; None for any other group."""
        group = self._coordinator.group(group_id)
        if self._consumer_groups is not None and isinstance(group, ConsumerGroup) and not group.is_empty:
            return self._consumer_groups, group
        return None

    def join(self, group_id: str, request: JoinRequest, answer: JoinCallback) -> None:
        """Let a member join a group for which `prepare` returned no error. `answer` is called once: now, or when the
        rebalance is over."""
        error = self._check(request)
        group = None
        mixed = self._mixed(group_id)
        if error is ErrorCode.none and mixed is not None:
            answer(mixed[0].classic_join(mixed[1], request))
            return
        if error is ErrorCode.none:
            group, error = self._group_to_join(group_id, request.member_id)
        if group is None:
            answer(JoinResponse(error, request.member_id))
            return
        group.join(request, self._coordinator.now(), answer)
        self._coordinator.settle(group)

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
            return None, ErrorCode.group_max_size_reached  # clients fail with it; they would ask again after others
        except StratalogError as error:
            return None, append_error(error)
        return self._coordinator.new_classic_group(group_id), ErrorCode.none

    def abandon_join(self, group_id: str, answer: JoinCallback) -> None:
        """Forget a member that disconnected while it waited."""
        group = self._find(group_id)
        if group is not None:
            group.abandon_join(answer, self._coordinator.now())
            self._coordinator.settle(group)

    def sync(self, group_id: str, request: SyncRequest, answer: SyncCallback) -> None:
        mixed = self._mixed(group_id)
        if mixed is not None:
            answer(mixed[0].classic_sync(mixed[1], request))
            return
        group = self._find(group_id)
        if group is None:
            answer(SyncResponse(ErrorCode.unknown_member_id))
            return
        group.sync(request, self._coordinator.now(), answer)
        self._coordinator.settle(group)

    def abandon_sync(self, group_id: str, answer: SyncCallback) -> None:
        group = self._find(group_id)
        if group is not None:
            group.abandon_sync(answer, self._coordinator.now())
            self._coordinator.settle(group)

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        mixed = self._mixed(group_id)
        if mixed is not None:
            return mixed[0].classic_heartbeat(mixed[1], member_id, group_instance_id, generation)
        group = self._find(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        error = group.heartbeat(member_id, group_instance_id, generation, self._coordinator.now())
        self._coordinator.settle(group)
        return error

    def leave(self, group_id: str, identities: Sequence[MemberIdentity]) -> list[ErrorCode]:
        mixed = self._mixed(group_id)
        if mixed is not None:
            return mixed[0].classic_leave(mixed[1], identities)
        group = self._find(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id for _ in identities]
        errors = group.leave(identities, self._coordinator.now())
        self._coordinator.settle(group)
        return errors
