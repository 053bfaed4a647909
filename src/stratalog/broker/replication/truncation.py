"""Where the logs of a leader and a follower diverge (KIP-101, KIP-279). Pure.

A follower never truncates to its high watermark, which may lag behind what it has acknowledged. It asks the leader
about its last epoch instead: each answer removes records that the leader does not have, until both agree.
"""

from __future__ import annotations

from stratalog.storage.leader_epochs import LeaderEpochs

EpochEnd = tuple[int, int]
"""A leader epoch, and the offset after its last record."""


def diverging_epoch(epochs: LeaderEpochs, log_end: int, last_epoch: int, fetch_offset: int) -> EpochEnd | None:
    """Return, on the leader, the newest epoch up to `last_epoch` and its end, if the follower's log, which ends at
    `fetch_offset` with a record of `last_epoch`, diverges from the leader's; None if the leader's log continues it."""
    end = epochs.end_offset(last_epoch, log_end)
    if end is None:  # the leader has nothing of that epoch, nor of older ones
        first = epochs.entries[0][1] if epochs.entries else log_end
        end = last_epoch, first
    epoch, offset = end
    return end if epoch < last_epoch or offset < fetch_offset else None


def truncation_offset(epochs: LeaderEpochs, log_end: int, diverging: EpochEnd) -> int:
    """Return, on the follower, the offset to truncate to after the leader has answered with `diverging`."""
    epoch, leader_end = diverging
    own = epochs.end_offset(epoch, log_end)
    if own is None:  # all of the follower's epochs are newer
        return min(leader_end, log_end) if not epochs.entries else epochs.entries[0][1]
    own_epoch, own_end = own
    if own_epoch == epoch:
        return min(leader_end, own_end)
    return own_end  # the next fetch asks about own_epoch
