"""How a classic group goes from one generation to the next: states, deadlines, and what of it is stored.

classic_group.py adds what members ask for. Pure, as that one.
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

_SHORTEST_WAIT_FOR_STATIC_MEMBERS_MS = 1_000  # a client may ask for none at all
_GROUP_BYTES = 2_000  # of a group without members
_PENDING_BYTES = 1_500  # of an id that was given out; a client's name is cut, so it is never longer

Store = Callable[[Sequence[GroupRecord]], None]


class CheckRoom(Protocol):
    """Raises StateBudgetError where there is no room for so many bytes more."""

    def __call__(self, more: int, what: str, *, is_new: bool) -> None: ...


def room_for_all(more: int, what: str, *, is_new: bool) -> None:
    """A CheckRoom without a bound."""


def group_bytes(group_id: str) -> int:
    """What a group takes in memory before it has members."""
    return _GROUP_BYTES + 4 * text_bytes(group_id)


class ClassicGroupState(StrEnum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


def append_error(error: StratalogError) -> ErrorCode:
    """What a client is told when its group could not be stored, as in Kafka."""
    match error.code:
        case ErrorCode.kafka_storage_error | ErrorCode.not_leader_or_follower:
            return ErrorCode.not_coordinator
        case ErrorCode.message_too_large | ErrorCode.record_list_too_large:
            return ErrorCode.unknown_server_error
        case _:
            return ErrorCode.coordinator_not_available


class RebalancingGroup:
    def __init__(self, group_id: str, config: GroupConfig, store: Store, check_room: CheckRoom = room_for_all) -> None:
        self.group_id = group_id
        self.state = ClassicGroupState.EMPTY
        self.generation = 0
        self.protocol_name: str | None = None
        self.is_stored = False  # whether a record of it is in the log
        self.wake_at_ms: int | None = None
        self._config = config
        self._store = store
        self._check_room = check_room
        self._protocol_type: str | None = None
        self._state_since_ms: int | None = None
        self._members = ClassicMembers()
        self._pending: dict[str, int] = {}  # ids given out and not joined with yet -> when they lapse
        self._yet_to_sync: set[str] = set()
        self._topics: set[str] | None = None  # None: not known
        self._topics_bytes = 0
        self._join_until_ms: int | None = None
        self._in_initial_delay = False
        self._initial_delay_ms = 0  # how long the part of it that is under way is
        self._initial_left_ms = 0  # by how much it may still be prolonged
        self._new_member_came = False
        self._sync_until_ms: int | None = None
        self._must_rebalance = False  # as soon as sessions begin; see group_migration.py

    @property
    def protocol_type(self) -> str:
        return self._protocol_type or ""

    @property
    def state_bytes(self) -> int:
        own = group_bytes(self.group_id) + len(self._pending) * _PENDING_BYTES
        return own + self._members.state_bytes + self._topics_bytes

    # Rebalancing

    def _rebalance(self, now: Now) -> None:
        """Begin a rebalance, or finish the join phase of the one under way if this was the last that it waited for."""
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
            # Members tend to come together: a short wait saves a rebalance for each.
            self._in_initial_delay, self._new_member_came = True, False
            self._initial_delay_ms = self._config.group_initial_rebalance_delay_ms
            self._initial_left_ms = max(longest - self._initial_delay_ms, 0)
            self._join_until_ms = self._wake(now.monotonic_ms + self._initial_delay_ms)
        elif self._all_joined:
            self._complete_join(now)
        else:
            self._join_until_ms = self._wake(now.monotonic_ms + longest)

    def _join_time_is_up(self, now: Now) -> None:
        if self._in_initial_delay and self._new_member_came and self._initial_left_ms:
            self._new_member_came = False
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
            # Only static members, none of which is back: their sessions decide.
            wait = max(self._members.longest_rebalance_timeout_ms(), _SHORTEST_WAIT_FOR_STATIC_MEMBERS_MS)
            self._join_until_ms = self._wake(now.monotonic_ms + wait)
            return
        if not self._members and not self.generation:
            self._enter(ClassicGroupState.EMPTY, now)  # all have gone before there was anything to remember
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
            # Nobody waits for it: after a restart the members of the last generation are back, and expire again.
            log.warning("group %r: that it is empty could not be stored: %s", self.group_id, error)

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
            for one in self._members:
                topics |= subscribed_topics(one.metadata(self.protocol_name))
                if len(topics) > MOST_TOPICS:
                    raise GroupRecordError(f"members name more than {MOST_TOPICS} topics")
        except GroupRecordError as error:
            log.warning("group %r: its topics are not known: %s", self.group_id, error)
            return None
        return topics

    def _current_generation(self, member: ClassicMember) -> JoinResponse:
        leads = self._members.leader == member.member_id
        return JoinResponse(
            ErrorCode.none,
            member.member_id,
            self.generation,
            self._protocol_type,
            self.protocol_name,
            self._members.leader or "",
            members=tuple(one.joined(self.protocol_name) for one in self._members) if leads else (),
        )

    # Assigning

    def _assign(self, assignments: Mapping[str, bytes], now: Now) -> None:
        shares = {one.member_id: assignments.get(one.member_id, b"") for one in self._members}
        try:
            more = sum(map(len, shares.values())) - sum(len(one.assignment) for one in self._members)
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

    # Going

    def _remove(self, member_id: str) -> None:
        member = self._members.remove(member_id)
        if member is not None:
            # Its client, if it is still there, joins anew.
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
        """Do what is due, and find out when to be woken next."""
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
        self.wake_at_ms = min((one for one in deadlines if one is not None), default=None)

    def _expire_pending(self, now: Now) -> None:
        lapsed = [member_id for member_id, until in self._pending.items() if until <= now.monotonic_ms]
        for member_id in lapsed:
            del self._pending[member_id]
        if lapsed and self.state is ClassicGroupState.PREPARING_REBALANCE:
            self._rebalance(now)

    def _session_is_over(self, member: ClassicMember, now: Now) -> None:
        if member.is_waiting and not member.is_new:
            member.expires_at_ms = None  # it waits for us; its session goes on when it has its answer
        elif member.member_id in self._members:
            log.info("group %r: member %r was silent for too long and is removed", self.group_id, member.member_id)
            self._remove(member.member_id)
            self._after_removal(now)

    def _sync_time_is_up(self, now: Now) -> None:
        self._sync_until_ms = None
        for member_id in list(self._yet_to_sync):
            log.info("group %r: member %r did not sync in time and is removed", self.group_id, member_id)
            self._remove(member_id)
        self._after_removal(now)

    # Storing and loading

    def _store_members(self, assignments: Mapping[str, bytes]) -> None:
        self._store([group_record(self.group_id, self._stored(assignments))])
        self.is_stored = True

    def _stored(self, assignments: Mapping[str, bytes]) -> StoredGroup:
        members = tuple(one.stored(self.protocol_name, assignments[one.member_id]) for one in self._members)
        return StoredGroup(
            self.protocol_type,
            self.generation,
            self.protocol_name,
            self._members.leader,
            self._state_since_ms,
            members,
        )

    def restore(self, stored: StoredGroup, protocols: Mapping[str, Mapping[str, bytes]] | None = None) -> None:
        """Be what the log says. Sessions begin with `start_sessions`, when all has been loaded.

        `protocols` are those that each member supports, by its id. The log has only the one that the group uses.
        """
        self.is_stored = True
        self.generation = stored.generation
        self._protocol_type = stored.protocol_type or None
        self.protocol_name = stored.protocol_name
        self._state_since_ms = stored.state_timestamp_ms
        self._members = ClassicMembers()
        for one in stored.members:
            member = ClassicMember(
                one.member_id,
                one.group_instance_id,
                one.client_id,
                one.client_host,
                one.session_timeout_ms,
                one.rebalance_timeout_ms,
                (protocols or {}).get(one.member_id) or {stored.protocol_name or "": one.subscription},
                one.assignment,
            )
            self._members.add(member)
        self._must_rebalance = bool(stored.members) and stored.leader is None
        if stored.leader is not None and stored.leader in self._members:
            self._members.leader = stored.leader
        self.state = ClassicGroupState.STABLE if self._members else ClassicGroupState.EMPTY
        self._set_topics()

    def start_sessions(self, now: Now) -> None:
        """After a restart every member gets its whole session timeout to come back."""
        for member in self._members:
            self._renew(member, now)
        if self._must_rebalance or len(self._members) > self._config.group_max_size:
            self._must_rebalance = False
            self._rebalance(now)

    def tombstones(self) -> list[GroupRecord]:
        return [group_tombstone(self.group_id)] if self.is_stored else []

    def close(self, error: ErrorCode) -> None:
        """The group is gone, or the broker stops: whoever waits is told."""
        self.state = ClassicGroupState.DEAD
        for member in self._members:
            member.fail(error, member.member_id, error)
        self._pending.clear()
        self._join_until_ms = self._sync_until_ms = self.wake_at_ms = None
