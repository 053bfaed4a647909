"""The parts of a consumer, put together, and what its polling thread does beside taking records. Not public.

The I/O thread has the cluster, the fetcher, the membership and the lookups. Methods here are called in the polling
thread, but where they say otherwise.
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
from stratalog.client.commits import Commits, Identity
from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.errors import NoOffsetError, OffsetOutOfRangeError, WakeupError
from stratalog.client.fetch_buffer import FetchBuffer
from stratalog.client.fetcher import FailureHandlers, Fetcher
from stratalog.client.groups.classic import ClassicMembership
from stratalog.client.groups.consumer_protocol import ConsumerMembership
from stratalog.client.groups.handoff import Change, Handoff, Step
from stratalog.client.groups.membership import Membership
from stratalog.client.io_thread import IoThread
from stratalog.client.metadata import TopicPartition
from stratalog.client.offset_lookup import OffsetLookup
from stratalog.client.offset_reset import OffsetReset, parse_reset
from stratalog.client.offsets import OffsetAndMetadata
from stratalog.client.positions import Positions
from stratalog.client.subscription import PartitionState, RebalanceListener, Subscription
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

    def identity(self) -> Identity:
        """Of the member that this consumer is; in either thread."""
        return Identity() if self.membership is None else self.membership.identity

    # What to read

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

    def assign(self, places: list[TopicPartition]) -> None:
        self.subscription.assign(places)
        self.cluster.want({place.topic for place in places})
        self.in_io(self._look_up_positions)
        self.autocommit.start()

    def leave(self) -> None:
        """Out of the group, and of everything that is assigned: committed, and the listener told, as in a rebalance."""
        places = list(self.subscription.partitions)
        try:
            if self.subscription.is_group and places:
                self._let_go(Change.REVOKED, places)
            else:
                self.autocommit.now(self.subscription.partitions)
        finally:
            self.handoff.steps.clear()
            if self.membership is not None:
                self.io.run(self.membership.stop())
            self.subscription.unsubscribe()

    # In each poll

    def attend(self) -> None:
        """To all that waits for the polling thread. May raise what it finds, and what a listener raises."""
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
                break  # the membership has taken it back
            self._carry_out(step)
        if self.handoff.errors:
            raise self.handoff.errors.popleft()
        if self.positions.failures:
            self.check_positions(self.subscription.partitions)
        self.run_callbacks()
        self.autocommit.if_due()

    def _carry_out(self, step: Step) -> None:
        try:
            if step.change is Change.ASSIGNED:
                self.subscription.add(step.partitions)
                self.cluster.want({place.topic for place in step.partitions})
                if self.subscription.listener is not None:
                    self.subscription.listener.on_partitions_assigned(step.partitions)
            else:
                self._let_go(step.change, step.partitions)
        finally:
            self.io.call_soon(self._finish, step)

    def _let_go(self, change: Change, places: list[TopicPartition], timeout: float | None = None) -> None:
        listener = self.subscription.listener
        try:
            if change is Change.LOST:
                self.autocommit.forget(places)
                if listener is not None:
                    listener.on_partitions_lost(places)
            else:
                self.autocommit.now(places, timeout)
                if listener is not None:
                    listener.on_partitions_revoked(places)
        finally:
            self.subscription.remove(places)

    def _finish(self, step: Step) -> None:
        """In the I/O thread."""
        step.finish()
        self._look_up_positions()

    def _look_up_positions(self) -> None:
        self.positions.update()

    def check_positions(self, places: Iterable[TopicPartition]) -> None:
        for place in list(places):
            error = self.positions.failures.get(place)
            state = self.subscription.partitions.get(place)
            if error is not None and state is not None and not state.has_position:
                raise error

    def run_callbacks(self) -> None:
        while self._callbacks:
            self._callbacks.popleft()()

    def done(self, fetched: FetchedRecords) -> None:
        self.buffer.done(fetched)
        self.tell_of_room()

    def tell_of_room(self) -> None:
        """To the fetcher, where it waits for that, and not for each little bit of it."""
        if self.buffer.is_waited_for and self.buffer.bytes <= self._half_of_room:
            self.buffer.is_waited_for = False
            self.io.call_soon(self.fetcher.go_on)

    # Positions

    def seek(self, state: PartitionState, offset: int, leader_epoch: int) -> None:
        def apply() -> None:
            state.seek(offset, leader_epoch)
            self.positions.failures.pop(state.place, None)
            self.fetcher.go_on()

        self.in_io(apply)
        self.buffer.release()

    def reset(self, states: list[PartitionState], reset: OffsetReset) -> None:
        def apply() -> None:
            for state in states:
                state.reset_to(reset)
                self.positions.failures.pop(state.place, None)
            self.positions.update()

        self.in_io(apply)
        self.buffer.release()

    def set_paused(self, states: list[PartitionState], paused: bool) -> None:
        def apply() -> None:
            for state in states:
                state.is_paused = paused
            self.fetcher.go_on()

        self.in_io(apply)
        self.buffer.release()

    def positions_of(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        found = {}
        for place in list(places):
            state = self.subscription.partitions.get(place)
            if state is not None and state.has_position:
                found[place] = OffsetAndMetadata(state.progress.offset, "", state.progress.leader_epoch)
        return found

    def _out_of_range(self, state: PartitionState) -> None:
        """The log does not reach to the position, or begins behind it."""
        if self.subscription.reset.is_error:
            self._go_on_with(state)
            about = f"{state.place}: the position, {state.progress.offset}, is not in the log"
            raise OffsetOutOfRangeError(ErrorCode.offset_out_of_range, about=about)
        logger.info(
            "%s: offset %d is out of range; reset to %s", state.place, state.fetch_offset, self.subscription.reset.name
        )
        self.reset([state], self.subscription.reset)

    def _truncated(self, state: PartitionState, epoch: int, end_offset: int) -> None:
        """A new leader's log lacks records that the old one had given out."""
        logger.warning("%s: the log was truncated to offset %d, leader epoch %d", state.place, end_offset, epoch)
        offset = min(end_offset, state.progress.offset)
        if self.subscription.reset.is_error:
            self._go_on_with(state)
            raise NoOffsetError(
                f"{state.place}: the log was truncated, and offset {state.progress.offset} with the records before it, "
                f"from {end_offset} on, is gone; seek to where to go on"
            )
        self.seek(state, offset, epoch)

    def _failed(self, state: PartitionState, error: ClientError) -> None:
        self._go_on_with(state)
        raise error

    def _go_on_with(self, state: PartitionState) -> None:
        """It was told; the next fetch tells it again, if it is still so."""

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

    # The end

    def close(self, timeout: float) -> None:
        if self.io.unusable is not None:
            self.io.close()
            return
        deadline = self.clock.monotonic() + timeout
        try:
            self.autocommit.stop()
            places = list(self.subscription.partitions)
            if self.subscription.is_group and places:
                self._let_go(Change.REVOKED, places, timeout)
            else:
                self.autocommit.now(places, timeout)
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
        """The interpreter exits, or nobody holds the consumer any more: no time for a good-bye to the group."""
        self.io.close(self.cluster.close(), timeout=_ABANDON_SECONDS)

    def in_io(self, call: Callable[[], T]) -> T:
        """In the I/O thread, so that nothing that happens there sees it half done."""

        async def run() -> T:
            return call()

        result: Any = self.io.run(run())
        return result  # type: ignore[no-any-return]
