"""Settings of a log and of a data directory, under Kafka's names, typed and checked.

`LogConfig(segment_bytes=...)` in Python, `LogConfig.parse({"segment.bytes": "1048576"})` from text. All settings of a
topic that Kafka 4.1 has are known here: each works, or is refused with the reason. A refused one is taken where its
value is the one that holds anyway (Kafka's default), since that promises nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stratalog.errors import ConfigError
from stratalog.settings import (
    INT_MAX,
    LONG_MAX,
    Refused,
    Settings,
    Values,
    ValueType,
    boolean,
    decimal,
    integer,
    list_of,
    one_of,
    setting,
)

_WEEK_MS = 7 * 86_400_000

NO_TIERED_STORAGE = "tiered storage is not available yet; all segments stay in the data directory"
NO_REPLICATION = "there is one replica of each partition, so nothing is replicated that could be throttled"
NO_OLD_FORMATS = "Kafka 4 has removed it; batches are written with magic 2, whatever the client's age"

COMPRESSION_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")


def _gzip_level() -> Values:
    levels = integer(-1, 9)

    def check(name: str, value: object) -> object:
        if (level := levels.check(name, value)) == 0:
            raise ConfigError(f"{name} is 0; it must be 1 to 9, or -1 for the codec's default")
        return level

    return Values(levels.type, check, "1 to 9, or -1: the codec's default")


@dataclass(frozen=True, kw_only=True)
class LogConfig(Settings):
    """The settings of one log (a topic's, in Kafka's terms)."""

    kind: ClassVar[str] = "a log"

    segment_bytes: int = setting(1024**3, integer(256, INT_MAX), "roll a segment that would grow past this")
    segment_ms: int = setting(_WEEK_MS, integer(1), "roll a segment whose first record is older than this")
    segment_jitter_ms: int = setting(0, integer(0), "up to this much is taken off segment.ms, per segment")
    segment_index_bytes: int = setting(10 * 1024**2, integer(64, INT_MAX), "size of an index when preallocated")
    index_interval_bytes: int = setting(4096, integer(0, INT_MAX), "log bytes between two index entries")
    preallocate: bool = setting(
        False,
        boolean(),
        "reserve disk space for a whole segment when it begins; without it, space is reserved in steps",
    )
    max_message_bytes: int = setting(
        1024**2 + 12, integer(0, INT_MAX), "largest batch that is taken, as sent and as re-compressed"
    )
    message_timestamp_type: str = setting(
        "CreateTime", one_of("CreateTime", "LogAppendTime"), "who sets the records' time: the producer, or the log"
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX, integer(0), "refuse records older than this when they arrive (CreateTime only)"
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000, integer(0), "refuse records dated further than this into the future (CreateTime only)"
    )
    compression_type: str = setting(
        "producer", one_of(*COMPRESSION_TYPES), "codec of the stored batches; a batch with another one is re-compressed"
    )
    compression_gzip_level: int = setting(-1, _gzip_level(), "level where compression.type is gzip")
    compression_lz4_level: int = setting(9, integer(1, 17), "level where compression.type is lz4")
    compression_zstd_level: int = setting(3, integer(-131072, 22), "level where compression.type is zstd")
    cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        list_of(one_of("delete", "compact")),
        "what happens to old records: segments are deleted, or the last record of each key stays; empty: nothing",
    )
    retention_ms: int = setting(_WEEK_MS, integer(-1), "delete segments older than this; -1: never")
    retention_bytes: int = setting(-1, integer(-1), "delete old segments while the log is larger; -1: never")
    file_delete_delay_ms: int = setting(60_000, integer(0), "time from a segment's deletion to its files'")
    delete_retention_ms: int = setting(
        86_400_000, integer(0), "a compacted log keeps tombstones for so long after compaction first met them"
    )
    min_compaction_lag_ms: int = setting(0, integer(0), "a record stays at least for so long, whatever its key")
    max_compaction_lag_ms: int = setting(LONG_MAX, integer(1), "a record is looked at by compaction after so long")
    min_cleanable_dirty_ratio: float = setting(
        0.5, decimal(0, 1), "compact when more than this part of the log is new since the last time"
    )
    flush_messages: int = setting(LONG_MAX, integer(1), "flush when this many records are not flushed")
    flush_ms: int = setting(LONG_MAX, integer(0), "flush when the last flush is this long ago")
    min_insync_replicas: int = setting(
        1,
        integer(1, INT_MAX),
        "replicas that must have a batch before acks=all is answered; there is one, so with 2 or more every acks=all "
        "request is refused (NOT_ENOUGH_REPLICAS), as Kafka does",
    )
    unclean_leader_election_enable: bool = setting(
        False,
        boolean(),
        "whether a replica that lags may lead; with one replica there is none that could, so both values hold",
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, integer(1), "forget an idempotent producer that wrote nothing for so long"
    )

    @classmethod
    def refused(cls) -> Mapping[str, Refused]:
        elsewhere = Refused("it belongs to a data directory; give it as directory_config=")
        return REFUSED | dict.fromkeys(DirectoryConfig.names(), elsewhere)


REFUSED: dict[str, Refused] = {
    "remote.storage.enable": Refused(NO_TIERED_STORAGE, "false", ValueType.BOOLEAN),
    "remote.log.copy.disable": Refused(NO_TIERED_STORAGE, "false", ValueType.BOOLEAN),
    "remote.log.delete.on.disable": Refused(NO_TIERED_STORAGE, "false", ValueType.BOOLEAN),
    "local.retention.ms": Refused(NO_TIERED_STORAGE, "-2", ValueType.LONG),
    "local.retention.bytes": Refused(NO_TIERED_STORAGE, "-2", ValueType.LONG),
    "leader.replication.throttled.replicas": Refused(NO_REPLICATION, "", ValueType.LIST),
    "follower.replication.throttled.replicas": Refused(NO_REPLICATION, "", ValueType.LIST),
    "message.format.version": Refused(NO_OLD_FORMATS),
    "message.downconversion.enable": Refused(NO_OLD_FORMATS),
    "message.timestamp.difference.max.ms": Refused(
        "Kafka 4 has removed it; use message.timestamp.before.max.ms and message.timestamp.after.max.ms"
    ),
}


@dataclass(frozen=True, kw_only=True)
class DirectoryConfig(Settings):
    """How often the housekeeper of a data directory looks after its logs."""

    kind: ClassVar[str] = "a data directory"

    log_retention_check_interval_ms: int = setting(300_000, integer(1), "how often retention is applied")
    log_flush_scheduler_interval_ms: int = setting(1_000, integer(1), "how often flush.ms is looked at")
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, integer(1, INT_MAX), "how often recovery points are saved"
    )
    max_open_segments: int = setting(
        4096, integer(1), "sealed segments that stay open (at most a quarter of ulimit -n); others are opened on use"
    )
    stratalog_max_producer_ids_per_partition: int = setting(
        100_000,
        integer(1, INT_MAX),
        "idempotent producers that a partition remembers, about a kilobyte each. Beyond it, a new producer replaces "
        "the one that wrote longest ago, if that was 15 minutes ago or more and it has no transaction open; else the "
        "new one is refused (POLICY_VIOLATION)",
    )
