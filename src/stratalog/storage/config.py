"""Settings of a log and of a data directory, under Kafka's names, typed and checked.

`LogConfig(segment_bytes=...)` in Python, `LogConfig.parse({"segment.bytes": "1048576"})` from text. A name that does
not exist and a value of the wrong kind are refused with the name in the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stratalog.settings import INT_MAX, LONG_MAX, Refused, Settings, integer, one_of, setting


@dataclass(frozen=True, kw_only=True)
class LogConfig(Settings):
    """The settings of one log (a topic's, in Kafka's terms)."""

    kind: ClassVar[str] = "a log"

    segment_bytes: int = setting(1024**3, integer(256, INT_MAX), "roll a segment that would grow past this")
    segment_ms: int = setting(7 * 86_400_000, integer(1), "roll a segment whose first record is older than this")
    segment_jitter_ms: int = setting(0, integer(0), "up to this much is taken off segment.ms, per segment")
    segment_index_bytes: int = setting(10 * 1024**2, integer(64, INT_MAX), "size of an index when preallocated")
    index_interval_bytes: int = setting(4096, integer(0, INT_MAX), "log bytes between two index entries")
    max_message_bytes: int = setting(1024**2 + 12, integer(0, INT_MAX), "largest batch that is taken")
    message_timestamp_type: str = setting(
        "CreateTime", one_of("CreateTime", "LogAppendTime"), "who sets the records' time"
    )
    cleanup_policy: str = setting("delete", one_of("delete"), "what happens to old segments")
    retention_ms: int = setting(7 * 86_400_000, integer(-1), "delete segments older than this; -1: never")
    retention_bytes: int = setting(-1, integer(-1), "delete old segments while the log is larger; -1: never")
    file_delete_delay_ms: int = setting(60_000, integer(0), "time from a segment's deletion to its files'")
    producer_id_expiration_ms: int = setting(
        86_400_000, integer(1), "forget an idempotent producer that wrote nothing for so long"
    )
    flush_messages: int = setting(LONG_MAX, integer(1), "flush when this many records are not flushed")
    flush_ms: int = setting(LONG_MAX, integer(0), "flush when the last flush is this long ago")

    @classmethod
    def refused(cls) -> Mapping[str, Refused]:
        return {
            name: Refused("it belongs to a data directory; give it as directory_config=")
            for name in DirectoryConfig.names()
        }


@dataclass(frozen=True, kw_only=True)
class DirectoryConfig(Settings):
    """How often the housekeeper of a data directory looks after its logs."""

    kind: ClassVar[str] = "a data directory"

    log_retention_check_interval_ms: int = setting(300_000, integer(1), "how often retention is applied")
    log_flush_scheduler_interval_ms: int = setting(1_000, integer(1), "how often flush.ms is looked at")
    log_flush_offset_checkpoint_interval_ms: int = setting(60_000, integer(1), "how often recovery points are saved")
    max_open_segments: int = setting(
        4096, integer(1), "sealed segments that stay open (at most half of ulimit -n); others are opened on use"
    )
