"""Settings of a producer, with Kafka's names. Defaults are the Java client's, except that of batch.size."""

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

IDEMPOTENT_IN_FLIGHT = 5  # a broker remembers five batches of a producer, and can't recognize older duplicates
ALL = -1
INT16_MAX = 2**15 - 1


class ProducerOptions(CommonOptions, total=False):
    """Keyword arguments of Producer's constructor, for type checkers."""

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
            raise ConfigError(f"{name} is {value!r}; it must be a string that no other running producer uses")
        try:
            size = len(value.encode())
        except UnicodeEncodeError as error:
            raise ConfigError(f"{name} is {value!r}, which can't be encoded as UTF-8; choose another name") from error
        if size > INT16_MAX:
            raise ConfigError(f"{name} has {size} bytes; the limit is {INT16_MAX}")
        return value

    return Values(ValueType.STRING, check, "a name")


def serializer() -> Values:
    def check(name: str, value: object) -> object:
        if value is not None and not callable(value):
            raise ConfigError(f"{name} is {value!r}; it must be a function that takes the value and returns bytes")
        return value

    return Values(ValueType.CLASS, check, "a callable, or nothing")


_BY_KEY = Refused("keys map to partitions by Java's murmur2; to choose another partition, pass it to send()")
_REFUSED = {
    "transaction.two.phase.commit.enable": Refused(
        "use prepare_transaction(), which keeps a transaction open for another process to end", "false"
    ),
    "partitioner.class": _BY_KEY,
    "partitioner": Refused("it is librdkafka's; keys map to partitions by Java's murmur2", "murmur2_random"),
    "partitioner.ignore.keys": Refused("leave out the key, or pass a partition to send()", "false"),
    "partitioner.adaptive.partitioning.enable": Refused("slow partitions always get fewer keyless records", "true"),
    "partitioner.availability.timeout.ms": Refused("partitions without a leader get no keyless records", "0"),
    "metadata.max.idle.ms": Refused("the metadata of a topic is kept until the producer is closed"),
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

    acks: int = setting("all", acknowledgements(), "which replicas must have a record before it is acknowledged")
    # Java's default is 16384. In Java, a batch costs little compared with its records; here, as much as hundreds of
    # records.
    batch_size: int = setting(1_000_000, integer(0, INT_MAX), "target size of a batch in bytes, before compression")
    buffer_memory: int = setting(
        33_554_432, integer(1), "limit for records that wait to be sent or acknowledged, in bytes"
    )
    compression_type: str = setting(
        "none", one_of(*(codec.name.lower() for codec in Codec)), "how batches are compressed"
    )
    compression_gzip_level: int | None = setting(None, nullable(integer(1, 9)), "1 is fast, 9 small")
    compression_lz4_level: int | None = setting(None, nullable(integer(1, 17)), "1 is fast, 17 small")
    compression_zstd_level: int | None = setting(None, nullable(integer(-131072, 22)), "low is fast, 22 small")
    delivery_timeout_ms: int = setting(
        120_000, integer(0), "time after which a record that is not acknowledged has failed"
    )
    enable_idempotence: bool | None = setting(
        None,
        nullable(boolean()),
        "retries cause no duplicates and keep the order; on by default if the other settings allow it",
    )
    linger_ms: int = setting(5, integer(0), "how long a batch waits for more records")
    max_block_ms: int = setting(60_000, integer(0), "how long send() may wait for metadata and for room in the buffer")
    max_in_flight_requests_per_connection: int = setting(
        5, integer(1, INT_MAX), "limit of requests in flight to a broker"
    )
    max_request_size: int = setting(
        1_048_576, integer(0, INT_MAX), "limit of the batches in a request, and of a record, in bytes"
    )
    retries: int = setting(INT_MAX, integer(0, INT_MAX), "how often a batch is sent again, within delivery.timeout.ms")
    transaction_timeout_ms: int = setting(
        60_000, integer(1, INT_MAX), "time after which the broker aborts an open transaction"
    )
    transactional_id: str | None = setting(
        None, nullable(transactional_ids()), "makes the producer transactional; only one producer may use the id"
    )
    key_serializer: Serializer | None = setting(None, serializer(), "converts keys that are not None to bytes")  # noqa: RUF009
    value_serializer: Serializer | None = setting(None, serializer(), "converts values that are not None to bytes")  # noqa: RUF009

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transactional_id is not None:
            if self.enable_idempotence is False:
                raise ConfigError(
                    f"transactional.id is {self.transactional_id!r} and enable.idempotence is false; transactions need "
                    f"idempotence, so don't set it"
                )
            if problem := self._not_idempotent_because():
                raise ConfigError(f"transactional.id is {self.transactional_id!r} and {problem}; change one of the two")
        if self.enable_idempotence and (problem := self._not_idempotent_because()):
            raise ConfigError(f"enable.idempotence is true and {problem}; change one of the two")
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
        """Return whether the producer is idempotent. As in Java, the default is yes, unless another setting prevents
        it."""
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
            return f"acks is {self.acks}, but idempotence needs acks=all"
        if self.max_in_flight_requests_per_connection > IDEMPOTENT_IN_FLIGHT:
            return (
                f"max.in.flight.requests.per.connection is {self.max_in_flight_requests_per_connection}, but "
                f"idempotence allows at most {IDEMPOTENT_IN_FLIGHT}"
            )
        if self.retries == 0:
            return "retries is 0, but idempotence needs retries"
        return None
