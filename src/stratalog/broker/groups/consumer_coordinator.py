"""Runs KIP-848 consumer groups: serves their heartbeats, writes their records, and keeps their timers.

The records of a heartbeat are appended before the response is sent. A member is removed if it

- sends no heartbeat for its group's `consumer.session.timeout.ms`; after a restart, each member has a whole session
  timeout to send one;
- does not revoke partitions within its own rebalance timeout.

A classic group becomes a KIP-848 group when its first KIP-848 member joins, and a classic one again when the last one
has left (group_migration.py). In between, this module serves classic members too: `classic_join` and so on. A classic
member that has to rejoin, or to sync after it joined, is removed if it does not do so within its rebalance timeout.

Runs on the event loop's thread, except for the matching of patterns with topics (pattern_resolution.py).
"""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

from stratalog.broker.background import RunInBackground
from stratalog.broker.groups import consumer_classic_members as classic_members
from stratalog.broker.groups import group_migration
from stratalog.broker.groups.classic_group import ClassicGroup, new_member_id
from stratalog.broker.groups.classic_messages import (
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    SyncRequest,
    SyncResponse,
)
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.consumer_group import ConsumerGroup, GroupTopics
from stratalog.broker.groups.consumer_heartbeat import (
    GroupChange,
    HeartbeatContext,
    fence,
    heartbeat,
    leave,
    take_resolved,
    update_epoch,
)
from stratalog.broker.groups.consumer_member import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH, ConsumerMember
from stratalog.broker.groups.consumer_records import CurrentMember, MemberState, RecordType, Tombstone, encode
from stratalog.broker.groups.consumer_requests import GroupRefusedError, Heartbeat, HeartbeatResponse, check_request
from stratalog.broker.groups.group import Group, GroupHost, GroupRecord, TimerHandle
from stratalog.broker.groups.group_settings import EffectiveGroupSettings
from stratalog.broker.groups.offset_records import group_record
from stratalog.broker.groups.pattern_resolution import PatternResolver, Resolved, TopicNames
from stratalog.errors import StateBudgetError, StorageError, StratalogError
from stratalog.protocol.error_codes import ErrorCode

_log = logging.getLogger(__name__)

_RETRY_S = 5.0


class WatchedTopics(GroupTopics, Protocol):
    def on_change(self, call: Callable[[], None]) -> None: ...


class ConsumerGroups:
    """The KIP-848 groups. `settings_of` returns the settings that apply to a group; the default is the broker's."""

    def __init__(
        self,
        host: GroupHost,
        topics: WatchedTopics,
        config: GroupConfig,
        match_in_background: RunInBackground,
        settings_of: Callable[[str], EffectiveGroupSettings] | None = None,
    ) -> None:
        self._host = host
        self._topics = topics
        self._config = config
        self.settings_of = settings_of or _broker_settings(config)
        self._topic_names = TopicNames(topics)
        self._patterns = PatternResolver(
            host,
            self._topic_names,
            match_in_background,
            lambda group: self._served(group.group_id) is group,
            self._take_resolved,
        )
        self._session_timers = _Timers(host)
        self._rebalance_timers = _Timers(host)
        self._join_timers = _Timers(host)  # for classic members that have to rejoin
        self._sync_timers = _Timers(host)  # for classic members that have joined and have to sync
        topics.on_change(self._topic_names.changed)
        host.on_loaded(self._start_timers)

    async def heartbeat(self, request: Heartbeat, api_version: int) -> HeartbeatResponse:
        """Serve ConsumerGroupHeartbeat. Raises GroupRefusedError with the error to respond with."""
        check_request(request, api_version, self._config.group_consumer_assignors)
        error = await self._host.prepare(request.group_id)
        if error is not ErrorCode.none:
            raise GroupRefusedError(error)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(request)
        return self._heartbeat(request)

    def describe(self, group_id: str) -> ConsumerGroup:
        """Return a KIP-848 group. Raises GroupRefusedError with the error to respond with."""
        error = self._host.status(group_id)
        if error is not ErrorCode.none:
            raise GroupRefusedError(error)
        return self._existing(group_id)

    def _heartbeat(self, request: Heartbeat) -> HeartbeatResponse:
        if not request.member_id:
            member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            request = replace(request, member_id=member_id)
        group, to_replace = self._group_to_join(request)
        change = GroupChange(group)
        context = self._context()
        response = heartbeat(change, request, context)
        self._check_room(group, change, is_new=request.member_id not in group.members)
        self._commit(group, change, to_replace)
        group.topics_seen = context.topics_version
        self._restart_session(group, response.member_id)
        self._patterns.resolve_if_due(group, response.member_id)
        return response

    def _check_room(self, group: ConsumerGroup, change: GroupChange, *, is_new: bool) -> None:
        """Raise GroupRefusedError if the budget has no room. New members get the error of a full group, existing ones
        an error on which they back off and retry."""
        known = self._host.group(group.group_id)
        more = change.group.state_bytes - (0 if known is None else known.state_bytes)
        if more <= 0:
            return
        what = f"{'a' if is_new else 'an assignment of a'} member of group {group.group_id[:200]!r}"
        try:
            self._host.check_room(more, what, is_new=is_new)
        except StateBudgetError as error:
            code = ErrorCode.group_max_size_reached if is_new else ErrorCode.coordinator_not_available
            raise GroupRefusedError(code, str(error)) from error

    def _leave(self, request: Heartbeat) -> HeartbeatResponse:
        group = self._existing(request.group_id)
        change = GroupChange(group)
        response = leave(change, request, self._context())
        leaving = group.members.keys() - change.group.members.keys()
        if leaving and group_migration.is_due(group, leaving, self._config):
            self._downgrade(group, leaving)
        else:
            self._commit(group, change)
        return response

    def _group_to_join(self, request: Heartbeat) -> tuple[ConsumerGroup, list[GroupRecord]]:
        """Return the group, and the records that create it if it replaces a classic group: they delete that group, and
        take its members over. Raises GroupRefusedError."""
        group = self._host.group(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group, []
        if request.member_epoch == JOIN_EPOCH and group is None:
            return ConsumerGroup(request.group_id), []
        if request.member_epoch == JOIN_EPOCH and group is not None and group.is_empty:
            return ConsumerGroup(request.group_id), group.tombstones()
        if request.member_epoch == JOIN_EPOCH and isinstance(group, ClassicGroup):
            try:
                upgraded, records = group_migration.upgrade(group, self._config, self._topics)
            except GroupRefusedError as refused:
                _log.info("%s", refused)
                raise
            return upgraded, [*group.tombstones(), *map(encode, records)]
        raise _not_found(f"Consumer group {request.group_id}", group)

    def _existing(self, group_id: str) -> ConsumerGroup:
        group = self._host.group(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        raise _not_found(f"Group {group_id}", group)

    def _context(self) -> HeartbeatContext:
        return HeartbeatContext(
            topics=self._topics,
            topics_version=self._topic_names.version,
            name_characters=self._topic_names.characters,
            assignors=self._config.group_consumer_assignors,
            max_size=self._config.group_consumer_max_size,
            now_ms=self._host.now_ms(),
        )

    def _take_resolved(self, group: ConsumerGroup, resolved: Resolved) -> None:
        """Write the topics that patterns match. On GroupRefusedError the group keeps the earlier ones."""
        change = GroupChange(group)
        take_resolved(change, resolved, self._context())
        self._check_room(group, change, is_new=False)
        self._commit(group, change)

    def _commit(self, group: ConsumerGroup, change: GroupChange, to_replace: Sequence[GroupRecord] = ()) -> None:
        """Append the records, and then apply them to the group. Raises GroupRefusedError."""
        if not change.records:
            return
        self._append(group.group_id, [*to_replace, *map(encode, change.records)])
        if self._host.group(group.group_id) is not group:
            self._take_over(group)
        for record in change.records:
            group.apply(record)
        self._host.recount(group)
        for record in change.records:
            match record:
                case CurrentMember() if record.member_id in group.members:
                    self._watch_revocation(group, record)
                case Tombstone(type=RecordType.CURRENT_MEMBER) if record.name not in group.members:
                    self._stop_timers(group.group_id, record.name)

    def _append(self, group_id: str, records: Sequence[GroupRecord]) -> None:
        try:
            self._host.append(group_id, records)
        except StorageError as error:
            raise GroupRefusedError(ErrorCode.not_coordinator, str(error)) from error  # as in Kafka: clients retry
        except StratalogError as error:
            raise GroupRefusedError(ErrorCode.unknown_server_error, str(error)) from error

    def _take_over(self, group: ConsumerGroup) -> None:
        """Add a new group. It replaces the classic group of the same id, if there is one, and has taken its members
        over."""
        former = self._host.group(group.group_id)
        if isinstance(former, ClassicGroup) and group.members:
            former.close(ErrorCode.rebalance_in_progress)  # members that wait in its rebalance rejoin
            members = len(group.members)
            _log.info("group %s: upgraded to a consumer group with %d classic members", group.group_id, members)
        self._host.put(group)
        self._start_timers(group)

    def _start_timers(self, loaded: Group) -> None:
        if isinstance(loaded, ConsumerGroup):
            for member_id, member in loaded.members.items():
                self._restart_session(loaded, member_id)
                self._watch_revocation(loaded, member.current_record(loaded.group_id))

    def _stop_timers(self, group_id: str, member_id: str) -> None:
        for timers in (self._session_timers, self._rebalance_timers, self._join_timers, self._sync_timers):
            timers.stop(group_id, member_id)

    def _restart_session(self, group: ConsumerGroup, member_id: str) -> None:
        classic = group.members[member_id].classic
        if classic is None:
            timeout_ms = self.settings_of(group.group_id).session_timeout_ms
        else:
            timeout_ms = classic.session_timeout_ms
        self._remove_after(timeout_ms, self._session_timers, group.group_id, member_id, "it sent no heartbeat for")

    def _watch_revocation(self, group: ConsumerGroup, current: CurrentMember) -> None:
        """Start or stop the timer for the revocation of partitions. Each step of the member restarts it. For classic
        members the timer for rejoining does this."""
        member = group.members[current.member_id]
        is_away = current.member_epoch == STATIC_LEAVE_EPOCH
        if member.classic is not None or is_away or current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._rebalance_timers.stop(group.group_id, current.member_id)
            return
        timeout_ms = max(member.rebalance_timeout_ms, 0)
        reason = f"it did not revoke partitions of epoch {current.member_epoch} within"
        self._remove_after(timeout_ms, self._rebalance_timers, group.group_id, current.member_id, reason)

    def _remove_after(self, timeout_ms: int, timers: _Timers, group_id: str, member_id: str, reason: str) -> None:
        def ring() -> None:
            group = self._served(group_id)
            if group is None or member_id not in group.members:
                return
            if self._fence(group, member_id):
                _log.info("group %s: member %s was removed: %s %d ms", group_id, member_id, reason, timeout_ms)
            else:
                timers.start(group_id, member_id, _RETRY_S, ring)

        timers.start(group_id, member_id, timeout_ms / 1000, ring)

    def _served(self, group_id: str) -> ConsumerGroup | None:
        """Return a KIP-848 group. Return None while the broker stops, so that no member is removed any more."""
        group = self._host.group(group_id)
        if isinstance(group, ConsumerGroup) and self._host.status(group_id) is ErrorCode.none:
            return group
        return None

    def _fence(self, group: ConsumerGroup, member_id: str) -> bool:
        try:
            if group_migration.is_due(group, {member_id}, self._config):
                self._downgrade(group, {member_id})
            else:
                change = GroupChange(group)
                fence(change, member_id, self._topics)
                self._commit(group, change)
        except GroupRefusedError as error:
            _log.error("group %s: member %s could not be removed; retrying: %s", group.group_id, member_id, error)
            return False
        return True

    def settings_changed(self, group_id: str) -> None:
        """Restart the sessions of a group's members, with the timeout that applies now."""
        group = self._served(group_id)
        if group is not None:
            for member_id in group.members:
                self._restart_session(group, member_id)

    # Members of the classic protocol

    def classic_join(self, group: ConsumerGroup, request: JoinRequest) -> JoinResponse:
        """Serve JoinGroup, and then downgrade the group if only this member was missing for that."""
        change, context = GroupChange(group), self._context()
        try:
            response = classic_members.join(change, request, context, new_member_id)
            self._check_room(group, change, is_new=response.member_id not in group.members)
            self._commit(group, change)
        except GroupRefusedError as refused:
            return JoinResponse(_as_classic(refused.code), request.member_id)
        if response.error is not ErrorCode.none:
            return response
        group.topics_seen = context.topics_version
        self._join_timers.stop(group.group_id, response.member_id)
        self._restart_session(group, response.member_id)
        timeout_ms = request.rebalance_timeout_ms
        self._remove_after(timeout_ms, self._sync_timers, group.group_id, response.member_id, "it did not sync within")
        if group_migration.is_due(group, (), self._config):
            try:
                self._downgrade(group, ())
            except GroupRefusedError as refused:
                _log.warning("group %s: not downgraded to a classic group now: %s", group.group_id, refused)
        return response

    def classic_sync(self, group: ConsumerGroup, request: SyncRequest) -> SyncResponse:
        try:
            response = classic_members.sync(group, request, self._topics)
        except GroupRefusedError as refused:
            if refused.code is ErrorCode.rebalance_in_progress:
                self._await_rejoin(group, group.members[request.member_id])
            return SyncResponse(refused.code)
        self._sync_timers.stop(group.group_id, request.member_id)
        self._restart_session(group, request.member_id)
        return response

    def classic_heartbeat(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        try:
            member = classic_members.find_classic(group, member_id, instance_id, generation)
        except GroupRefusedError as refused:
            return refused.code
        self._restart_session(group, member_id)
        self._notice_topics(group)
        if not classic_members.must_rejoin(group, member):
            return ErrorCode.none
        self._await_rejoin(group, member)
        return ErrorCode.rebalance_in_progress

    def classic_leave(self, group: ConsumerGroup, identities: Sequence[MemberIdentity]) -> list[ErrorCode]:
        """Serve LeaveGroup, and return an error code for each member."""
        errors = []
        for identity in identities:
            try:
                if self._existing(group.group_id) is not group:
                    raise GroupRefusedError(ErrorCode.unknown_member_id)
                change = GroupChange(group)
                fence(change, classic_members.find_leaving(group, identity).member_id, self._topics)
                self._commit(group, change)
            except GroupRefusedError as refused:
                errors.append(_as_classic(refused.code))
            else:
                errors.append(ErrorCode.none)
        return errors

    def _await_rejoin(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Start the timer for a member that has to rejoin. Further heartbeats do not restart it."""
        if not self._join_timers.is_running(group.group_id, member.member_id):
            timeout_ms, reason = member.rebalance_timeout_ms, "it did not rejoin within"
            self._remove_after(timeout_ms, self._join_timers, group.group_id, member.member_id, reason)

    def _notice_topics(self, group: ConsumerGroup) -> None:
        """Raise the group epoch if topics were created, deleted or got more partitions, as a KIP-848 heartbeat does."""
        context = self._context()
        if group.topics_seen == context.topics_version:
            return
        change = GroupChange(group)
        update_epoch(change, context, bump=False)
        try:
            self._commit(group, change)
        except GroupRefusedError as refused:
            _log.warning("group %s: changed topics could not be assigned: %s", group.group_id, refused)
        else:
            group.topics_seen = context.topics_version

    def _downgrade(self, group: ConsumerGroup, leaving: Collection[str]) -> None:
        """Turn the group into a classic group without the leaving members. On GroupRefusedError nothing has changed."""
        group_id = group.group_id
        stored = group_migration.downgrade(group, leaving, self._host.now_ms(), self._topics)
        self._append(group_id, [*group.tombstones(), group_record(group_id, stored)])
        for member_id in group.members:
            self._stop_timers(group_id, member_id)
        protocols = {
            member_id: dict(member.classic.protocols)
            for member_id, member in group.members.items()
            if member.classic is not None
        }
        self._host.become_classic(group_id, stored, protocols)
        _log.info("group %s: downgraded to a classic group with %d members", group_id, len(stored.members))


def _broker_settings(config: GroupConfig) -> Callable[[str], EffectiveGroupSettings]:
    return lambda _: EffectiveGroupSettings(
        config.group_consumer_session_timeout_ms, config.group_consumer_heartbeat_interval_ms
    )


def _as_classic(code: ErrorCode) -> ErrorCode:
    """Replace an error that members of the classic protocol do not know."""
    return ErrorCode.unknown_member_id if code is ErrorCode.fenced_member_epoch else code


def _not_found(what: str, group: Group | None) -> GroupRefusedError:
    if group is not None:
        return GroupRefusedError(ErrorCode.group_id_not_found, f"Group {group.group_id} is not a consumer group.")
    return GroupRefusedError(ErrorCode.group_id_not_found, f"{what} not found.")


class _Timers:
    """Timers of members, at most one for each member."""

    def __init__(self, host: GroupHost) -> None:
        self._host = host
        self._running: dict[tuple[str, str], TimerHandle] = {}

    def start(self, group_id: str, member_id: str, seconds: float, call: Callable[[], None]) -> None:
        self.stop(group_id, member_id)

        def ring() -> None:
            self._running.pop((group_id, member_id), None)
            call()

        self._running[group_id, member_id] = self._host.call_later(seconds, ring)

    def is_running(self, group_id: str, member_id: str) -> bool:
        return (group_id, member_id) in self._running

    def stop(self, group_id: str, member_id: str) -> None:
        timer = self._running.pop((group_id, member_id), None)
        if timer is not None:
            timer.cancel()
