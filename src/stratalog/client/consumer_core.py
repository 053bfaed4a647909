"""The parts of a consumer, assembled, and everything that its polling thread does except taking records. Not public.

The cluster, the fetcher, the membership and the lookups belong to the I/O thread. Methods of ConsumerCore are called in
the polling thread, except where they say otherwise.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from stratalog.client._consumer_records import FetchedRecords
from stratalog.client.autocommit import AutoCommit
from stratalog.client.cluster import Cluster
from stratalog.client.commits import Commits, CommittingMember
from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.errors import NoOffsetError, OffsetOutOfRangeError, WakeupError
from stratalog.client.fetch_buffer import FetchBuffer
from stratalog.client.fetcher import FailureHandlers, Fetcher
from stratalog.client.groups.classic import ClassicMembership
from stratalog.client.groups.consumer_protocol import ConsumerMembership
from stratalog.client.groups.handoff import Change, Handoff, HandoffStep
from stratalog.client.groups.membership import Membership
from stratalog.client.io_thread import IoThread
from stratalog.client.metadata import TopicPartition
from stratalog.client.offset_lookup import OffsetLookup
from stratalog.client.offset_reset import OffsetReset, parse_reset
from stratalog.client.offsets import OffsetAndMetadata
from stratalog.client.positions import Positions
from stratalog.client.subscription import AssignedPartition, RebalanceListener, Subscription
from stratalog.clock import SystemClock
from stratalog.errors import ClientError
from stratalog.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)
T = TypeVar("T")
_ABANDON_SECONDS = 1.0


class ConsumerCore:
    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings = settings
        self.clock = SystemClock()
        self.io = IoThread(f"consumer {settings.client_id!r}")
        self.cluster = Cluster(settings, allow_auto_create_topics=False)
        reset = parse_reset(settings.auto_offset_reset)
        self.subscription = Subscription(reset, has_group=settings.group_id is not None)
        self.buffer = FetchBuffer(self.subscription)
        self.handoff = Handoff(self.buffer, self.clock, settings.max_poll_interval_ms / 1000)
        self.is_woken = False
        read_committed = settings.isolation_level == "read_committed"
        self.lookup = OffsetLookup(self.cluster, settings, read_committed=read_committed)
        handlers = FailureHandlers(self._out_of_range, self._truncated, self._failed)
        self.fetcher = Fetcher(self.cluster, settings, self.subscription, self.buffer, handlers)
        self.commits = Commits(self.cluster, settings, self.identity)
        self.positions = Positions(
            settings, self.subscription, self.commits, self.lookup, self.fetcher, self.buffer, self.clock
        )
        self.membership: Membership | None = None
        self._callbacks: deque[Callable[[], object]] = deque()
        self._half_of_room = settings.queued_max_messages_kbytes * 1024 // 2
        self.autocommit = AutoCommit(self)
        self.io.at_exit(self.abandon)

    def identity(self) -> CommittingMember:
        """Return this consumer's identity in its group. May be called in both threads."""
        return CommittingMember() if self.membership is None else self.membership.identity

    # Topics and partitions

    def subscribe(
        self, topics: Iterable[str], pattern: re.Pattern[str] | None, listener: RebalanceListener | None
    ) -> None:
        self.subscription.subscribe(topics, pattern, listener)
        self.in_io(self._start_membership)
        self.autocommit.start()

    def _start_membership(self) -> None:
        """In the I/O thread."""
        if self.membership is None:
            kind = ConsumerMembership if self.settings.group_protocol == "consumer" else ClassicMembership
            self.membership = kind(self.cluster, self.settings, self.subscription, self.handoff)
        self.membership.start()

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.subscription.assign(partitions)
        self.cluster.track_topics({partition.topic for partition in partitions})
        self.in_io(self._look_up_positions)
        self.autocommit.start()

    def leave(self) -> None:
        """Leave the group and give up all partitions. Commits and calls the listener as a rebalance does."""
        partitions = list(self.subscription.partitions)
        try:
            if self.subscription.is_group and partitions:
                self._give_up(Change.REVOKED, partitions)
            else:
                self.autocommit.now(self.subscription.partitions)
        finally:
            self.handoff.steps.clear()
            if self.membership is not None:
                self.io.run(self.membership.stop())
            self.subscription.unsubscribe()

    # In each poll

    def attend(self) -> None:
        """Do all work that waits for the polling thread. Raises errors that the I/O thread has left, and errors of
        listeners."""
        self.buffer.interrupt.is_set = False
        self.io.check_usable()
        if self.is_woken:
            self.is_woken = False
            raise WakeupError("wakeup() was called")
        membership = self.membership
        if membership is not None and membership.is_away:
            self.io.call_soon(membership.polled)
        while self.handoff.steps:
            try:
                step = self.handoff.steps.popleft()
            except IndexError:
                break  # the membership has withdrawn it
            self._carry_out(step)
        if self.handoff.errors:
            raise self.handoff.errors.popleft()
        if self.positions.failures:
            self.check_positions(self.subscription.partitions)
        self.run_callbacks()
        self.autocommit.if_due()

    def _carry_out(self, step: HandoffStep) -> None:
        try:
            if step.change is Change.ASSIGNED:
                self.subscription.add(step.partitions)
                self.cluster.track_topics({partition.topic for partition in step.partitions})
                if self.subscription.listener is not None:
                    self.subscription.listener.on_partitions_assigned(step.partitions)
            else:
                self._give_up(step.change, step.partitions)
        finally:
            self.io.call_soon(self._finish, step)

    def _give_up(self, change: Change, partitions: list[TopicPartition], timeout: float | None = None) -> None:
        listener = self.subscription.listener
        try:
            if change is Change.LOST:
                self.autocommit.forget(partitions)
                if listener is not None:
                    listener.on_partitions_lost(partitions)
            else:
                self.autocommit.now(partitions, timeout)
                if listener is not None:
                    listener.on_partitions_revoked(partitions)
        finally:
            self.subscription.remove(partitions)

    def _finish(self, step: HandoffStep) -> None:
        """In the I/O thread."""
        step.finish()
        self._look_up_positions()

    def _look_up_positions(self) -> None:
        self.positions.update()

    def check_positions(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in list(partitions):
            error = self.positions.failures.get(partition)
            state = self.subscription.partitions.get(partition)
            if error is not None and state is not None and not state.has_position:
                raise error

    def run_callbacks(self) -> None:
        while self._callbacks:
            self._callbacks.popleft()()

    def done(self, fetched: FetchedRecords) -> None:
        self.buffer.done(fetched)
        self.wake_fetcher_if_room()

    def wake_fetcher_if_room(self) -> None:
        """Wake a fetcher that waits for room in the buffer, once half of the buffer is free."""
        if self.buffer.is_waited_for and self.buffer.bytes <= self._half_of_room:
            self.buffer.is_waited_for = False
            self.io.call_soon(self.fetcher.go_on)

    # Positions

    def seek(self, state: AssignedPartition, offset: int, leader_epoch: int) -> None:
        def apply() -> None:
            state.seek(offset, leader_epoch)
            self.positions.failures.pop(state.partition, None)
            self.fetcher.go_on()

        self.in_io(apply)
        self.buffer.release()

    def reset(self, states: list[AssignedPartition], reset: OffsetReset) -> None:
        def apply() -> None:
            for state in states:
                state.reset_to(reset)
                self.positions.failures.pop(state.partition, None)
            self.positions.update()

        self.in_io(apply)
        self.buffer.release()

    def set_paused(self, states: list[AssignedPartition], paused: bool) -> None:
        def apply() -> None:
            for state in states:
                state.is_paused = paused
            self.fetcher.go_on()

        self.in_io(apply)
        self.buffer.release()

    def positions_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        positions = {}
        for partition in list(partitions):
            state = self.subscription.partitions.get(partition)
            if state is not None and state.has_position:
                positions[partition] = OffsetAndMetadata(state.progress.offset, "", state.progress.leader_epoch)
        return positions

    def _out_of_range(self, state: AssignedPartition) -> None:
        """Handle a position after the end of the log, or before its start: reset it, or raise OffsetOutOfRangeError."""
        if self.subscription.reset.is_error:
            self._resume_fetching(state)
            about = f"{state.partition}: the position, {state.progress.offset}, is not in the log"
            raise OffsetOutOfRangeError(ErrorCode.offset_out_of_range, about=about)
        logger.info(
            "%s: offset %d is out of range; reset to %s",
            state.partition,
            state.fetch_offset,
            self.subscription.reset.name,
        )
        self.reset([state], self.subscription.reset)

    def _truncated(self, state: AssignedPartition, epoch: int, end_offset: int) -> None:
        """Handle a new leader's log that lacks records which the old leader had returned: go back, or raise
        NoOffsetError."""
        logger.warning("%s: the log was truncated to offset %d, leader epoch %d", state.partition, end_offset, epoch)
        offset = min(end_offset, state.progress.offset)
        if self.subscription.reset.is_error:
            self._resume_fetching(state)
            raise NoOffsetError(
                f"{state.partition}: the log was truncated to offset {end_offset}, and the records from there to the "
                f"position, {state.progress.offset}, are lost; seek to the offset to continue at"
            )
        self.seek(state, offset, epoch)

    def _failed(self, state: AssignedPartition, error: ClientError) -> None:
        self._resume_fetching(state)
        raise error

    def _resume_fetching(self, state: AssignedPartition) -> None:
        """Fetch from the partition again after its error was raised. If it persists, the next fetch reports it."""

        def apply() -> None:
            state.is_stopped = False
            self.fetcher.go_on()

        self.in_io(apply)

    # Commits

    def commit_async(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        callback: Callable[[dict[TopicPartition, OffsetAndMetadata], ClientError | None], object] | None,
    ) -> None:
        async def commit() -> None:
            error: ClientError | None = None
            try:
                await self.commits.commit(offsets, self.settings.default_api_timeout_ms / 1000)
            except ClientError as problem:
                error = problem
            if callback is not None:
                self._callbacks.append(lambda: callback(offsets, error))
                self.buffer.announce()
            elif error is not None:
                logger.warning("offsets were not committed: %s", error)

        self.io.submit(commit())

    # Closing

    def close(self, timeout: float) -> None:
        if self.io.unusable is not None:
            self.io.close()
            return
        deadline = self.clock.monotonic() + timeout
        try:
            self.autocommit.stop()
            partitions = list(self.subscription.partitions)
            if self.subscription.is_group and partitions:
                self._give_up(Change.REVOKED, partitions, timeout)
            else:
                self.autocommit.now(partitions, timeout)
            self.run_callbacks()
        finally:
            left = max(0.1, deadline - self.clock.monotonic())
            self.io.close(self._close_all(), left)

    async def _close_all(self) -> None:
        """In the I/O thread."""
        self.positions.close()
        await self.fetcher.close()
        if self.membership is not None:
            await self.membership.stop()
        await self.cluster.close()

    def abandon(self) -> None:
        """Close without leaving the group: the interpreter exits, or the consumer is garbage."""
        self.io.close(self.cluster.close(), timeout=_ABANDON_SECONDS)

    def in_io(self, call: Callable[[], T]) -> T:
        """Run a call in the I/O thread and return its result. It is atomic for everything that runs there."""

        async def run() -> T:
            return call()

        result: Any = self.io.run(run())
        return result  # type: ignore[no-any-return]
