"""Checks that this broker serves a partition and that a client knows its current leader epoch."""

from __future__ import annotations

from stratalog.broker.partition import Partition
from stratalog.protocol.error_codes import ErrorCode


def check_leader_epoch(partition: Partition, epoch: int) -> ErrorCode:
    """Compare a client's leader epoch with the partition's; -1 stands for any. A partition whose log can't be opened
    gets KAFKA_STORAGE_ERROR, one that this broker does not lead NOT_LEADER_OR_FOLLOWER."""
    unavailable = partition.unavailable
    if unavailable:
        return unavailable
    if epoch in (-1, partition.leader_epoch):
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if epoch < partition.leader_epoch else ErrorCode.unknown_leader_epoch
