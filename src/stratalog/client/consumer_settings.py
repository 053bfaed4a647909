"""Settings of a consumer, with Kafka's names and defaults. The limit of prefetching has librdkafka's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stratalog.client.groups.assignors import assignors_of
from stratalog.client.offset_reset import offset_reset
from stratalog.client.settings import CommonOptions, CommonSettings
from stratalog.errors import ConfigError
from stratalog.settings import (
    INT_MAX,
    Refused,
    Values,
    ValueType,
    boolean,
    integer,
    list_of,
    nullable,
    one_of,
    setting,
    text,
)

Deserializer = Callable[[bytes], Any]
MIB = 1024 * 1024


class ConsumerOptions(CommonOptions, total=False):
    """Keyword arguments of Consumer's constructor, for type checkers."""

    group_id: str | None
    group_instance_id: str | None
    group_protocol: str
    group_remote_assignor: str | None
    client_rack: str
    partition_assignment_strategy: str | list[str] | tuple[str, ...]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    auto_offset_reset: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    queued_max_messages_kbytes: int
    max_inflated_batch_bytes: int
    check_crcs: bool
    isolation_level: str
    exclude_internal_topics: bool
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None


def deserializer() -> Values:
    def check(name: str, value: object) -> object:
        if not callable(value):
            raise ConfigError(f"{name} is {value!r}; it must be a function that takes bytes")
        return value

    return Values(ValueType.CLASS, check, "a function that takes bytes")


def assignor_names() -> Values:
    names = list_of(at_least=1)

    def check(name: str, value: object) -> object:
        checked = names.check(name, value)
        assert isinstance(checked, tuple)
        return tuple(assignor.name for assignor in assignors_of(checked))

    return Values(ValueType.LIST, check, "list of: range, roundrobin, sticky, cooperative-sticky")


_REFUSED = {
    "key.deserializer.encoding": Refused("set key.deserializer to a function"),
    "value.deserializer.encoding": Refused("set value.deserializer to a function"),
    "group.protocol.type": Refused("a consumer's groups are of type consumer", "consumer"),
    "allow.auto.create.topics": Refused("a consumer creates no topics: create them first", "false"),
    "enable.auto.offset.store": Refused("the position follows what was polled; commit other offsets by hand", "true"),
    "enable.partition.eof": Refused("compare position() with end_offsets(), or call lag()", "false"),
    "queued.min.messages": Refused("set queued.max.messages.kbytes"),
    "fetch.message.max.bytes": Refused("it is librdkafka's; set max.partition.fetch.bytes"),
    "fetch.wait.max.ms": Refused("it is librdkafka's; set fetch.max.wait.ms"),
    "transactional.id": Refused("it is a producer's"),
}


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(CommonSettings):
    kind: ClassVar[str] = "a consumer"

    group_id: str | None = setting(None, nullable(text()), "the group to join, and to commit offsets for")
    group_instance_id: str | None = setting(
        None, nullable(text()), "makes it a static member: an absence of up to session.timeout.ms causes no rebalance"
    )
    group_protocol: str = setting("classic", one_of("classic", "consumer"), "consumer: KIP-848, the broker assigns")
    group_remote_assignor: str | None = setting(
        None, nullable(text()), "the broker's assignor to use, with group.protocol=consumer"
    )
    client_rack: str = setting("", text(), "the rack of this client, to fetch from a nearby replica")
    partition_assignment_strategy: tuple[str, ...] = setting(
        ("range", "cooperative-sticky"),
        assignor_names(),
        "assignors of a classic group, the preferred one first",
    )
    session_timeout_ms: int = setting(
        45_000, integer(1, INT_MAX), "time without a heartbeat after which a member is removed from its group"
    )
    heartbeat_interval_ms: int = setting(3000, integer(1, INT_MAX), "interval of the heartbeats in a classic group")
    max_poll_interval_ms: int = setting(
        300_000, integer(1, INT_MAX), "time without a poll after which the consumer leaves its group"
    )
    max_poll_records: int = setting(500, integer(1, INT_MAX), "the most records that one poll returns")
    auto_offset_reset: str = setting(
        "latest", offset_reset(), "where to begin if there is no committed offset, or it is out of range"
    )
    enable_auto_commit: bool = setting(True, boolean(), "commit polled records, every auto.commit.interval.ms")
    auto_commit_interval_ms: int = setting(5000, integer(0, INT_MAX), "interval of automatic commits")
    fetch_min_bytes: int = setting(1, integer(0, INT_MAX), "amount of data that a broker waits for before it responds")
    fetch_max_bytes: int = setting(50 * MIB, integer(0, INT_MAX), "target limit of a fetch response")
    fetch_max_wait_ms: int = setting(500, integer(0, INT_MAX), "how long a broker waits for fetch.min.bytes")
    max_partition_fetch_bytes: int = setting(MIB, integer(0, INT_MAX), "limit for one partition in a fetch response")
    queued_max_messages_kbytes: int = setting(
        65_536, integer(1, 2_097_151), "limit of prefetching, in KiB; one response per broker is always allowed"
    )
    max_inflated_batch_bytes: int = setting(
        256 * MIB, integer(1024, INT_MAX), "limit of a batch's decompressed size; a larger batch is an error"
    )
    check_crcs: bool = setting(True, boolean(), "check the checksum of each batch")
    isolation_level: str = setting(
        "read_uncommitted",
        one_of("read_uncommitted", "read_committed"),
        "read_committed: skip the records of aborted and open transactions",
    )
    exclude_internal_topics: bool = setting(True, boolean(), "a pattern does not match internal topics")
    key_deserializer: Deserializer | None = setting(  # noqa: RUF009 - a field, as the others
        None, nullable(deserializer()), "converts the bytes of a key"
    )
    value_deserializer: Deserializer | None = setting(  # noqa: RUF009
        None, nullable(deserializer()), "converts the bytes of a value"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_protocol == "classic" and self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat.interval.ms is {self.heartbeat_interval_ms}; it must be less than session.timeout.ms, "
                f"{self.session_timeout_ms}; a third of it is best"
            )
        if self.request_timeout_ms <= self.fetch_max_wait_ms:
            raise ConfigError(
                f"fetch.max.wait.ms is {self.fetch_max_wait_ms}; it must be less than request.timeout.ms, "
                f"{self.request_timeout_ms}"
            )
        if self.receive_message_max_bytes < self.fetch_max_bytes:
            raise ConfigError(
                f"fetch.max.bytes is {self.fetch_max_bytes}; it must not exceed receive.message.max.bytes, "
                f"{self.receive_message_max_bytes}, so that the consumer accepts a response of that size"
            )
        if self.group_instance_id is not None and self.group_id is None:
            raise ConfigError(f"group.instance.id is {self.group_instance_id!r} and group.id is not set; set both")

    @classmethod
    def also_refused(cls) -> Mapping[str, Refused]:
        return _REFUSED
