"""Settings of a log and of a data directory, under Kafka's names, typed and checked.

`LogConfig(segment_bytes=...)` in Python, `LogConfig.parse({"segment.bytes": "1048576"})` from text. Every topic setting
of Kafka 4.1 either works or is refused with the reason. A refused setting is accepted only with its default value,
because that value is in effect anyway.
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
NO_REPLICATION = "the replication between brokers is not throttled yet"
NO_OLD_FORMATS = "Kafka 4 has removed it; batches are stored with magic 2 for all clients"

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
    """The settings of one log. Kafka calls them topic settings."""

    kind: ClassVar[str] = "a log"

    segment_bytes: int = setting(1024**3, integer(256, INT_MAX), "roll a segment that would grow past this")
    segment_ms: int = setting(_WEEK_MS, integer(1), "roll a segment whose first record is older than this")
    segment_jitter_ms: int = setting(0, integer(0), "largest random time that is subtracted from segment.ms")
    segment_index_bytes: int = setting(10 * 1024**2, integer(64, INT_MAX), "size of an index when preallocated")
    index_interval_bytes: int = setting(4096, integer(0, INT_MAX), "log bytes between two index entries")
    preallocate: bool = setting(
        False,
        boolean(),
        "allocate disk space for a whole segment at its first append; otherwise it is allocated in steps",
    )
    max_message_bytes: int = setting(
        1024**2 + 12, integer(0, INT_MAX), "largest batch that is accepted, as sent and as compressed again"
    )
    message_timestamp_type: str = setting(
        "CreateTime", one_of("CreateTime", "LogAppendTime"), "timestamps are set by the producer or by the log"
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX, integer(0), "refuse records older than this when they arrive (CreateTime only)"
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000, integer(0), "refuse records dated further than this into the future (CreateTime only)"
    )
    compression_type: str = setting(
        "producer",
        one_of(*COMPRESSION_TYPES),
        "codec of stored batches; batches with another codec are compressed again",
    )
    compression_gzip_level: int = setting(-1, _gzip_level(), "level if compression.type is gzip")
    compression_lz4_level: int = setting(9, integer(1, 17), "level if compression.type is lz4")
    compression_zstd_level: int = setting(3, integer(-131072, 22), "level if compression.type is zstd")
    cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        list_of(one_of("delete", "compact")),
        "delete old segments, or compact: keep only the last record of each key; if empty, neither",
    )
    retention_ms: int = setting(_WEEK_MS, integer(-1), "delete segments older than this; -1 for no limit")
    retention_bytes: int = setting(-1, integer(-1), "delete the oldest segments of a larger log; -1 for no limit")
    file_delete_delay_ms: int = setting(60_000, integer(0), "delay before the files of a deleted segment are removed")
    delete_retention_ms: int = setting(
        86_400_000, integer(0), "how long a compacted log keeps a tombstone after the first compaction that reads it"
    )
    min_compaction_lag_ms: int = setting(0, integer(0), "compaction keeps every record at least this long")
    max_compaction_lag_ms: int = setting(LONG_MAX, integer(1), "compact a log whose oldest dirty record is older")
    min_cleanable_dirty_ratio: float = setting(
        0.5, decimal(0, 1), "compact when more than this part of the log was written since the last compaction"
    )
    flush_messages: int = setting(LONG_MAX, integer(1), "flush when this many records are not flushed")
    flush_ms: int = setting(LONG_MAX, integer(0), "flush when the last flush is this long ago")
    min_insync_replicas: int = setting(
        1,
        integer(1, INT_MAX),
        "replicas that must have a batch before acks=all is answered; a partition with fewer replicas in sync refuses "
        "such requests (NOT_ENOUGH_REPLICAS)",
    )
    unclean_leader_election_enable: bool = setting(
        False,
        boolean(),
        "whether a replica that may lack committed records may lead, if no other replica can",
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, integer(1), "forget an idempotent producer that wrote nothing for this long"
    )

    @classmethod
    def refused(cls) -> Mapping[str, Refused]:
        elsewhere = Refused("it is a setting of a data directory; pass it in directory_config=")
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
    """The settings of a data directory: how often its housekeeper runs, and how many segments stay open."""

    kind: ClassVar[str] = "a data directory"

    log_retention_check_interval_ms: int = setting(300_000, integer(1), "how often retention is applied")
    log_flush_scheduler_interval_ms: int = setting(1_000, integer(1), "how often flush.ms is checked")
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
