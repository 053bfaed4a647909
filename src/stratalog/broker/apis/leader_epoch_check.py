"""What a client takes for a partition's leader epoch, against what it is; and whether the partition can be used."""

from __future__ import annotations

from stratalog.broker.partition import Partition
from stratalog.protocol.error_codes import ErrorCode


def check_leader_epoch(partition: Partition, epoch: int) -> ErrorCode:
    """-1 where the client does not say. A partition that is offline is KAFKA_STORAGE_ERROR."""
    if partition.is_offline:
        return ErrorCode.kafka_storage_error
    if epoch in (-1, partition.leader_epoch):
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if epoch < partition.leader_epoch else ErrorCode.unknown_leader_epoch
