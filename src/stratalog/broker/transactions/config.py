"""The settings of transactions, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.settings import INT_MAX, Settings, boolean, integer, setting


@dataclass(frozen=True, kw_only=True)
class TransactionConfig(Settings):
    """The settings of all transactions of a broker."""

    kind: ClassVar[str] = "transactions"

    transaction_max_timeout_ms: int = setting(
        900_000, integer(1, INT_MAX), "longest transaction.timeout.ms that a producer may request"
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, integer(1, INT_MAX), "how long the broker remembers a transactional id that is not used"
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, integer(1, INT_MAX), "how often the broker looks for transactions that exceed their timeout"
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, integer(1, INT_MAX), "how often the broker looks for expired transactional ids"
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        boolean(),
        "whether batches of older clients must belong to an open transaction; this refuses delayed batches",
        dynamic=True,
    )
    transaction_state_log_num_partitions: int = setting(
        50, integer(1, INT_MAX), "partitions of __transaction_state, when it is created"
    )
    transaction_state_log_segment_bytes: int = setting(
        100 * 1024**2, integer(1024**2, INT_MAX), "segment.bytes of __transaction_state, when it is created"
    )
