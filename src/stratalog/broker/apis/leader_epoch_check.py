"""Checks that a partition is online and that a client knows its current leader epoch."""

from __future__ import annotations

from stratalog.broker.partition import Partition
from stratalog.protocol.error_codes import ErrorCode


def check_leader_epoch(partition: Partition, epoch: int) -> ErrorCode:
    """Compare a client's leader epoch with the partition's; -1 stands for any. An offline partition gets
    KAFKA_STORAGE_ERROR."""
    if partition.is_offline:
        return ErrorCode.kafka_storage_error
    if epoch in (-1, partition.leader_epoch):
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if epoch < partition.leader_epoch else ErrorCode.unknown_leader_epoch
