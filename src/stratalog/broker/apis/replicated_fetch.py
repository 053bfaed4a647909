"""The part of Fetch that is about partitions of a cluster: followers that fetch, errors that name the current leader,
and consumers that read from a follower in their rack (KIP-392)."""

from __future__ import annotations

from stratalog.broker.apis.leader_epoch_check import check_leader_epoch
from stratalog.broker.fetch_sessions import CachedPartition
from stratalog.broker.partition import Partition
from stratalog.broker.replication.partition import ReplicatedPartition
from stratalog.broker.replication.truncation import diverging_epoch
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.fetch import FetchedPartition

_NAMES_LEADER = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


class FetchingFollower:
    """The follower that fetches. Its progress is recorded once for each request, not each time the request reads."""

    __slots__ = ("broker_epoch", "is_recorded", "node_id")

    def __init__(self, node_id: int, broker_epoch: int) -> None:
        self.node_id = node_id
        self.broker_epoch = broker_epoch
        self.is_recorded = False


def is_idle_follower(partition: Partition, cached: CachedPartition, follower: FetchingFollower | None) -> bool:
    """Return whether a follower has everything and knows it. Record that it still has."""
    return (
        follower is not None
        and isinstance(partition, ReplicatedPartition)
        and partition.follower_is_idle(follower.node_id, follower.broker_epoch, cached)
    )


def refusal_of_replicated(
    partition: Partition, cached: CachedPartition, follower: FetchingFollower | None, rack: str | None
) -> FetchedPartition | None:
    """Return what to report instead of records, if there is something. Record a follower's progress. `rack` is the one
    that a consumer names. Followers serve consumers whose version has a rack, also if it is empty, as in Kafka."""
    index, current_epoch, offset, last_epoch, _, follower_start = cached.requested
    if not isinstance(partition, ReplicatedPartition):
        return FetchedPartition(index, int(ErrorCode.not_leader_or_follower))
    error = check_leader_epoch(partition, current_epoch)
    if rack is not None and follower is None:
        if error is ErrorCode.not_leader_or_follower:
            error = _check_nearby(partition, current_epoch, offset)
        elif rack and not error and (preferred := partition.preferred_replica(rack, offset)) is not None:
            end, stable = partition.high_watermark, partition.last_stable_offset
            start = partition.log.log_start_offset
            return FetchedPartition(index, 0, end, stable, start, preferred_replica=preferred)
    if error:
        leader = partition.current_leader() if error in _NAMES_LEADER else None
        return FetchedPartition(index, int(error), current_leader=leader)
    log = partition.log
    if last_epoch >= 0:
        if follower is None:
            diverging = diverging_epoch_of_client(partition, last_epoch, offset)
        else:
            diverging = diverging_epoch(log.leader_epochs, log.log_end_offset, last_epoch, offset)
        if diverging is not None:
            return FetchedPartition(
                index, 0, partition.high_watermark, -1, log.log_start_offset, diverging_epoch=diverging
            )
    if follower is None or follower.is_recorded:
        return None
    if not log.log_start_offset <= offset <= log.log_end_offset:
        code = int(ErrorCode.offset_out_of_range)
        return FetchedPartition(index, code, partition.high_watermark, -1, log.log_start_offset)
    if not partition.follower_fetched(follower.node_id, follower.broker_epoch, offset, follower_start):
        # It is no replica, or its view is newer than ours.
        return FetchedPartition(index, int(ErrorCode.unknown_leader_epoch))
    return None


def _check_nearby(partition: ReplicatedPartition, epoch: int, offset: int) -> ErrorCode:
    """Return the error for a consumer that reads from a follower, if there is one."""
    if not partition.serves_as_follower():
        return ErrorCode.not_leader_or_follower
    if epoch not in (-1, partition.leader_epoch):
        is_older = epoch < partition.leader_epoch
        return ErrorCode.fenced_leader_epoch if is_older else ErrorCode.unknown_leader_epoch
    return ErrorCode.offset_not_available if offset > partition.log.log_end_offset else ErrorCode.none


def diverging_epoch_of_client(partition: Partition, last_epoch: int, offset: int) -> tuple[int, int] | None:
    """Return where the client's log and this one diverge, as (epoch, its end offset), if the client is past that."""
    epoch_end = partition.log.leader_epochs.end_offset(last_epoch, partition.log.log_end_offset)
    if epoch_end is None:
        return None
    epoch, end = epoch_end
    return (epoch, end) if epoch < last_epoch or end < offset else None
