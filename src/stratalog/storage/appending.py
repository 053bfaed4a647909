"""What goes into a log with an append, the rules that it must keep, and what comes back."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from stratalog.clock import Clock
from stratalog.errors import InvalidTimestampError
from stratalog.records import validation
from stratalog.records._framing import BatchHeader
from stratalog.records.format import Codec
from stratalog.records.recompress import recompress
from stratalog.settings import LONG_MAX
from stratalog.storage.config import LogConfig

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class Origin(Enum):
    """Who appends: a client's batches are checked record by record and may not be control batches."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class Appended(NamedTuple):
    """Where an append went. A duplicate was in the log already, at these offsets."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    duplicate: bool = False


class AppendRules:
    """What of a log's settings an append must keep to. Never changed: other settings are other rules, so that one
    append goes by one set of them."""

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_clock",
        "_codec",
        "_level",
        "latest_timestamp",
        "max_message_bytes",
        "needs_keys",
        "plain",
        "stamps_time",
    )

    def __init__(self, config: LogConfig, clock: Clock) -> None:
        self._clock = clock
        self.max_message_bytes = config.max_message_bytes
        self.needs_keys = "compact" in config.cleanup_policy
        self.stamps_time = config.message_timestamp_type == "LogAppendTime"
        self._before_ms = LONG_MAX if self.stamps_time else config.message_timestamp_before_max_ms
        self._after_ms = LONG_MAX if self.stamps_time else config.message_timestamp_after_max_ms
        self._codec = _CODECS[config.compression_type]
        self._level = _level(config)
        self.plain = self._codec is None and self._before_ms == LONG_MAX
        # What was not too late at some time is not too late any more: the clock is asked only past this.
        self.latest_timestamp = LONG_MAX if self._after_ms == LONG_MAX else -1

    def apply(
        self, data: bytearray | memoryview, headers: list[BatchHeader]
    ) -> tuple[bytearray | memoryview, list[BatchHeader], int]:
        """Check a client's batches, and re-compress those that have not the codec of compression.type. The last of the
        three: how many records have no key."""
        earliest = -(2**63)
        if self._before_ms != LONG_MAX:
            earliest = self._clock.now_ms() - self._before_ms
        if self._codec is None or all(header.codec == self._codec for header in headers):
            return data, headers, validation.check_contents(data, headers, earliest=earliest)
        payloads: list[Buffer] = []
        null_keys = validation.check_contents(data, headers, earliest=earliest, payloads=payloads)
        return *recompress(data, headers, payloads, self._codec, self._level, self.max_message_bytes), null_keys

    def check_not_after(self, headers: list[BatchHeader]) -> None:
        """message.timestamp.after.max.ms; needed for what lies past `latest_timestamp`."""
        timestamp = max(header.max_timestamp for header in headers)
        if timestamp <= self.latest_timestamp:
            return
        latest = min(self._clock.now_ms() + self._after_ms, LONG_MAX)
        if timestamp > latest:
            raise InvalidTimestampError(
                f"a record's timestamp is {timestamp}; the latest that message.timestamp.after.max.ms allows now is "
                f"{latest}"
            )
        self.latest_timestamp = latest


def _level(config: LogConfig) -> int | None:
    level = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }.get(config.compression_type)
    return None if config.compression_type == "gzip" and level == -1 else level


def writable(data: Buffer) -> bytearray | memoryview:
    """The same bytes where they may be written to, or a copy."""
    view = memoryview(data)
    return bytearray(view) if view.readonly else view.cast("B")
