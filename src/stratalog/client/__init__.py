"""Producer, Consumer and Admin for any broker that speaks Kafka's protocol. They know the wire only, nothing of ours.

    from stratalog.client import Producer

What they raise is in stratalog.client.errors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stratalog.client.metadata import Node, PartitionInfo, TopicPartition

if TYPE_CHECKING:
    from stratalog.client.admin import Admin
    from stratalog.client.consumer import Consumer, ConsumerRecord, RebalanceListener
    from stratalog.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
    from stratalog.client.producer import Producer

_LAZY = {
    "Admin": "stratalog.client.admin",
    "Consumer": "stratalog.client.consumer",
    "ConsumerRecord": "stratalog.client.consumer",
    "OffsetAndMetadata": "stratalog.client.offsets",
    "OffsetAndTimestamp": "stratalog.client.offsets",
    "Producer": "stratalog.client.producer",
    "RebalanceListener": "stratalog.client.consumer",
}

__all__ = [
    "Admin",
    "Consumer",
    "ConsumerRecord",
    "Node",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionInfo",
    "Producer",
    "RebalanceListener",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    # A producer has no use for what a consumer imports, and the broker's own process for neither.
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
