"""Producer, Consumer and Admin for every broker that speaks Kafka's protocol. They use nothing but the wire protocol.

    from stratalog.client import Producer

Their exceptions are in stratalog.client.errors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stratalog.client.metadata import Node, PartitionInfo, TopicPartition

if TYPE_CHECKING:
    from stratalog.client.admin import Admin
    from stratalog.client.consumer import Consumer, ConsumerRecord, RebalanceListener
    from stratalog.client.offsets import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
    from stratalog.client.prepared_transaction import PreparedTransaction
    from stratalog.client.producer import Producer

_LAZY = {
    "Admin": "stratalog.client.admin",
    "Consumer": "stratalog.client.consumer",
    "ConsumerRecord": "stratalog.client.consumer",
    "GroupMetadata": "stratalog.client.offsets",
    "OffsetAndMetadata": "stratalog.client.offsets",
    "OffsetAndTimestamp": "stratalog.client.offsets",
    "PreparedTransaction": "stratalog.client.prepared_transaction",
    "Producer": "stratalog.client.producer",
    "RebalanceListener": "stratalog.client.consumer",
}

__all__ = [
    "Admin",
    "Consumer",
    "ConsumerRecord",
    "GroupMetadata",
    "Node",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionInfo",
    "PreparedTransaction",
    "Producer",
    "RebalanceListener",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    # A producer does not need the modules that a consumer imports, and the broker's own process needs neither.
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
