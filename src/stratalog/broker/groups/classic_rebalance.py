"""The rebalance of a classic group: the steps from one generation to the next, their deadlines, and the stored state.

    1. PreparingRebalance   Members join. It ends when all members have joined, or at the deadline. The first rebalance
                            of an empty group waits for further members: group.initial.rebalance.delay.ms.
    2. CompletingRebalance  The leader assigns, the others wait with SyncGroup. Members that do not sync in time leave.
    3. Stable               The assignment is stored, and every member has its part.

`classic_group.py` adds the requests of members. Pure, like that module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from stratalog.broker.groups.classic_members import ClassicMember, ClassicMembers
from stratalog.broker.groups.classic_messages import JoinResponse, Now, SyncResponse
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.consumer_protocol import MOST_TOPICS, PROTOCOL_TYPE, subscribed_topics
from stratalog.broker.groups.group import GroupRecord
from stratalog.broker.groups.offset_records import StoredGroup, group_record, group_tombstone
from stratalog.broker.state_budget import OBJECT_BYTES, text_bytes
from stratalog.errors import GroupRecordError, StratalogError
from stratalog.protocol.error_codes import ErrorCode

log = logging.getLogger(__name__)

_SHORTEST_WAIT_FOR_STATIC_MEMBERS_MS = 1_000  # a client's rebalance timeout may be 0
_GROUP_BYTES = 2_000  # for a group without members
_PENDING_BYTES = 1_500  # for an assigned id; the client id in it is truncated, so it is never longer

Store = Callable[[Sequence[GroupRecord]], None]


class CheckRoom(Protocol):
    """Raises StateBudgetError if the budget has no room for so many more bytes."""

    def __call__(self, more: int, what: str, *, is_new: bool) -> None: ...


def unlimited_room(more: int, what: str, *, is_new: bool) -> None:
    """Accept any number of bytes. This is a CheckRoom."""


def group_bytes(group_id: str) -> int:
    """Return the memory that a group takes before it has members."""
    return _GROUP_BYTES + 4 * text_bytes(group_id)


class ClassicGroupState(StrEnum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


def append_error(error: StratalogError) -> ErrorCode:
    """Return Kafka's error for a group whose records could not be written."""
    match error.code:
        case ErrorCode.kafka_storage_error | ErrorCode.not_leader_or_follower:
            return ErrorCode.not_coordinator
        case ErrorCode.message_too_large | ErrorCode.record_list_too_large:
            return ErrorCode.unknown_server_error
        case _:
            return ErrorCode.coordinator_not_available


class RebalancingGroup:
    """The part of a classic group that rebalances. `expire` must be called at `wake_at_ms`."""

    def __init__(
        self, group_id: str, config: GroupConfig, store: Store, check_room: CheckRoom = unlimited_room
    ) -> None:
        self.group_id = group_id
        self.state = ClassicGroupState.EMPTY
        self.generation = 0
        self.protocol_name: str | None = None
        self.is_stored = False  # True if the log has a record of it
        self.wake_at_ms: int | None = None
        self._config = config
        self._store = store
        self._check_room = check_room
        self._protocol_type: str | None = None
        self._state_since_ms: int | None = None
        self._members = ClassicMembers()
        self._pending: dict[str, int] = {}  # ids that were assigned and have not joined yet -> their deadlines
        self._yet_to_sync: set[str] = set()
        self._topics: set[str] | None = None  # None: unknown
        self._topics_bytes = 0
        self._join_until_ms: int | None = None
        self._in_initial_delay = False
        self._initial_delay_ms = 0  # the length of its current part
        self._initial_left_ms = 0  # how much longer it may still become
        self._has_new_member = False  # since the current part began
        self._sync_until_ms: int | None = None
        self._must_rebalance = False  # when sessions start; see group_migration.py

    @property
    def protocol_type(self) -> str:
        return self._protocol_type or ""

    @property
    def state_bytes(self) -> int:
        own = group_bytes(self.group_id) + len(self._pending) * _PENDING_BYTES
        return own + self._members.state_bytes + self._topics_bytes

    # Rebalancing

    def _rebalance(self, now: Now) -> None:
        """Begin a rebalance, or end the join phase of the current one if no further member is awaited."""
        if self.state is not ClassicGroupState.PREPARING_REBALANCE:
            self._prepare(now)
        elif self._all_joined and not self._in_initial_delay:
            self._complete_join(now)

    @property
    def _all_joined(self) -> bool:
        return self._members.awaiting_join == len(self._members) and not self._pending

    def _prepare(self, now: Now) -> None:
        if self.state is ClassicGroupState.COMPLETING_REBALANCE:
            self._reset_assignments(ErrorCode.rebalance_in_progress, now)
        self._yet_to_sync.clear()
        self._sync_until_ms = None
        was_empty = self.state is ClassicGroupState.EMPTY
        self._enter(ClassicGroupState.PREPARING_REBALANCE, now)
        longest = self._members.longest_rebalance_timeout_ms()
        if was_empty:
            # Members often start at the same time: a short wait saves one rebalance for each of them.
            self._in_initial_delay, self._has_new_member = True, False
            self._initial_delay_ms = self._config.group_initial_rebalance_delay_ms
            self._initial_left_ms = max(longest - self._initial_delay_ms, 0)
            self._join_until_ms = self._wake(now.monotonic_ms + self._initial_delay_ms)
        elif self._all_joined:
            self._complete_join(now)
        else:
            self._join_until_ms = self._wake(now.monotonic_ms + longest)

    def _join_time_is_up(self, now: Now) -> None:
        if self._in_initial_delay and self._has_new_member and self._initial_left_ms:
            self._has_new_member = False
            delay = min(self._config.group_initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms = max(self._initial_left_ms - self._initial_delay_ms, 0)
            self._initial_delay_ms = delay
            self._join_until_ms = self._wake(now.monotonic_ms + delay)
        else:
            self._complete_join(now)

    def _complete_join(self, now: Now) -> None:
        self._join_until_ms = None
        self._in_initial_delay = False
        for member in self._members:
            if member.join_callback is None and member.group_instance_id is None:
                self._members.remove(member.member_id)
        if self._members and not self._members.elect_joined_leader():
            # Only static members are left, and none has joined. They stay until their sessions expire.
            wait = max(self._members.longest_rebalance_timeout_ms(), _SHORTEST_WAIT_FOR_STATIC_MEMBERS_MS)
            self._join_until_ms = self._wake(now.monotonic_ms + wait)
            return
        if not self._members and not self.generation:
            self._enter(ClassicGroupState.EMPTY, now)  # all members left before the first generation
            return
        self.generation += 1
        self.protocol_name = self._members.select_protocol() if self._members else None
        self._set_topics()
        self._yet_to_sync.clear()
        if self._members:
            self._begin_generation(now)
        else:
            self._become_empty(now)

    def _begin_generation(self, now: Now) -> None:
        self._enter(ClassicGroupState.COMPLETING_REBALANCE, now)
        for member in self._members:
            self._members.finish_join(member, self._current_generation(member))
            member.is_new = False
            self._renew(member, now)
            self._yet_to_sync.add(member.member_id)
        self._sync_until_ms = self._wake(now.monotonic_ms + self._members.longest_rebalance_timeout_ms())

    def _become_empty(self, now: Now) -> None:
        self._enter(ClassicGroupState.EMPTY, now)
        try:
            self._store_members({})
        except StratalogError as error:
            # No client waits for this: after a restart the last generation's members are back, and expire again.
            log.warning("group %r: the empty group could not be stored: %s", self.group_id, error)

    def _enter(self, state: ClassicGroupState, now: Now) -> None:
        self.state, self._state_since_ms = state, now.wall_ms

    def _set_topics(self) -> None:
        self._topics = self._read_topics()
        self._topics_bytes = sum(OBJECT_BYTES + text_bytes(topic) for topic in self._topics or ())

    def _read_topics(self) -> set[str] | None:
        if self._protocol_type != PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        try:
            for member in self._members:
                topics |= subscribed_topics(member.metadata(self.protocol_name))
                if len(topics) > MOST_TOPICS:
                    raise GroupRecordError(f"members name more than {MOST_TOPICS} topics")
        except GroupRecordError as error:
            log.warning("group %r: the topics of its members are unknown: %s", self.group_id, error)
            return None
        return topics

    def _current_generation(self, member: ClassicMember) -> JoinResponse:
        is_leader = self._members.leader == member.member_id
        return JoinResponse(
            ErrorCode.none,
            member.member_id,
            self.generation,
            self._protocol_type,
            self.protocol_name,
            self._members.leader or "",
            members=tuple(each.joined(self.protocol_name) for each in self._members) if is_leader else (),
        )

    # Assigning

    def _assign(self, assignments: Mapping[str, bytes], now: Now) -> None:
        shares = {member.member_id: assignments.get(member.member_id, b"") for member in self._members}
        try:
            more = sum(map(len, shares.values())) - sum(len(member.assignment) for member in self._members)
            self._check_room(more, f"the assignment of group {self.group_id[:200]!r}", is_new=False)
            self._store_members(shares)
        except StratalogError as error:
            log.warning("group %r: the assignment could not be stored: %s", self.group_id, error)
            self._reset_assignments(append_error(error), now)
            self._prepare(now)
            return
        self._enter(ClassicGroupState.STABLE, now)
        for member in self._members:
            self._members.set_assignment(member, shares[member.member_id])
            if member.sync_callback is not None:
                member.finish_sync(self._assignment(member))
                self._renew(member, now)

    def _assignment(self, member: ClassicMember) -> SyncResponse:
        return SyncResponse(ErrorCode.none, member.assignment, self._protocol_type, self.protocol_name)

    def _reset_assignments(self, error: ErrorCode, now: Now) -> None:
        for member in self._members:
            self._members.set_assignment(member, b"")
            if member.sync_callback is not None:
                member.finish_sync(SyncResponse(error))
                self._renew(member, now)

    # Leaving

    def _remove(self, member_id: str) -> None:
        member = self._members.remove(member_id)
        if member is not None:
            # Its client, if it is still connected, joins as a new member.
            member.fail(ErrorCode.unknown_member_id, "", ErrorCode.unknown_member_id)

    def _after_removal(self, now: Now) -> None:
        if self.state is not ClassicGroupState.EMPTY:
            self._rebalance(now)

    # Time

    def _renew(self, member: ClassicMember, now: Now) -> None:
        member.expires_at_ms = self._wake(now.monotonic_ms + member.session_timeout_ms)

    def _wake(self, at_ms: int) -> int:
        if self.wake_at_ms is None or at_ms < self.wake_at_ms:
            self.wake_at_ms = at_ms
        return at_ms

    def expire(self, now: Now) -> None:
        """Handle the deadlines that have passed, and set `wake_at_ms` to the next one."""
        at = now.monotonic_ms
        self._expire_pending(now)
        for member in self._members:
            if member.expires_at_ms is not None and member.expires_at_ms <= at:
                self._session_is_over(member, now)
        if self._sync_until_ms is not None and self._sync_until_ms <= at:
            self._sync_time_is_up(now)
        if self._join_until_ms is not None and self._join_until_ms <= at:
            self._join_time_is_up(now)
        deadlines = [*self._pending.values(), self._join_until_ms, self._sync_until_ms]
        deadlines += [member.expires_at_ms for member in self._members]
        self.wake_at_ms = min((deadline for deadline in deadlines if deadline is not None), default=None)

    def _expire_pending(self, now: Now) -> None:
        lapsed = [member_id for member_id, until in self._pending.items() if until <= now.monotonic_ms]
        for member_id in lapsed:
            del self._pending[member_id]
        if lapsed and self.state is ClassicGroupState.PREPARING_REBALANCE:
            self._rebalance(now)

    def _session_is_over(self, member: ClassicMember, now: Now) -> None:
        if member.is_waiting and not member.is_new:
            member.expires_at_ms = None  # it waits for a response; its session restarts with that
        elif member.member_id in self._members:
            log.info("group %r: member %r is removed: its session expired", self.group_id, member.member_id)
            self._remove(member.member_id)
            self._after_removal(now)

    def _sync_time_is_up(self, now: Now) -> None:
        self._sync_until_ms = None
        for member_id in list(self._yet_to_sync):
            log.info("group %r: member %r is removed: it did not sync in time", self.group_id, member_id)
            self._remove(member_id)
        self._after_removal(now)

    # Storing and loading

    def _store_members(self, assignments: Mapping[str, bytes]) -> None:
        self._store([group_record(self.group_id, self._stored(assignments))])
        self.is_stored = True

    def _stored(self, assignments: Mapping[str, bytes]) -> StoredGroup:
        members = tuple(each.stored(self.protocol_name, assignments[each.member_id]) for each in self._members)
        return StoredGroup(
            self.protocol_type,
            self.generation,
            self.protocol_name,
            self._members.leader,
            self._state_since_ms,
            members,
        )

    def restore(self, stored: StoredGroup, protocols: Mapping[str, Mapping[str, bytes]] | None = None) -> None:
        """Take over the state from the log. Sessions start with `start_sessions`, when everything is loaded.

        `protocols` has all protocols of each member, by member id. The log has only the protocol that the group uses.
        """
        self.is_stored = True
        self.generation = stored.generation
        self._protocol_type = stored.protocol_type or None
        self.protocol_name = stored.protocol_name
        self._state_since_ms = stored.state_timestamp_ms
        self._members = ClassicMembers()
        for member in stored.members:
            restored = ClassicMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
                (protocols or {}).get(member.member_id) or {stored.protocol_name or "": member.subscription},
                member.assignment,
            )
            self._members.add(restored)
        self._must_rebalance = bool(stored.members) and stored.leader is None
        if stored.leader is not None and stored.leader in self._members:
            self._members.leader = stored.leader
        self.state = ClassicGroupState.STABLE if self._members else ClassicGroupState.EMPTY
        self._set_topics()

    def start_sessions(self, now: Now) -> None:
        """Start the session of every member: after a restart it has a whole session timeout to send a request."""
        for member in self._members:
            self._renew(member, now)
        if self._must_rebalance or len(self._members) > self._config.group_max_size:
            self._must_rebalance = False
            self._rebalance(now)

    def tombstones(self) -> list[GroupRecord]:
        return [group_tombstone(self.group_id)] if self.is_stored else []

    def close(self, error: ErrorCode) -> None:
        """Respond to all waiting members with an error, because the group is deleted or the broker stops."""
        self.state = ClassicGroupState.DEAD
        for member in self._members:
            member.fail(error, member.member_id, error)
        self._pending.clear()
        self._join_until_ms = self._sync_until_ms = self.wake_at_ms = None
