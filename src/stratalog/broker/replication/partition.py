"""A partition of a cluster: its leader serves clients and followers, its followers copy the leader's log.

Everything here runs on the event loop. A partition is in one of three roles:

- leader: `leadership` has the rules of one leader epoch. Appends raise NotLeaderError once the lease of this broker may
  have ended, so a broker that was stopped for a while acknowledges nothing that its successor does not have.
- follower: `leader` is another broker; a fetcher appends what that broker returns.
- neither: another broker is to lead but is not known yet, or this broker has no replica. Its log is unopened then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from stratalog.broker.metadata.cluster_view import PartitionId
from stratalog.broker.metadata.partition_state import NO_LEADER, PartitionState
from stratalog.broker.partition import Partition, wake
from stratalog.broker.replication.rules import Leadership
from stratalog.clock import Clock
from stratalog.errors import NotLeaderError
from stratalog.protocol.current_leader import CurrentLeader
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage.appending import Appended, PreparedBatches
from stratalog.storage.log import Log

if TYPE_CHECKING:
    from stratalog.broker.fetch_sessions import CachedPartition
    from stratalog.broker.waiting import WaitingFetch

logger = logging.getLogger(__name__)

OnReplicated = Callable[[ErrorCode], None]

_MOST_REPORTED = 100


class ReplicaContext:
    """The broker, as all of its partitions see it."""

    def __init__(
        self,
        node_id: int,
        clock: Clock,
        can_lead: Callable[[], bool],
        lag_max_ms: Callable[[], int],
        registered_epoch: Callable[[int], int | None],
    ) -> None:
        """`can_lead` is False from the moment on when another broker may lead what this one leads. `registered_epoch`
        returns the broker epoch under which a broker is registered now."""
        self.node_id = node_id
        self.registered_epoch = registered_epoch
        self.clock = clock
        self.can_lead = can_lead
        self.lag_max_ms = lag_max_ms
        self._refused_replicas: set[int] = set()
        self.leader_of: Callable[[PartitionId], CurrentLeader | None] = lambda _: None
        self.selects_by_rack = False
        self.rack_of: Callable[[int], str | None] = lambda _: None
        self.on_follower_caught_up: Callable[[ReplicatedPartition, int], None] = lambda _partition, _replica: None

    def now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)

    def report_refused(self, partition: ReplicatedPartition, replica: int, broker_epoch: int) -> None:
        """Log a fetch that is not from a replica, once for each node id: a client can send any number of them, and a
        broker that has just registered may be ahead of this broker's view."""
        if replica not in self._refused_replicas and len(self._refused_replicas) < _MOST_REPORTED:
            self._refused_replicas.add(replica)
            logger.warning(
                "%r: refused a fetch that claims to be replica %d with broker epoch %d; known here is broker epoch %s",
                partition,
                replica,
                broker_epoch,
                self.registered_epoch(replica),
            )


class ReplicatedPartition(Partition):
    is_replicated: ClassVar[bool] = True

    __slots__ = (
        "_acknowledgements",
        "_context",
        "_deletions",
        "_follower_starts",
        "_hidden_bytes",
        "_high_watermark",
        "_waiting_followers",
        "id",
        "leader",
        "leadership",
        "state",
    )

    def __init__(self, topic: str, index: int, partition_id: PartitionId, log: Log, context: ReplicaContext) -> None:
        super().__init__(topic, index, log)
        self.id = partition_id
        self.state: PartitionState | None = None  # the newest that is in effect here
        self.leader = NO_LEADER
        self.leadership: Leadership | None = None
        self._context = context
        self._high_watermark = log.log_start_offset
        self._hidden_bytes = 0  # appended since the high watermark last moved
        self._acknowledgements: deque[tuple[int, OnReplicated]] = deque()  # by the offset they wait for
        self._deletions: list[tuple[int, OnReplicated]] = []  # with the log start offset that they wait for
        self._waiting_followers: set[WaitingFetch] = set()
        self._follower_starts: dict[int, int] = {}

    # Roles

    @property
    def is_hosted(self) -> bool:
        return self.state is not None and self._context.node_id in self.state.replicas

    @property
    def unavailable(self) -> ErrorCode:
        if self.leadership is None or not self._context.can_lead():
            return ErrorCode.not_leader_or_follower
        return super().unavailable

    def current_leader(self) -> CurrentLeader | None:
        """Return the leader, for clients that get an error here; None if it is not known."""
        leader = self._context.leader_of(self.id)
        if leader is None or (leader.node_id == self._context.node_id and self.unavailable):
            return None
        return leader

    def lead(self, state: PartitionState) -> None:
        """Lead in a new leader epoch. The log has begun the epoch already."""
        assert state.leader == self._context.node_id
        now = self._context.now_ms()
        self._end_role()
        self.state = state
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        end = self.log.log_end_offset
        self.leadership = Leadership(
            self._context.node_id, state, epoch_start=end, high_watermark=self._high_watermark, now_ms=now
        )
        self._advance()
        logger.info("%r: leads in leader epoch %d from offset %d, ISR %s", self, state.leader_epoch, end, state.isr)

    def learn(self, state: PartitionState) -> None:
        """Take over a newer state of the epoch in which this broker leads."""
        assert self.leadership is not None
        self.leadership.learned(state)
        self.state = self.leadership.state
        if self.in_sync_count < self.required_in_sync:
            self._answer_all(ErrorCode.not_enough_replicas_after_append)
        self._advance()
        self._answer_deletions()

    def follow(self, state: PartitionState) -> None:
        """Follow the leader of this state, which may be unknown."""
        self._end_role()
        self.state = state
        self.leader = state.leader
        self.leader_epoch = max(state.leader_epoch, 0)

    def follows(self, state: PartitionState) -> bool:
        """Return whether the partition follows the leader of this state already, in the same epoch."""
        return (
            self.state is not None
            and self.leadership is None
            and (self.leader, self.leader_epoch) == (state.leader, state.leader_epoch)
        )

    def resign(self) -> None:
        """Stop to lead: another broker may lead now."""
        if self.leadership is not None:
            logger.info("%r: no longer leads in leader epoch %d", self, self.leader_epoch)
        self._end_role()
        self.leader = NO_LEADER

    def _end_role(self) -> None:
        self.leadership = None
        self._follower_starts.clear()
        self._hidden_bytes = 0
        self._answer_all(ErrorCode.not_leader_or_follower)
        deletions, self._deletions = self._deletions, []
        for _, call in deletions:
            call(ErrorCode.not_leader_or_follower)
        self.end_waiting()

    # Reading

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        first_open = self.log.producers.first_open_transaction
        end = self._high_watermark
        return end if first_open is None else min(max(first_open, self.log.log_start_offset), end)

    @property
    def is_confirmed(self) -> bool:
        """True if the high watermark has reached the start of the leader epoch. Until then, it may be lower than what
        clients of the earlier leader knew (KIP-207)."""
        return self.leadership is None or self.leadership.is_confirmed(self._high_watermark)

    def waiting_fetches(self, *, of_followers: bool) -> set[WaitingFetch]:
        return self._waiting_followers if of_followers else self.waiting

    def end_waiting(self) -> None:
        super().end_waiting()
        for fetch in tuple(self._waiting_followers):
            fetch.finish()

    def serves_as_follower(self) -> bool:
        """Return whether consumers may read here from a follower, up to its high watermark; never from a leader that
        has no lease."""
        return self.leadership is None and self.leader != NO_LEADER and self.is_hosted and not self.is_offline

    def preferred_replica(self, rack: str, offset: int) -> int | None:
        """Return the replica in a consumer's rack that it should read from, if it is not this one: the one with the
        longest log of those that are in sync and have the offset. Called on the leader."""
        context, leadership = self._context, self.leadership
        if not context.selects_by_rack or leadership is None or context.rack_of(context.node_id) == rack:
            return None
        best: tuple[int, int, int] | None = None
        for replica in leadership.state.isr:
            follower = leadership.follower(replica)
            if follower is None or context.rack_of(replica) != rack:
                continue
            if self._follower_starts.get(replica, offset + 1) <= offset <= follower.log_end:
                best = max(best or (-1, 0, 0), (follower.log_end, follower.caught_up_ms, replica))
        return None if best is None else best[2]

    # Appending

    @property
    def in_sync_count(self) -> int:
        return 0 if self.state is None else len(self.state.isr)

    @property
    def required_in_sync(self) -> int:
        """min.insync.replicas, or the number of replicas if that is lower."""
        return 1 if self.state is None else min(self.state.min_insync, len(self.state.replicas))

    def append(self, data: memoryview) -> Appended:
        self.check_leader()
        return super().append(data)

    def append_prepared(self, prepared: PreparedBatches) -> Appended:
        self.check_leader()
        return super().append_prepared(prepared)

    def append_for_coordinator(self, data: bytearray, *, may_wait: bool = False) -> Appended:
        self.check_leader()
        appended = super().append_for_coordinator(data, may_wait=may_wait)
        self._grew(len(data))
        return appended

    def check_leader(self) -> None:
        """Raise NotLeaderError unless this broker leads."""
        if self.unavailable is ErrorCode.not_leader_or_follower:
            raise NotLeaderError(f"broker {self._context.node_id} does not lead {self.topic}-{self.index} now")

    def _grew(self, size: int) -> None:
        self._hidden_bytes += size
        if self._waiting_followers:
            wake(self._waiting_followers, size)
        self._advance()
        super()._grew(0)

    def when_replicated(self, offset: int, call: OnReplicated) -> None:
        """Call `call` when every in-sync replica has the records before `offset`; at once if they have them already.
        Calls it with an error if this broker stops to lead, or if too few replicas remain in sync."""
        if self._high_watermark >= offset:
            call(ErrorCode.none)
        else:
            self._acknowledgements.append((offset, call))

    def forget(self, call: OnReplicated) -> None:
        """Don't call this any more: its client waits no longer."""
        self._acknowledgements = deque(entry for entry in self._acknowledgements if entry[1] is not call)
        self._deletions = [entry for entry in self._deletions if entry[1] is not call]

    def _answer_all(self, error: ErrorCode) -> None:
        waiting, self._acknowledgements = self._acknowledgements, deque()
        for _, call in waiting:
            call(error)

    # Followers

    def follower_fetched(self, replica: int, broker_epoch: int, offset: int, log_start_offset: int) -> bool:
        """Record a follower's fetch from `offset`. Return False if the broker is not a replica, or does not fetch under
        its registration: it has registered again since, or it is not the broker that it claims to be."""
        leadership = self.leadership
        assert leadership is not None
        end = self.log.log_end_offset
        is_registered = broker_epoch == self._context.registered_epoch(replica)
        if not is_registered or not leadership.fetched(replica, offset, broker_epoch, end, self._context.now_ms()):
            self._context.report_refused(self, replica, broker_epoch)
            return False
        self._follower_starts[replica] = log_start_offset
        self._answer_deletions()
        self._advance()
        if replica not in leadership.maximal_isr:
            self._context.on_follower_caught_up(self, replica)
        return True

    def follower_is_idle(self, replica: int, broker_epoch: int, cached: CachedPartition) -> bool:
        """Return whether the follower has everything and knows it, as its last fetch did too, and everything is
        committed. Record that it still has. Most fetches of most partitions are like this, so it must cost little."""
        leadership, log = self.leadership, self.log
        _, epoch, offset, _, _, follower_start = cached.requested
        return (
            leadership is not None
            and epoch == self.leader_epoch
            and offset == log.log_end_offset == self._high_watermark == cached.high_watermark
            and cached.log_start_offset == follower_start == log.log_start_offset
            and follower_start == self._follower_starts.get(replica)
            and leadership.still_caught_up(replica, offset, broker_epoch, self._context.now_ms())
        )

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of the replicas in sync: what DeleteRecords has deleted everywhere."""
        starts = [self.log.log_start_offset]
        if self.state is not None:
            others = [replica for replica in self.state.isr if replica != self._context.node_id]
            starts += [self._follower_starts.get(replica, -1) for replica in others]
        return min(starts)

    def when_deleted(self, offset: int, call: OnReplicated) -> None:
        """Call `call` when every in-sync replica has deleted the records before `offset`, at once if they have; with an
        error if this broker stops to lead. The leader's log has deleted them already."""
        if self.low_watermark >= offset:
            call(ErrorCode.none)
            return
        self._deletions.append((offset, call))
        for fetch in tuple(self._waiting_followers):
            fetch.finish()  # the response has the new log start offset

    def _answer_deletions(self) -> None:
        if not self._deletions:
            return
        low_watermark = self.low_watermark
        done = [call for offset, call in self._deletions if offset <= low_watermark]
        self._deletions = [entry for entry in self._deletions if entry[0] > low_watermark]
        for call in done:
            call(ErrorCode.none)

    def _advance(self) -> None:
        if self.leadership is not None:
            end = self.log.log_end_offset
            self._raise_to(
                self.leadership.advance(end, self._context.now_ms(), self._context.lag_max_ms()), self._hidden_bytes
            )

    def _set_high_watermark(self, offset: int) -> None:
        self._high_watermark = self.log.high_watermark = offset

    def _raise_to(self, high_watermark: int, size: int) -> None:
        if high_watermark <= self._high_watermark:
            return
        self._set_high_watermark(high_watermark)
        self._hidden_bytes = 0
        waiting = self._acknowledgements
        while waiting and waiting[0][0] <= high_watermark:
            waiting.popleft()[1](ErrorCode.none)
        if self.waiting:
            wake(self.waiting, max(size, 1))

    def copied(self, leader_high_watermark: int, size: int) -> None:
        """Record, on a follower, that its log has grown by `size` bytes, and the leader's high watermark."""
        self._raise_to(min(leader_high_watermark, self.log.log_end_offset), size)

    def truncated(self) -> None:
        """Record, on a follower, that its log has been truncated, or begins at another offset."""
        log = self.log
        self._set_high_watermark(min(max(self._high_watermark, log.log_start_offset), log.log_end_offset))

    def restore_high_watermark(self, offset: int) -> None:
        """Take over the high watermark that was saved at the last stop or a little before a crash."""
        log = self.log
        self._set_high_watermark(min(max(offset, log.log_start_offset), log.log_end_offset))
