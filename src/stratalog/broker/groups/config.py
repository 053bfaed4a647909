"""The settings of groups and committed offsets, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.errors import ConfigError
from stratalog.settings import INT_MAX, LONG_MAX, Settings, integer, list_of, one_of, setting, underscored


@dataclass(frozen=True, kw_only=True)
class GroupConfig(Settings):
    """The settings of all groups of a broker."""

    kind: ClassVar[str] = "groups"

    group_min_session_timeout_ms: int = setting(
        6_000, integer(1, INT_MAX), "shortest session timeout that a member may request"
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, integer(1, INT_MAX), "longest session timeout that a member may request"
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000, integer(0, INT_MAX), "how long an empty group waits for more members before its first generation"
    )
    group_max_size: int = setting(INT_MAX, integer(1, INT_MAX), "members that a classic group may have")
    group_consumer_session_timeout_ms: int = setting(
        45_000, integer(1, INT_MAX), "a KIP-848 member that sends no heartbeat for this time is removed"
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, integer(1, INT_MAX), "the interval of heartbeats that the broker gives to KIP-848 members"
    )
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, integer(1, INT_MAX), "shortest consumer.session.timeout.ms that a group may set for itself"
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, integer(1, INT_MAX), "longest consumer.session.timeout.ms that a group may set for itself"
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, integer(1, INT_MAX), "shortest consumer.heartbeat.interval.ms that a group may set for itself"
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, integer(1, INT_MAX), "longest consumer.heartbeat.interval.ms that a group may set for itself"
    )
    group_consumer_max_size: int = setting(INT_MAX, integer(1, INT_MAX), "members that a KIP-848 group may have")
    group_consumer_assignors: tuple[str, ...] = setting(
        ("uniform", "range"),
        list_of(one_of("uniform", "range"), at_least=1),
        "server-side assignors of KIP-848 groups; the first is the default for groups whose members name none",
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        one_of("disabled", "upgrade", "downgrade", "bidirectional"),
        "how a group with members may change its protocol: from classic to KIP-848 (upgrade), or back (downgrade); "
        "empty groups may always change it",
    )
    offset_metadata_max_bytes: int = setting(4096, integer(0, INT_MAX), "longest metadata text of a committed offset")
    offsets_retention_minutes: int = setting(
        10_080, integer(1, INT_MAX), "how long the offsets of an empty group are kept"
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, integer(1), "how often the broker looks for expired offsets"
    )
    offsets_topic_num_partitions: int = setting(
        50, integer(1, INT_MAX), "partitions of __consumer_offsets, when it is created"
    )
    offsets_topic_segment_bytes: int = setting(
        100 * 1024**2, integer(256, INT_MAX), "segment.bytes of __consumer_offsets, when it is created"
    )

    stratalog_max_coordinator_state_bytes: int = setting(
        512 * 1024**2,
        integer(1024**2, LONG_MAX),
        "limit of the memory for groups, committed offsets and transactional ids together; at three quarters of it new "
        "members and ids are refused (GROUP_MAX_SIZE_REACHED, POLICY_VIOLATION), at the limit also offsets and "
        "assignments of existing members (COORDINATOR_NOT_AVAILABLE). A member takes 2 KB and its metadata, an offset "
        "half a kilobyte",
        dynamic=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for limit in (
            "group.{}.session.timeout.ms",
            "group.consumer.{}.session.timeout.ms",
            "group.consumer.{}.heartbeat.interval.ms",
        ):
            least, most = (getattr(self, underscored(limit.format(each))) for each in ("min", "max"))
            if most < least:
                raise ConfigError(
                    f"{limit.format('max')} is {most}; it must be at least {limit.format('min')}, which is {least}"
                )
        if self.group_consumer_session_timeout_ms <= self.group_consumer_heartbeat_interval_ms:
            raise ConfigError(
                f"group.consumer.session.timeout.ms is {self.group_consumer_session_timeout_ms}; it must be more than "
                f"group.consumer.heartbeat.interval.ms, which is {self.group_consumer_heartbeat_interval_ms}"
            )
