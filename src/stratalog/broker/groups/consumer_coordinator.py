"""Runs KIP-848 consumer groups: takes their heartbeats, writes their records, and keeps their timers.

A heartbeat's records are appended before it is answered. A member is removed when it was silent for
`group.consumer.session.timeout.ms`, or has not given up partitions within its own rebalance timeout. After a restart
each member has a whole session timeout to be heard of. Everything here runs on the broker's event loop.

A group id that belongs to a classic group can be taken over while that group has no members; its offsets stay. Known
gap: members of one protocol can't join a group that has members of the other (Kafka can convert a running group).
"""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.consumer_group import ConsumerGroup, Topics
from stratalog.broker.groups.consumer_heartbeat import Change, Surroundings, fence, heartbeat, leave
from stratalog.broker.groups.consumer_member import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from stratalog.broker.groups.consumer_records import CurrentMember, MemberState, RecordType, Tombstone, encode
from stratalog.broker.groups.consumer_requests import Answer, GroupRefusedError, Heartbeat, check_request
from stratalog.broker.groups.group import Group, GroupHost, GroupRecord, TimerHandle
from stratalog.errors import StorageError, StratalogError
from stratalog.protocol.error_codes import ErrorCode

_log = logging.getLogger(__name__)

_RETRY_S = 5.0


class WatchedTopics(Topics, Protocol):
    def on_change(self, call: Callable[[], None]) -> None: ...


class ConsumerGroups:
    def __init__(self, host: GroupHost, topics: WatchedTopics, config: GroupConfig) -> None:
        self._host = host
        self._topics = topics
        self._config = config
        self._topics_version = 0
        self._session_timers = _Timers(host)
        self._rebalance_timers = _Timers(host)
        topics.on_change(self._topics_changed)
        host.on_loaded(self._start_timers)

    async def heartbeat(self, request: Heartbeat, api_version: int) -> Answer:
        """Raises GroupRefusedError, with the error to answer with."""
        check_request(request, api_version, self._config.group_consumer_assignors)
        error = await self._host.prepare(request.group_id)
        if error is not ErrorCode.none:
            raise GroupRefusedError(error)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(request)
        return self._heartbeat(request)

    def describe(self, group_id: str) -> ConsumerGroup:
        """Raises GroupRefusedError, with the error to answer with."""
        error = self._host.status(group_id)
        if error is not ErrorCode.none:
            raise GroupRefusedError(error)
        return self._existing(group_id)

    def _heartbeat(self, request: Heartbeat) -> Answer:
        if not request.member_id:
            member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            request = replace(request, member_id=member_id)
        group, to_replace = self._group_to_join(request)
        change = Change(group)
        around = self._surroundings()
        answer = heartbeat(change, request, around)
        self._commit(group, change, to_replace)
        group.topics_seen = around.topics_version
        self._restart_session(group.group_id, answer.member_id)
        return answer

    def _leave(self, request: Heartbeat) -> Answer:
        group = self._existing(request.group_id)
        change = Change(group)
        answer = leave(change, request, self._surroundings())
        self._commit(group, change)
        return answer

    def _group_to_join(self, request: Heartbeat) -> tuple[ConsumerGroup, list[GroupRecord]]:
        """The group, and the records that delete an empty classic group which it takes the place of."""
        group = self._host.group(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group, []
        if request.member_epoch == JOIN_EPOCH and group is None:
            return ConsumerGroup(request.group_id), []
        if request.member_epoch == JOIN_EPOCH and group is not None and group.is_empty:
            return ConsumerGroup(request.group_id), group.tombstones()
        raise _not_found(f"Consumer group {request.group_id}", group)

    def _existing(self, group_id: str) -> ConsumerGroup:
        group = self._host.group(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        raise _not_found(f"Group {group_id}", group)

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            topics=self._topics,
            topics_version=self._topics_version,
            assignors=self._config.group_consumer_assignors,
            max_size=self._config.group_consumer_max_size,
            now_ms=self._host.now_ms(),
        )

    def _topics_changed(self) -> None:
        self._topics_version += 1

    def _commit(self, group: ConsumerGroup, change: Change, to_replace: Sequence[GroupRecord] = ()) -> None:
        """Append the records, and only then let them be seen."""
        if not change.records:
            return
        try:
            self._host.append(group.group_id, [*to_replace, *map(encode, change.records)])
        except StorageError as error:
            raise GroupRefusedError(ErrorCode.not_coordinator, str(error)) from error  # as Kafka: ask again
        except StratalogError as error:
            raise GroupRefusedError(ErrorCode.unknown_server_error, str(error)) from error
        if self._host.group(group.group_id) is not group:
            self._host.put(group)
        for record in change.records:
            group.apply(record)
        for record in change.records:
            match record:
                case CurrentMember():
                    self._watch_revocation(group, record)
                case Tombstone(type=RecordType.CURRENT_MEMBER) if record.name not in group.members:
                    self._session_timers.stop(group.group_id, record.name)
                    self._rebalance_timers.stop(group.group_id, record.name)

    def _start_timers(self, loaded: Group) -> None:
        if isinstance(loaded, ConsumerGroup):
            for member_id, member in loaded.members.items():
                self._restart_session(loaded.group_id, member_id)
                self._watch_revocation(loaded, member.current_record(loaded.group_id))

    def _restart_session(self, group_id: str, member_id: str) -> None:
        timeout_ms = self._config.group_consumer_session_timeout_ms
        self._remove_after(timeout_ms, self._session_timers, group_id, member_id, "it was silent for")

    def _watch_revocation(self, group: ConsumerGroup, current: CurrentMember) -> None:
        """Called at every step of a member, so the time counts from the last one."""
        if current.state is not MemberState.UNREVOKED_PARTITIONS or current.member_epoch == STATIC_LEAVE_EPOCH:
            self._rebalance_timers.stop(group.group_id, current.member_id)
            return
        timeout_ms = max(group.members[current.member_id].rebalance_timeout_ms, 0)
        reason = f"it did not give up partitions of epoch {current.member_epoch} within"
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
        """None also while the broker stops: then nobody is removed any more."""
        group = self._host.group(group_id)
        if isinstance(group, ConsumerGroup) and self._host.status(group_id) is ErrorCode.none:
            return group
        return None

    def _fence(self, group: ConsumerGroup, member_id: str) -> bool:
        change = Change(group)
        fence(change, member_id, self._topics)
        try:
            self._commit(group, change)
        except GroupRefusedError as error:
            _log.error("group %s: member %s can't be removed now: %s", group.group_id, member_id, error)
            return False
        return True


def _not_found(what: str, group: Group | None) -> GroupRefusedError:
    if group is not None:
        return GroupRefusedError(ErrorCode.group_id_not_found, f"Group {group.group_id} is not a consumer group.")
    return GroupRefusedError(ErrorCode.group_id_not_found, f"{what} not found.")


class _Timers:
    """One timer a member at most."""

    def __init__(self, host: GroupHost) -> None:
        self._host = host
        self._running: dict[tuple[str, str], TimerHandle] = {}

    def start(self, group_id: str, member_id: str, seconds: float, call: Callable[[], None]) -> None:
        self.stop(group_id, member_id)

        def ring() -> None:
            self._running.pop((group_id, member_id), None)
            call()

        self._running[group_id, member_id] = self._host.call_later(seconds, ring)

    def stop(self, group_id: str, member_id: str) -> None:
        timer = self._running.pop((group_id, member_id), None)
        if timer is not None:
            timer.cancel()
