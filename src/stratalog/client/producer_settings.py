"""Settings of a producer, with Kafka's names. Defaults are the Java client's, but for batch.size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stratalog.client.settings import CommonOptions, CommonSettings
from stratalog.errors import ConfigError
from stratalog.records.format import Codec
from stratalog.settings import (
    INT_MAX,
    Refused,
    Values,
    ValueType,
    boolean,
    integer,
    nullable,
    one_of,
    setting,
)

Serializer = Callable[[Any], bytes | None]

IDEMPOTENT_IN_FLIGHT = 5  # batches that a broker remembers of a producer: more could not be told from repetitions
ALL = -1
INT16_MAX = 2**15 - 1


class ProducerOptions(CommonOptions, total=False):
    """What Producer's constructor takes beside the servers, for type checkers."""

    acks: int | str
    batch_size: int
    buffer_memory: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delivery_timeout_ms: int
    enable_idempotence: bool
    linger_ms: int
    max_block_ms: int
    max_in_flight_requests_per_connection: int
    max_request_size: int
    retries: int
    transaction_timeout_ms: int
    transactional_id: str | None
    key_serializer: Serializer | None
    value_serializer: Serializer | None


def acknowledgements() -> Values:
    def check(name: str, value: object) -> int:
        known = {"all": ALL, "-1": ALL, "0": 0, "1": 1}
        if isinstance(value, bool) or str(value) not in known:
            raise ConfigError(f"{name} is {value!r}; it must be 0, 1 or all")
        return known[str(value)]

    return Values(ValueType.STRING, check, "0, 1, all")


def transactional_ids() -> Values:
    def check(name: str, value: object) -> str:
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r}; it must be a name that no other producer has at the same time")
        try:
            size = len(value.encode())
        except UnicodeEncodeError as error:
            raise ConfigError(f"{name} is {value!r}, which UTF-8 can't hold; choose another name") from error
        if size > INT16_MAX:
            raise ConfigError(f"{name} has {size} bytes; it must not have more than {INT16_MAX}")
        return value

    return Values(ValueType.STRING, check, "a name")


def serializer() -> Values:
    def check(name: str, value: object) -> object:
        if value is not None and not callable(value):
            raise ConfigError(f"{name} is {value!r}; it must be something to call with the value, which returns bytes")
        return value

    return Values(ValueType.CLASS, check, "a callable, or nothing")


_BY_KEY = Refused("keys go where Java's murmur2 says; give send() a partition to choose another")
_REFUSED = {
    "transaction.two.phase.commit.enable": Refused(
        "use prepare_transaction(), which keeps a transaction open for whoever is to end it", "false"
    ),
    "partitioner.class": _BY_KEY,
    "partitioner": Refused("it is librdkafka's; keys go where Java's murmur2 says", "murmur2_random"),
    "partitioner.ignore.keys": Refused("leave the key out, or give send() a partition", "false"),
    "partitioner.adaptive.partitioning.enable": Refused("slow partitions always get fewer keyless records", "true"),
    "partitioner.availability.timeout.ms": Refused("partitions without a leader get no keyless records", "0"),
    "metadata.max.idle.ms": Refused("topics that were sent to stay known until the producer is closed"),
    "queue.buffering.max.ms": Refused("it is librdkafka's; set linger.ms"),
    "queue.buffering.max.messages": Refused("it is librdkafka's; set buffer.memory"),
    "queue.buffering.max.kbytes": Refused("it is librdkafka's; set buffer.memory, in bytes"),
    "batch.num.messages": Refused("it is librdkafka's; set batch.size, in bytes"),
    "message.timeout.ms": Refused("it is librdkafka's; set delivery.timeout.ms"),
    "message.max.bytes": Refused("it is librdkafka's; set max.request.size"),
    "message.send.max.retries": Refused("it is librdkafka's; set retries, or better delivery.timeout.ms"),
    "compression.codec": Refused("it is librdkafka's; set compression.type"),
    "compression.level": Refused(
        "it is librdkafka's; set compression.gzip.level, compression.lz4.level or compression.zstd.level"
    ),
    "request.required.acks": Refused("it is librdkafka's; set acks"),
}


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(CommonSettings):
    kind: ClassVar[str] = "a producer"

    acks: int = setting("all", acknowledgements(), "who must have a record before it counts as sent")
    # Java's default is 16384. There a batch costs little beside its records, here it costs as much as hundreds of them.
    batch_size: int = setting(
        1_000_000, integer(0, INT_MAX), "bytes of records that are sent as one, before compression"
    )
    buffer_memory: int = setting(
        33_554_432, integer(1), "bytes of records that wait to be sent or acknowledged, at most"
    )
    compression_type: str = setting(
        "none", one_of(*(codec.name.lower() for codec in Codec)), "how batches are compressed"
    )
    compression_gzip_level: int | None = setting(None, nullable(integer(1, 9)), "1 is fast, 9 small")
    compression_lz4_level: int | None = setting(None, nullable(integer(1, 17)), "1 is fast, 17 small")
    compression_zstd_level: int | None = setting(None, nullable(integer(-131072, 22)), "low is fast, 22 small")
    delivery_timeout_ms: int = setting(120_000, integer(0), "after which a record that is not acknowledged has failed")
    enable_idempotence: bool | None = setting(
        None,
        nullable(boolean()),
        "no record twice, and in order, whatever is sent again; on, where the other settings allow it",
    )
    linger_ms: int = setting(5, integer(0), "how long a batch waits for more records")
    max_block_ms: int = setting(60_000, integer(0), "how long send() may wait for metadata and for room in the buffer")
    max_in_flight_requests_per_connection: int = setting(
        5, integer(1, INT_MAX), "requests to a broker without an answer"
    )
    max_request_size: int = setting(
        1_048_576, integer(0, INT_MAX), "bytes of batches in a request, and of the largest record"
    )
    retries: int = setting(INT_MAX, integer(0, INT_MAX), "how often a batch is sent again, within delivery.timeout.ms")
    transaction_timeout_ms: int = setting(
        60_000, integer(1, INT_MAX), "after which the broker aborts a transaction that is still open"
    )
    transactional_id: str | None = setting(
        None, nullable(transactional_ids()), "makes it a transactional producer, the only one of this name"
    )
    key_serializer: Serializer | None = setting(None, serializer(), "makes bytes of keys that are not None")  # noqa: RUF009
    value_serializer: Serializer | None = setting(None, serializer(), "makes bytes of values that are not None")  # noqa: RUF009

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transactional_id is not None:
            if self.enable_idempotence is False:
                raise ConfigError(
                    f"transactional.id is {self.transactional_id!r}, and enable.idempotence false, which transactions "
                    f"need; leave it out"
                )
            if problem := self._not_idempotent_because():
                raise ConfigError(
                    f"transactional.id is {self.transactional_id!r}, and {problem}; change one of the two"
                )
        if self.enable_idempotence and (problem := self._not_idempotent_because()):
            raise ConfigError(f"enable.idempotence is true, and {problem}; change one of the two")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms and self.delivery_timeout_ms != 120_000:
            raise ConfigError(
                f"delivery.timeout.ms is {self.delivery_timeout_ms}; it must be at least linger.ms + "
                f"request.timeout.ms, {self.linger_ms + self.request_timeout_ms}, so that one attempt fits"
            )

    @classmethod
    def also_refused(cls) -> Mapping[str, Refused]:
        return _REFUSED

    @property
    def is_idempotent(self) -> bool:
        """As in Java: by default, but where another setting says that it is not wanted."""
        if self.enable_idempotence is None:
            return self._not_idempotent_because() is None
        return self.enable_idempotence

    @property
    def codec(self) -> Codec:
        return Codec[self.compression_type.upper()]

    @property
    def compression_level(self) -> int | None:
        levels = {
            Codec.GZIP: self.compression_gzip_level,
            Codec.LZ4: self.compression_lz4_level,
            Codec.ZSTD: self.compression_zstd_level,
        }
        return levels.get(self.codec)

    def _not_idempotent_because(self) -> str | None:
        if self.acks != ALL:
            return f"acks is {self.acks}, where it needs all"
        if self.max_in_flight_requests_per_connection > IDEMPOTENT_IN_FLIGHT:
            return (
                f"max.in.flight.requests.per.connection is {self.max_in_flight_requests_per_connection}, where it "
                f"takes {IDEMPOTENT_IN_FLIGHT} at most"
            )
        if self.retries == 0:
            return "retries is 0, where it needs some"
        return None
