"""The group coordinator: owns every group of this broker, their committed offsets, their timers, and their log.

Clients see a state only after its records are in the log. So everything that was acknowledged is back after kill -9:
members (with a new session timeout), generations and offsets. While a partition of `__consumer_offsets` is being read,
requests for its groups get COORDINATOR_LOAD_IN_PROGRESS.

Runs on the event loop's thread. Only `prepare` and `load` await.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from stratalog.broker.groups.classic_group import ClassicGroup
from stratalog.broker.groups.classic_messages import Now
from stratalog.broker.groups.classic_rebalance import append_error
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.group import Group, GroupRecord, ReplayConsumerRecord, TimerHandle
from stratalog.broker.groups.offset_records import (
    GROUP_KEY_TYPE,
    GroupKey,
    OffsetKey,
    StoredGroup,
    group_id_of,
    key_type,
    parse_group,
    parse_key,
    parse_offset,
)
from stratalog.broker.groups.offsets import OffsetChange, Offsets
from stratalog.broker.groups.offsets_topic import OffsetsLog
from stratalog.broker.state_budget import StateBudget
from stratalog.broker.state_topic import partition_of
from stratalog.clock import Clock
from stratalog.errors import StratalogError
from stratalog.protocol.error_codes import ErrorCode

log = logging.getLogger(__name__)

LONGEST_GROUP_ID = 2**15 - 1  # bytes; the limit of the key of a record
MAX_PENDING_GROUPS = 5_000  # groups with nothing but an assigned member id; at the limit, the oldest is dropped
_CONSUMER_KEY_TYPES = frozenset((*range(3, 9), 16))
_RECORDS_A_TURN = 500  # replayed before other tasks of the event loop run
_MOST_BYTES_OF_TOMBSTONES = 256 * 1024  # in one batch

CallLater = Callable[[float, Callable[[], None]], TimerHandle]


class _Timer(NamedTuple):
    at_ms: int
    handle: TimerHandle


class GroupCoordinator:
    """The groups, offsets and timers. This is a GroupHost. classic_service.py, consumer_coordinator.py and
    offset_service.py implement the requests with it."""

    def __init__(
        self,
        config: GroupConfig,
        clock: Clock,
        offsets_log: OffsetsLog,
        call_later: CallLater,
        replay_consumer_record: ReplayConsumerRecord,
    ) -> None:
        self.config = config
        self.offsets = Offsets(config)
        self.budget = StateBudget(config.stratalog_max_coordinator_state_bytes, clock.monotonic)
        self.call_later = call_later
        self._clock = clock
        self._log = offsets_log
        self._replay_consumer_record = replay_consumer_record
        self._groups: dict[str, Group] = {}
        self._counted: dict[str, int] = {}  # by group id: its part of `_groups_bytes`
        self._groups_bytes = 0
        self._timers: dict[str, _Timer] = {}
        self._pending_groups: dict[str, None] = {}  # ids of groups with nothing but an assigned member id, oldest first
        self._partition_count: int | None = None
        self._loaded: set[int] = set()
        self._load_ended = False
        self._creating: asyncio.Task[None] | None = None
        self._loaded_listeners: list[Callable[[Group], None]] = []
        self._topic_ids: Mapping[str, object] = {}
        self._deleted_while_loading: set[str] = set()  # topics
        self._expiry: TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        for count in (lambda: self._groups_bytes, lambda: self.offsets.state_bytes):
            self.budget.include(count)

    # Time

    def now(self) -> Now:
        return Now(self._clock.now_ms(), int(self._clock.monotonic() * 1000))

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of a group failed", exc_info=task.exception())

    # Availability of groups

    def status(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        if self._closed:
            return ErrorCode.coordinator_not_available
        if not group_id and not may_be_empty:
            return ErrorCode.invalid_group_id
        if not _fits_a_record(group_id):
            return ErrorCode.invalid_group_id
        return self._progress(group_id)

    def _progress(self, group_id: str) -> ErrorCode:
        if self._partition_count is None:
            count = self._log.partition_count
            if count is None:
                return ErrorCode.none  # without the topic there is nothing to load
            if not self._load_ended:
                return ErrorCode.coordinator_load_in_progress
            self._partition_count, self._loaded = count, set(range(count))  # created after the start: empty
        partition = partition_of(group_id, self._partition_count)
        if partition in self._loaded:
            return ErrorCode.none
        return ErrorCode.coordinator_not_available if self._load_ended else ErrorCode.coordinator_load_in_progress

    @property
    def is_loading(self) -> bool:
        """True until all of __consumer_offsets has been read."""
        return not self._load_ended and self._log.partition_count is not None

    async def prepare(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        error = self.status(group_id, may_be_empty=may_be_empty)
        if error is ErrorCode.none and self._log.partition_count is None:
            if self._creating is None or self._creating.done():
                self._creating = asyncio.ensure_future(self._log.create())
                self._creating.add_done_callback(_log_failure)
            try:
                await asyncio.shield(self._creating)  # other requests wait for it too: a cancelled one must not stop it
            except StratalogError:
                if self._log.partition_count is None:
                    return ErrorCode.coordinator_not_available
            return self.status(group_id, may_be_empty=may_be_empty)
        return error

    # The groups

    def group(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def groups(self) -> list[Group]:
        return list(self._groups.values())

    def put(self, group: Group) -> None:
        self._close(self._groups.get(group.group_id), unless=group)
        self._groups[group.group_id] = group
        self.recount(group)

    def remove(self, group_id: str) -> None:
        self._close(self._groups.pop(group_id, None))
        self._groups_bytes -= self._counted.pop(group_id, 0)

    def recount(self, group: Group) -> None:
        if self._groups.get(group.group_id) is group:
            counted = group.state_bytes
            self._groups_bytes += counted - self._counted.get(group.group_id, 0)
            self._counted[group.group_id] = counted

    def check_room(self, more: int, what: str, *, is_new: bool) -> None:
        self.budget.check(more, what, is_new=is_new)

    def _close(self, group: Group | None, *, unless: Group | None = None) -> None:
        if group is None or group is unless:
            return
        timer = self._timers.pop(group.group_id, None)
        if timer is not None:
            timer.handle.cancel()
        self._pending_groups.pop(group.group_id, None)
        if isinstance(group, ClassicGroup):
            group.close(ErrorCode.unknown_member_id)

    def new_classic_group(self, group_id: str) -> ClassicGroup:
        group = ClassicGroup(
            group_id, self.config, lambda records: self.append(group_id, records), check_room=self.check_room
        )
        self.put(group)
        return group

    def become_classic(self, group_id: str, stored: StoredGroup, protocols: Mapping[str, Mapping[str, bytes]]) -> None:
        group = self.new_classic_group(group_id)
        group.restore(stored, protocols)
        group.start_sessions(self.now())
        self.refresh(group)

    def refresh(self, group: ClassicGroup) -> None:
        """Update the size and the timer of a classic group, and remove it if nothing is left of it. Call this after
        every call of the group."""
        if self._groups.get(group.group_id) is not group:
            return
        self.recount(group)
        if group.is_empty and not group.is_stored and not self._has_offsets(group.group_id):
            if not group.has_pending_members:
                self.remove(group.group_id)
                return
            self._pending_groups[group.group_id] = None
            while len(self._pending_groups) > MAX_PENDING_GROUPS:
                self.remove(next(iter(self._pending_groups)))
        else:
            self._pending_groups.pop(group.group_id, None)
        self._set_timer(group)

    def _has_offsets(self, group_id: str) -> bool:
        return bool(self.offsets.of(group_id) or self.offsets.pending.of(group_id))

    def _set_timer(self, group: ClassicGroup) -> None:
        timer = self._timers.get(group.group_id)
        at = group.wake_at_ms
        if timer is not None and at is not None and timer.at_ms <= at:
            return  # a timer may fire early, as it is then set again; so heartbeats need no new timer
        if timer is not None:
            timer.handle.cancel()
            del self._timers[group.group_id]
        if at is not None:
            seconds = max(at - self.now().monotonic_ms, 0) / 1000
            self._timers[group.group_id] = _Timer(at, self.call_later(seconds, lambda: self._wake(group)))

    def _wake(self, group: ClassicGroup) -> None:
        if self._groups.get(group.group_id) is group:
            self._timers.pop(group.group_id, None)
            group.expire(self.now())
            self.refresh(group)

    # The log

    def append(self, group_id: str, records: Sequence[GroupRecord]) -> None:
        if records:
            self._log.append(self.partition_of(group_id), records, self._clock.now_ms())

    def append_changes(self, group_id: str, changes: Sequence[OffsetChange], more: Sequence[GroupRecord] = ()) -> None:
        """Write and apply changes of offsets, with other records after them in the same batch. On StratalogError
        nothing was written."""
        self.append(group_id, [*(change.record() for change in changes), *more])
        self.offsets.apply(changes)

    def append_deletions(self, group_id: str, changes: Iterable[OffsetChange]) -> None:
        """Delete offsets, in as many batches as needed. On StratalogError a part of them may be deleted."""
        for batch in _in_batches(changes):
            self.append_changes(group_id, batch)

    # Offsets in transactions

    def append_pending(self, group_id: str, changes: Sequence[OffsetChange], producer_id: int, epoch: int) -> None:
        """Write offsets that are pending until the producer's transaction ends. On StratalogError nothing was
        written."""
        records = [change.record() for change in changes]
        self._log.append_in_transaction(self.partition_of(group_id), records, self._clock.now_ms(), producer_id, epoch)
        self.offsets.pending.add(producer_id, changes)

    def partition_of(self, group_id: str) -> int:
        """Return the partition of __consumer_offsets that has the group's records."""
        return partition_of(group_id, self._partition_count or self._log.partition_count or 1)

    def can_end_transactions(self, partition: int) -> ErrorCode:
        """Return NONE if this partition of __consumer_offsets has been read, else COORDINATOR_LOAD_IN_PROGRESS."""
        if self._load_ended or partition in self._loaded:
            return ErrorCode.none
        return ErrorCode.coordinator_load_in_progress

    def end_transaction(self, partition: int, producer_id: int, *, commit: bool) -> None:
        """Apply or drop the pending offsets of a producer, after its marker was written to this partition."""
        keys = [key for key in self.offsets.pending.keys(producer_id) if self.partition_of(key.group_id) == partition]
        self.offsets.end_transaction(producer_id, keys, commit=commit)
        for group_id in {key.group_id for key in keys}:
            if group_id not in self._groups and self.offsets.of(group_id):
                self.new_classic_group(group_id)  # a group that only has offsets

    # Starting and stopping

    async def load(self) -> None:
        """Read __consumer_offsets at the start. Groups are served as soon as their partition has been read."""
        self._schedule_expiry()
        try:
            self._partition_count = self._log.partition_count
            for partition in range(self._partition_count or 0):
                await self._load_partition(partition)
        finally:
            self._load_ended = True
            self._deleted_while_loading.clear()

    async def _load_partition(self, partition: int) -> None:
        try:
            records, pending = await self._log.read(partition)
        except StratalogError as error:
            log.error("__consumer_offsets-%d can't be read; its groups are not served: %s", partition, error)
            return
        replayed: set[str] = set()
        for start in range(0, len(records), _RECORDS_A_TURN):
            replayed |= self._replay(partition, records[start : start + _RECORDS_A_TURN])
            await asyncio.sleep(0)  # lets the event loop serve other requests
        self._replay_pending(partition, pending)
        if not self._closed:
            self._open(partition, replayed)

    def on_loaded(self, call: Callable[[Group], None]) -> None:
        self._loaded_listeners.append(call)
        for group in self.groups():
            if group.kind == "consumer" and self.status(group.group_id) is ErrorCode.none:
                call(group)

    def _replay(self, partition: int, records: Sequence[GroupRecord]) -> set[str]:
        """Apply records, and return the ids of their groups."""
        replayed = set()
        for key, value in records:
            try:
                replayed.add(group_id_of(key))
                self._replay_record(key, value)
            except StratalogError as error:
                log.error("__consumer_offsets-%d: a record is ignored: %s", partition, error)
        return replayed

    def _replay_pending(self, partition: int, pending: Mapping[int, Mapping[bytes, bytes | None]]) -> None:
        for producer_id, written in pending.items():
            for key, value in written.items():
                try:
                    offset_key = parse_key(key)
                    if isinstance(offset_key, OffsetKey):
                        offset = None if value is None else parse_offset(value)
                        self.offsets.pending.add(producer_id, [(offset_key, offset)])
                except StratalogError as error:
                    log.error("__consumer_offsets-%d: a record of an open transaction is ignored: %s", partition, error)

    def _open(self, partition: int, group_ids: Iterable[str]) -> None:
        """Serve the groups of a partition from now on, as all of it has been read."""
        self._loaded.add(partition)
        if self._deleted_while_loading:
            for group_id in self.offsets.group_ids():
                if self.partition_of(group_id) == partition:
                    self._delete_offsets_of(group_id, self._deleted_while_loading)
        for group_id in group_ids:
            group = self._groups.get(group_id)
            if group is None and self._has_offsets(group_id):
                group = self.new_classic_group(group_id)  # a group that only has offsets
            if isinstance(group, ClassicGroup):
                group.start_sessions(self.now())
                self.refresh(group)
            elif group is not None:
                self.recount(group)
                for call in self._loaded_listeners:
                    call(group)

    def _replay_record(self, key: bytes, value: bytes | None) -> None:
        kind = key_type(key)
        if kind in _CONSUMER_KEY_TYPES:
            self._replay_consumer_record(self, key, value)
            return
        if kind > GROUP_KEY_TYPE:
            log.warning("__consumer_offsets: a record of a share or streams group (type %d) is ignored", kind)
            return
        match parse_key(key):
            case GroupKey(group_id):
                if value is None:
                    self.remove(group_id)
                else:
                    stored = parse_group(value)
                    self.new_classic_group(group_id).restore(stored)
            case OffsetKey() as offset_key:
                self.offsets.apply([OffsetChange(offset_key, None if value is None else parse_offset(value))])

    def close(self) -> None:
        """Stop: waiting members get COORDINATOR_NOT_AVAILABLE, and no timer fires and no request is served any more."""
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()
        for task in self._tasks:
            task.cancel()
        for group in self.groups():
            if isinstance(group, ClassicGroup):
                group.close(ErrorCode.coordinator_not_available)

    # Deleting

    def delete(self, group_id: str) -> ErrorCode:
        """Delete a group of either kind that has no members, and its offsets."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        if not group.is_empty:
            return ErrorCode.non_empty_group
        try:
            self.append_deletions(group_id, self.offsets.delete_group(group_id))
            self.append(group_id, group.tombstones())
        except StratalogError as error:
            return append_error(error)
        self.remove(group_id)
        return ErrorCode.none

    def _schedule_expiry(self) -> None:
        seconds = self.config.offsets_retention_check_interval_ms / 1000
        self._expiry = self.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self.expire_offsets()
        self._schedule_expiry()

    def expire_offsets(self) -> None:
        """Delete offsets that are older than offsets.retention.minutes, and empty groups without offsets."""
        for group in self.groups():
            if self.status(group.group_id, may_be_empty=True) is not ErrorCode.none:
                continue
            try:
                self.append_deletions(group.group_id, self.offsets.expire(group, self.now_ms()))
                if _is_over(group) and not self._has_offsets(group.group_id):
                    self.append(group.group_id, group.tombstones())
                    self.remove(group.group_id)
            except StratalogError as error:
                log.error("group %r: expired offsets could not be deleted: %s", group.group_id, error)

    def topics_changed(self, topic_ids: Mapping[str, object]) -> None:
        """Delete the offsets of deleted topics. Call this after each change, with the id of every topic by name."""
        deleted = {name for name, topic_id in self._topic_ids.items() if topic_ids.get(name) != topic_id}
        self._topic_ids = topic_ids
        if not deleted:
            return
        if not self._load_ended:
            self._deleted_while_loading |= deleted  # for the groups that can't be written yet
        for group_id in self.offsets.group_ids():
            if self.status(group_id, may_be_empty=True) is ErrorCode.none:
                self._delete_offsets_of(group_id, deleted)

    def _delete_offsets_of(self, group_id: str, topics: set[str]) -> None:
        for topic in topics.intersection(self.offsets.topics(group_id)):
            try:
                self.append_deletions(group_id, self.offsets.delete_topic(group_id, topic))
            except StratalogError as error:
                log.error("group %r: offsets of the deleted topic %s could not be deleted: %s", group_id, topic, error)


def _log_failure(creating: asyncio.Task[None]) -> None:
    """Log a failure once, also if every request that waited for it was cancelled."""
    if not creating.cancelled() and creating.exception() is not None:
        log.error("__consumer_offsets could not be created: %s", creating.exception())


def _is_over(group: Group) -> bool:
    return group.is_empty and not (isinstance(group, ClassicGroup) and group.has_pending_members)


def _fits_a_record(text: str) -> bool:
    try:
        return len(text.encode()) <= LONGEST_GROUP_ID
    except UnicodeEncodeError:
        return False


def _in_batches(changes: Iterable[OffsetChange]) -> Iterator[list[OffsetChange]]:
    batch: list[OffsetChange] = []
    size = 0
    for change in changes:
        batch.append(change)
        size += len(change.record()[0])
        if size >= _MOST_BYTES_OF_TOMBSTONES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
