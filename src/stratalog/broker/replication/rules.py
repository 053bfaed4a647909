"""The rules of a partition's leader: which replicas are in sync, and which records are committed. Pure.

The high watermark is the smallest log end offset of the *maximal ISR*: the members that ZooKeeper knows, and those
that this leader has asked ZooKeeper to add. A member leaves the maximal ISR only after ZooKeeper has removed it, so
whichever of the two ISRs ZooKeeper ends up with, its members have every committed record.

The high watermark never goes back while an epoch lasts. It stays where it is while

- a member of the maximal ISR has not fetched in this epoch: its log end offset is not known;
- the ISR has fewer than `min_insync` members: a replica outside it may still be elected (`elr`).

A follower joins the ISR when its log has reached the high watermark and the first offset of this epoch. It leaves when
it has not reached the end of the leader's log for `replica.lag.time.max.ms`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from stratalog.broker.metadata.partition_state import PartitionState

UNKNOWN = -1
NEVER_MS = -(2**62)


@dataclass(slots=True)
class Follower:
    """The progress of a follower, as its fetches show it."""

    log_end: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    caught_up_ms: int = 0  # when it last had everything that the leader had
    fetched_ms: int = 0
    leader_end_at_fetch: int = 0

    def fetched(self, offset: int, broker_epoch: int, leader_end: int, now_ms: int) -> None:
        """Record a fetch from `offset`: the follower has everything before it."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end_at_fetch:  # what the leader had at the fetch before
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.log_end = offset
        self.broker_epoch = broker_epoch
        self.fetched_ms = now_ms
        self.leader_end_at_fetch = leader_end


class Leadership:
    """A partition that this broker leads, in one leader epoch.

    ISR changes go one at a time: `proposal` returns a change, and `learned` or `refused` reports its outcome. Until
    then, and after a failure whose outcome is not known, the maximal ISR has the members of both.
    """

    def __init__(
        self, node_id: int, state: PartitionState, *, epoch_start: int, high_watermark: int, now_ms: int
    ) -> None:
        """`epoch_start`: the log end offset when the broker became leader. `high_watermark`: the one it knew then."""
        self.node_id = node_id
        self.state = state
        self.epoch_start = epoch_start
        self.high_watermark = high_watermark
        self._followers = {
            replica: Follower(caught_up_ms=now_ms, fetched_ms=now_ms)
            for replica in state.replicas
            if replica != node_id
        }
        self._proposed: tuple[int, ...] | None = None
        self._joining: dict[int, int] = {}

    @property
    def maximal_isr(self) -> frozenset[int]:
        return frozenset(self.state.isr).union(self._proposed or ())

    @property
    def proposed_isr(self) -> tuple[int, ...] | None:
        """The ISR that this leader has proposed to ZooKeeper, without an answer yet. The proposal may be repeated: it
        counts at most once, as it names the version of the state that it changes."""
        return self._proposed

    @property
    def joining(self) -> dict[int, int]:
        """The new members in the proposed ISR, with the broker epochs under which they caught up. ZooKeeper refuses the
        proposal once one of them has registered again. A repeated proposal names the same broker epochs: if the first
        was refused, an attempt that is still on its way must not be accepted, because its members are forgotten."""
        return self._joining

    def follower(self, replica: int) -> Follower | None:
        return self._followers.get(replica)

    def is_confirmed(self, offset: int) -> bool:
        """Return whether `offset` is at or after the start of the epoch: what lies before it was written by an earlier
        leader, and may be ahead of the high watermark that its clients knew (KIP-207)."""
        return offset >= self.epoch_start

    def fetched(self, replica: int, offset: int, broker_epoch: int, leader_end: int, now_ms: int) -> bool:
        """Record a follower's fetch. False, and nothing is recorded, if the broker is not a replica of this partition,
        or has registered again since it sent the fetch: its log may be shorter now."""
        follower = self._followers.get(replica)
        if follower is None or broker_epoch < follower.broker_epoch:
            return False
        follower.fetched(offset, broker_epoch, leader_end, now_ms)
        return True

    def still_caught_up(self, replica: int, offset: int, broker_epoch: int, now_ms: int) -> bool:
        """Record a fetch from the end of the leader's log, by a member of the ISR whose last fetch was the same. False,
        and nothing is recorded, if this is another case."""
        follower = self._followers.get(replica)
        if (
            follower is None
            or follower.log_end != offset
            or follower.broker_epoch != broker_epoch
            or replica not in self.state.isr
        ):
            return False
        follower.caught_up_ms = follower.fetched_ms = now_ms
        follower.leader_end_at_fetch = offset
        return True

    def advance(self, leader_end: int, now_ms: int, lag_max_ms: int) -> int:
        """Raise the high watermark as far as the replicas allow, and return it."""
        if len(self.state.isr) >= min(self.state.min_insync, len(self.state.replicas)):
            ends = [leader_end]
            ends += [self._end_of(replica) for replica in self.maximal_isr if replica != self.node_id]
            # A follower that is about to join holds the high watermark back, or it would never reach it under load.
            ends += [
                follower.log_end
                for replica, follower in self._followers.items()
                if replica not in self.maximal_isr
                and follower.log_end >= self.high_watermark
                and now_ms - follower.caught_up_ms <= lag_max_ms
            ]
            self.high_watermark = max(self.high_watermark, min(ends))
        return self.high_watermark

    def _end_of(self, replica: int) -> int:
        follower = self._followers.get(replica)
        return UNKNOWN if follower is None else follower.log_end

    # The ISR

    def lagging(self, leader_end: int, now_ms: int, lag_max_ms: int) -> list[int]:
        """Return the members of the ISR that have not caught up for too long."""
        return [
            replica
            for replica in self.state.isr
            if replica != self.node_id
            and self._end_of(replica) != leader_end
            and now_ms - self._followers[replica].caught_up_ms > lag_max_ms
        ]

    def can_join(self, replica: int, registered_epoch: int | None) -> bool:
        """Return whether a follower may be added to the ISR. `registered_epoch`: the broker epoch under which the
        broker is registered now; None if it is not, is shutting down, or has lost its tail and is still in ISRs because
        of the log that it had before."""
        follower = self._followers.get(replica)
        return (
            follower is not None
            and replica not in self.maximal_isr
            and registered_epoch is not None
            and follower.broker_epoch == registered_epoch  # or it may have lost its tail since (KIP-903)
            and follower.log_end >= max(self.high_watermark, self.epoch_start)
        )

    def proposal(self, *, add: Collection[int] = (), remove: Collection[int] = ()) -> tuple[int, ...]:
        """Begin a change of the ISR; no other may be in progress. Return the ISR to write."""
        assert self._proposed is None
        self._joining = {replica: self._followers[replica].broker_epoch for replica in add}
        gone = set(remove)
        isr = [replica for replica in self.state.isr if replica not in gone]
        self._proposed = tuple(dict.fromkeys([*isr, *add]))
        return self._proposed

    def learned(self, state: PartitionState) -> None:
        """Take over a newer state in which this broker leads in the same epoch."""
        if state.partition_epoch <= self.state.partition_epoch:
            return
        for replica in set(self.state.isr).difference(state.isr, (self.node_id,)):
            self._followers[replica].caught_up_ms = NEVER_MS  # a dead broker must not hold the high watermark back
        self.state = state
        self._proposed = None
        for replica in state.replicas:
            if replica != self.node_id and replica not in self._followers:
                self._followers[replica] = Follower()
        for replica in [replica for replica in self._followers if replica not in state.replicas]:
            del self._followers[replica]

    def refused(self, base_epoch: int, current: PartitionState) -> None:
        """ZooKeeper has refused a proposal that was made from the state with partition epoch `base_epoch`, and has
        `current`. If that is newer, an earlier attempt may have counted: only `current` has the right ISR. The
        refusal of an older proposal says nothing about the one that is in flight now."""
        if current.partition_epoch > self.state.partition_epoch:
            self.learned(current)
        elif base_epoch == self.state.partition_epoch:
            self._proposed = None
