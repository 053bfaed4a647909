"""A broker's defaults for its topics' settings, under the names that Kafka gives them on a broker.

A topic's `retention.ms` comes, in this order, from the topic itself, the broker's `log.retention.ms`,
`log.retention.minutes`, `log.retention.hours`. SYNONYMS has these chains. They can be changed while the broker runs,
except those in hours and minutes, which are fixed in Kafka too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from stratalog.errors import ConfigError
from stratalog.settings import INT_MAX, Settings, integer, nullable, setting, unknown_setting
from stratalog.storage.config import LogConfig

_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000
_OF_A_LOG = {described.name: described for described in LogConfig.described()}


def _default_of(topic_setting: str) -> Any:
    described = _OF_A_LOG[topic_setting]
    return setting(described.default, described.values, f"topics' `{described.name}`: {described.doc}", dynamic=True)


def _first_choice_for(topic_setting: str) -> Any:
    described = _OF_A_LOG[topic_setting]
    return setting(None, nullable(described.values), f"topics' `{described.name}`: {described.doc}", dynamic=True)


@dataclass(frozen=True, kw_only=True)
class TopicDefaults(Settings):
    """The settings of a broker that are defaults for its topics."""

    kind: ClassVar[str] = "a broker"

    log_segment_bytes: int = _default_of("segment.bytes")
    log_roll_ms: int | None = _first_choice_for("segment.ms")
    log_roll_hours: int = setting(168, integer(1, INT_MAX), "topics' `segment.ms` in hours, if log.roll.ms is not set")
    log_roll_jitter_ms: int | None = _first_choice_for("segment.jitter.ms")
    log_roll_jitter_hours: int = setting(
        0, integer(0, INT_MAX), "topics' `segment.jitter.ms` in hours, if log.roll.jitter.ms is not set"
    )
    log_index_size_max_bytes: int = _default_of("segment.index.bytes")
    log_index_interval_bytes: int = _default_of("index.interval.bytes")
    log_preallocate: bool = _default_of("preallocate")
    message_max_bytes: int = _default_of("max.message.bytes")
    log_message_timestamp_type: str = _default_of("message.timestamp.type")
    log_message_timestamp_before_max_ms: int = _default_of("message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = _default_of("message.timestamp.after.max.ms")
    compression_type: str = _default_of("compression.type")
    compression_gzip_level: int = _default_of("compression.gzip.level")
    compression_lz4_level: int = _default_of("compression.lz4.level")
    compression_zstd_level: int = _default_of("compression.zstd.level")
    log_cleanup_policy: tuple[str, ...] = _default_of("cleanup.policy")
    log_cleaner_delete_retention_ms: int = _default_of("delete.retention.ms")
    log_cleaner_min_compaction_lag_ms: int = _default_of("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = _default_of("max.compaction.lag.ms")
    log_cleaner_min_cleanable_ratio: float = _default_of("min.cleanable.dirty.ratio")
    log_retention_ms: int | None = _first_choice_for("retention.ms")
    log_retention_minutes: int | None = setting(
        None, nullable(integer(-1, INT_MAX)), "topics' `retention.ms` in minutes, if log.retention.ms is not set"
    )
    log_retention_hours: int = setting(
        168, integer(-1, INT_MAX), "topics' `retention.ms` in hours, if log.retention.ms and .minutes are not set"
    )
    log_retention_bytes: int = _default_of("retention.bytes")
    log_segment_delete_delay_ms: int = _default_of("file.delete.delay.ms")
    log_flush_interval_messages: int = _default_of("flush.messages")
    log_flush_interval_ms: int | None = _first_choice_for("flush.ms")
    min_insync_replicas: int = _default_of("min.insync.replicas")
    unclean_leader_election_enable: bool = _default_of("unclean.leader.election.enable")
    producer_id_expiration_ms: int = setting(
        86_400_000,
        integer(1, INT_MAX),
        "forget an idempotent producer that wrote nothing to a partition for this long",
        dynamic=True,
    )

    def log_config(self) -> LogConfig:
        """Return the settings of a topic without settings of its own."""
        values = self.settings()
        chosen: dict[str, object] = {"producer.id.expiration.ms": self.producer_id_expiration_ms}
        for topic_setting, synonyms in SYNONYMS.items():
            for synonym in synonyms:
                value = values.get(synonym.name)
                if value is not None:
                    chosen[topic_setting] = _in_milliseconds(synonym, value)
                    break
        return LogConfig.parse(chosen)


class Synonym(NamedTuple):
    """A broker setting from which a topic setting comes. `unit_ms` is its unit in milliseconds, if it is a time."""

    name: str
    unit_ms: int | None = None


def _in_milliseconds(synonym: Synonym, value: Any) -> object:
    if synonym.unit_ms is None:
        return value
    if value == 0 and "retention" in synonym.name:
        raise ConfigError(f"{synonym.name} is 0; it must be 1 or more, or -1 to keep everything")
    return value * synonym.unit_ms if value >= 0 else -1


SYNONYMS: Mapping[str, tuple[Synonym, ...]] = {
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS)),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "preallocate": (Synonym("log.preallocate"),),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
    "compression.type": (Synonym("compression.type"),),
    "compression.gzip.level": (Synonym("compression.gzip.level"),),
    "compression.lz4.level": (Synonym("compression.lz4.level"),),
    "compression.zstd.level": (Synonym("compression.zstd.level"),),
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", _MINUTE_MS),
        Synonym("log.retention.hours", _HOUR_MS),
    ),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"),),
    "min.insync.replicas": (Synonym("min.insync.replicas"),),
    "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
}

# In Kafka, this setting of a log is a broker setting, not a topic setting.
TOPIC_SETTINGS = frozenset(_OF_A_LOG) - {"producer.id.expiration.ms"}


def topic_config(defaults: LogConfig, overrides: Mapping[str, object]) -> LogConfig:
    """Return the settings of a topic's logs: the topic's own, and else the broker's. Raises ConfigError."""
    for name in overrides:
        if name in _OF_A_LOG and name not in TOPIC_SETTINGS:
            raise ConfigError(f"{name} is not a setting of a topic; set it for the broker")
        if name not in TOPIC_SETTINGS and name not in LogConfig.refused():
            raise unknown_setting(name, "a topic", sorted(TOPIC_SETTINGS))
    return defaults.override(overrides)
