"""A classic group: members join, the leader among them assigns the partitions, and each member gets its part.

    Empty               no members
      -> PreparingRebalance   members join, until all have joined or the time is up
      -> CompletingRebalance  members wait for the leader's assignment
      -> Stable               until a member joins, leaves or changes: then PreparingRebalance again

Pure. The time is passed in. Each request comes with a callback, which is called exactly once with the response, now or
later. State that must survive a restart goes to `store`, which raises StratalogError if it can't be written. `expire`
must be called at `wake_at_ms`. The rules and their order are Apache Kafka's.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Final

from stratalog.broker.groups.classic_members import ClassicMember, member_bytes, protocols_bytes, protocols_size
from stratalog.broker.groups.classic_messages import (
    DescribedGroup,
    DescribedMember,
    JoinCallback,
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    Now,
    SyncCallback,
    SyncRequest,
    SyncResponse,
)
from stratalog.broker.groups.classic_rebalance import (
    CheckRoom,
    ClassicGroupState,
    RebalancingGroup,
    Store,
    append_error,
    unlimited_room,
)
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.consumer_protocol import PROTOCOL_TYPE
from stratalog.broker.groups.group import GroupKind
from stratalog.errors import StateBudgetError, StratalogError
from stratalog.protocol.error_codes import ErrorCode

log = logging.getLogger(__name__)

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000  # as in Kafka: a new member sends no heartbeats before its first generation
MAX_PENDING_MEMBERS: Final = 1_000  # assigned ids that have not joined yet; at the limit, the oldest is dropped
MOST_BYTES_OF_PROTOCOLS: Final = 16 * 1024**2  # of all members; a record of the group has a small part of them
LONGEST_CLIENT_ID_IN_MEMBER_ID: Final = 255


def new_member_id(prefix: str) -> str:
    return f"{prefix[:LONGEST_CLIENT_ID_IN_MEMBER_ID]}-{uuid.uuid4()}"


class ClassicGroup(RebalancingGroup):
    """The requests of members, and what clients see of the group."""

    kind: GroupKind = "classic"

    def __init__(
        self,
        group_id: str,
        config: GroupConfig,
        store: Store,
        make_member_id: Callable[[str], str] = new_member_id,
        check_room: CheckRoom = unlimited_room,
    ) -> None:
        super().__init__(group_id, config, store, check_room)
        self._make_member_id = make_member_id

    # State
    @property
    def state_name(self) -> str:
        return str(self.state)

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicGroupState.EMPTY

    @property
    def has_pending_members(self) -> bool:
        return bool(self._pending)

    @property
    def leader(self) -> str | None:
        return self._members.leader

    @property
    def members(self) -> list[ClassicMember]:
        return list(self._members)

    @property
    def member_ids(self) -> list[str]:
        return [member.member_id for member in self._members]

    @property
    def pending_ids(self) -> list[str]:
        return list(self._pending)

    def subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic. If a subscription of a group of consumers can't be read, the
        group counts as subscribed to every topic."""
        return self._protocol_type == PROTOCOL_TYPE if self._topics is None else topic in self._topics

    def describe(self) -> DescribedGroup:
        protocol = self.protocol_name if self.state is ClassicGroupState.STABLE else None
        members = tuple(
            DescribedMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(protocol),
                member.assignment,
            )
            for member in self._members
        )
        return DescribedGroup(self.state_name, self.protocol_type, protocol or "", members)

    # Offsets

    def check_commit(
        self,
        member_id: str,
        generation_or_epoch: int,
        group_instance_id: str | None,
        api_version: int,  # noqa: ARG002
        *,
        in_transaction: bool = False,
    ) -> ErrorCode:
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if generation_or_epoch < 0 and self.state is ClassicGroupState.EMPTY:
            return ErrorCode.none  # an admin client, or a consumer that assigns its partitions itself
        if generation_or_epoch < 0 and not member_id and group_instance_id is None:
            # Older clients name no member when they commit in a transaction.
            return ErrorCode.none if in_transaction else ErrorCode.unknown_member_id
        error = self._members.check(member_id, group_instance_id)
        if error is not ErrorCode.none:
            return error
        if generation_or_epoch != self.generation:
            return ErrorCode.illegal_generation
        if self.state is ClassicGroupState.COMPLETING_REBALANCE and not in_transaction:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def committed(self, member_id: str, now: Now) -> None:
        """Restart the session of a member that has committed offsets."""
        member = self._members.get(member_id)
        if member is not None and self.state in (ClassicGroupState.STABLE, ClassicGroupState.PREPARING_REBALANCE):
            self._renew(member, now)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:  # noqa: ARG002
        return ErrorCode.group_id_not_found if self.state is ClassicGroupState.DEAD else ErrorCode.none

    def check_offset_delete(self) -> ErrorCode:
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.group_id_not_found
        if self.state is not ClassicGroupState.EMPTY and self._protocol_type != PROTOCOL_TYPE:
            return ErrorCode.non_empty_group
        return ErrorCode.none

    def offset_expires_since(self, commit_timestamp_ms: int) -> int | None:
        if self._protocol_type is None:
            return commit_timestamp_ms  # the group never had members
        if self.state is ClassicGroupState.EMPTY:
            return commit_timestamp_ms if self._state_since_ms is None else self._state_since_ms
        if self.state is ClassicGroupState.STABLE and self._topics is not None:
            return commit_timestamp_ms
        return None

    # Joining

    def join(self, request: JoinRequest, now: Now, respond: JoinCallback) -> None:
        """Add a member, or let one rejoin. `respond` is called once: now, or when the join phase ends."""
        if self.state is ClassicGroupState.DEAD:
            respond(JoinResponse(ErrorCode.coordinator_not_available, request.member_id))
        elif not self._has_room_for(request):
            self._pending.pop(request.member_id, None)
            if request.member_id in self._members:
                self._remove(request.member_id)
                self._after_removal(now)
            respond(JoinResponse(ErrorCode.group_max_size_reached, ""))
        elif not self._supports(request):
            respond(JoinResponse(ErrorCode.inconsistent_group_protocol, request.member_id))
        elif not request.member_id:
            self._join_new(request, now, respond)
        elif request.member_id in self._pending and request.group_instance_id is None:
            self._add(request.member_id, request, now, respond)
        else:
            error = self._members.check(request.member_id, request.group_instance_id)
            member = self._members.get(request.member_id)
            if error is not ErrorCode.none or member is None:
                respond(JoinResponse(error, request.member_id))
            else:
                self._rejoin(member, request, now, respond)

    def _has_room_for(self, request: JoinRequest) -> bool:
        most = self._config.group_max_size
        member = self._members.get(request.member_id or self._members.static_id(request.group_instance_id) or "")
        size = self._members.protocol_bytes + protocols_size(request.protocols)
        if size - (0 if member is None else protocols_size(member.protocols)) > MOST_BYTES_OF_PROTOCOLS:
            return False
        if not self._fits_the_budget(request, member):
            return False
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            # Counts only members that have joined, so that a group that is too large loses the last ones to rejoin.
            return (member is not None and member.join_callback is not None) or self._members.awaiting_join < most
        return self.state is ClassicGroupState.EMPTY or member is not None or len(self._members) < most

    def _fits_the_budget(self, request: JoinRequest, member: ClassicMember | None) -> bool:
        what = f"a member of group {self.group_id[:200]!r}"
        if member is not None:
            more = protocols_bytes(request.protocols) - protocols_bytes(member.protocols)
        else:
            # A member without an id will get one of this length.
            member_id = request.member_id or f"{request.client_id[:LONGEST_CLIENT_ID_IN_MEMBER_ID]}{'-' * 37}"
            more = member_bytes(member_id, request.group_instance_id, request.client_id, request.protocols)
        try:
            self._check_room(more, what, is_new=member is None)
        except StateBudgetError:
            return False
        return True

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is ClassicGroupState.EMPTY:
            return bool(request.protocol_type and request.protocols)
        return request.protocol_type == self._protocol_type and self._members.support(request.protocols)

    def _join_new(self, request: JoinRequest, now: Now, respond: JoinCallback) -> None:
        member_id = self._make_member_id(request.group_instance_id or request.client_id)
        if request.group_instance_id is not None:
            holder = self._members.static_id(request.group_instance_id)
            if holder is None:
                self._add(member_id, request, now, respond)
            else:
                self._replace(holder, member_id, request, now, respond)
        elif request.needs_known_member_id:
            while len(self._pending) >= MAX_PENDING_MEMBERS:
                del self._pending[next(iter(self._pending))]
            self._pending[member_id] = self._wake(now.monotonic_ms + request.session_timeout_ms)
            respond(JoinResponse(ErrorCode.member_id_required, member_id))
        else:
            self._add(member_id, request, now, respond)

    def _add(self, member_id: str, request: JoinRequest, now: Now, respond: JoinCallback) -> None:
        member = ClassicMember(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            is_new=True,
        )
        self._pending.pop(member_id, None)
        if not self._members:
            self._protocol_type = request.protocol_type
        self._members.add(member)
        self._members.await_join(member, respond)
        member.expires_at_ms = self._wake(now.monotonic_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._has_new_member = True
        self._rebalance(now)

    def _rejoin(self, member: ClassicMember, request: JoinRequest, now: Now, respond: JoinCallback) -> None:
        unchanged = member.has_protocols(request.protocols)
        is_leader = self._members.leader == member.member_id
        if self.state is ClassicGroupState.EMPTY:
            respond(JoinResponse(ErrorCode.unknown_member_id, member.member_id))
        elif unchanged and self.state is ClassicGroupState.COMPLETING_REBALANCE:
            respond(self._current_generation(member))  # a retry: the first response was lost
        elif unchanged and self.state is ClassicGroupState.STABLE and not is_leader:
            respond(self._current_generation(member))
        else:
            # The leader rejoins a stable group to assign again: it may know of new partitions.
            self._update(member, request)
            self._members.await_join(member, respond)
            self._rebalance(now)

    def _update(self, member: ClassicMember, request: JoinRequest) -> None:
        self._members.set_protocols(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self._members.set_client(member, request.client_id, request.client_host)

    def _replace(self, old_id: str, new_id: str, request: JoinRequest, now: Now, respond: JoinCallback) -> None:
        """Let a static member rejoin after a restart under a new id. It keeps its assignment. The old id is fenced."""
        member = self._members.get(old_id)
        assert member is not None
        old_leader = self._members.leader
        before = (member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms)
        before_client = (member.client_id, member.client_host)
        self._members.finish_join(member, JoinResponse(ErrorCode.fenced_instance_id, old_id))
        member.finish_sync(SyncResponse(ErrorCode.fenced_instance_id))
        self._rename(member, new_id)
        self._update(member, request)
        member.is_new = False
        self._renew(member, now)
        if self.state is not ClassicGroupState.STABLE or self._members.select_protocol() != self.protocol_name:
            self._members.await_join(member, respond)
            self._rebalance(now)
            return
        try:
            self._store_members({each.member_id: each.assignment for each in self._members})
        except StratalogError as error:
            log.warning("group %r: static member %r was not replaced: %s", self.group_id, old_id, error)
            self._rename(member, old_id)
            self._members.set_protocols(member, before[0])
            member.session_timeout_ms, member.rebalance_timeout_ms = before[1:]
            self._members.set_client(member, *before_client)
            respond(JoinResponse(append_error(error), ""))
            return
        self._set_topics()
        current = self._current_generation(member)
        if request.may_skip_assignment:
            respond(current._replace(skip_assignment=self._members.leader == new_id))
        else:
            # The other members do not rejoin, so an older client must not assign again: it gets the old id as leader.
            respond(current._replace(leader=old_leader or "", members=()))

    def _rename(self, member: ClassicMember, new_id: str) -> None:
        if member.member_id in self._yet_to_sync:
            self._yet_to_sync.remove(member.member_id)
            self._yet_to_sync.add(new_id)
        self._members.rename(member, new_id)

    # Assigning

    def sync(self, request: SyncRequest, now: Now, respond: SyncCallback) -> None:
        """Take the leader's assignment. `respond` is called once: now, or when the assignment is stored."""
        error = self._check_sync(request)
        member = self._members.get(request.member_id)
        if error is not ErrorCode.none or member is None:
            respond(SyncResponse(error))
            return
        self._yet_to_sync.discard(member.member_id)
        if not self._yet_to_sync:
            self._sync_until_ms = None
        if self.state is ClassicGroupState.STABLE:
            respond(self._assignment(member))
            return
        member.finish_sync(SyncResponse(ErrorCode.rebalance_in_progress))
        member.sync_callback = respond
        if self._members.leader == member.member_id:
            self._assign(request.assignments, now)

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = self._members.check(request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            return error
        if request.generation != self.generation:
            return ErrorCode.illegal_generation
        if request.protocol_type not in (None, self._protocol_type):
            return ErrorCode.inconsistent_group_protocol
        if request.protocol_name is not None and self.protocol_name not in (None, request.protocol_name):
            return ErrorCode.inconsistent_group_protocol
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    # Heartbeats and leaving

    def heartbeat(self, member_id: str, group_instance_id: str | None, generation: int, now: Now) -> ErrorCode:
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = self._members.check(member_id, group_instance_id)
        member = self._members.get(member_id)
        if error is not ErrorCode.none or member is None:
            return error
        if generation != self.generation:
            return ErrorCode.illegal_generation
        self._renew(member, now)
        return (
            ErrorCode.rebalance_in_progress if self.state is ClassicGroupState.PREPARING_REBALANCE else ErrorCode.none
        )

    def leave(self, identities: Sequence[MemberIdentity], now: Now) -> list[ErrorCode]:
        """Remove members, and return an error code for each. Admin clients name a static member by its instance id
        alone."""
        if self.state is ClassicGroupState.DEAD:
            return [ErrorCode.coordinator_not_available for _ in identities]
        errors = [self._leave(identity) for identity in identities]
        if ErrorCode.none in errors:
            self._after_removal(now)
        return errors

    def _leave(self, identity: MemberIdentity) -> ErrorCode:
        member_id = identity.member_id
        if not member_id:
            holder = self._members.static_id(identity.group_instance_id)
            if holder is None:
                return ErrorCode.unknown_member_id
            member_id = holder
        elif self._pending.pop(member_id, None) is not None:
            return ErrorCode.none
        error = self._members.check(member_id, identity.group_instance_id)
        if error is ErrorCode.none:
            self._remove(member_id)
        return error

    def abandon_join(self, callback: JoinCallback, now: Now) -> None:
        """Drop the JoinGroup of a client that disconnected. The member has its session timeout to rejoin. A member that
        was in no generation yet is removed; its client joins as a new member."""
        for member in self._members:
            if member.join_callback is callback:
                self._members.stop_awaiting_join(member)
                if member.is_new:
                    self._remove(member.member_id)
                    self._after_removal(now)
                else:
                    self._renew(member, now)
                return

    def abandon_sync(self, callback: SyncCallback, now: Now) -> None:
        for member in self._members:
            if member.sync_callback is callback:
                member.sync_callback = None
                self._renew(member, now)
