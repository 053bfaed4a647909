"""The settings of transactions, under Kafka's names, with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.settings import INT_MAX, Settings, boolean, integer, setting


@dataclass(frozen=True, kw_only=True)
class TransactionConfig(Settings):
    """What holds for every transaction of a broker."""

    kind: ClassVar[str] = "transactions"

    transaction_max_timeout_ms: int = setting(
        900_000, integer(1, INT_MAX), "longest transaction.timeout.ms that a producer may ask for"
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, integer(1, INT_MAX), "a transactional id that nobody has used for so long is forgotten"
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, integer(1, INT_MAX), "how often transactions are looked at for their timeout"
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, integer(1, INT_MAX), "how often transactional ids are looked at for expiry"
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        boolean(),
        "whether batches of older clients are checked to belong to an open transaction, which keeps late ones out",
        dynamic=True,
    )
    transaction_state_log_num_partitions: int = setting(
        50, integer(1, INT_MAX), "partitions of __transaction_state, when made"
    )
    transaction_state_log_segment_bytes: int = setting(
        100 * 1024**2, integer(1024**2, INT_MAX), "segment.bytes of __transaction_state, when made"
    )
