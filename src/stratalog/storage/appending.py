"""The input of an append, the rules that it must meet, and its result."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from stratalog.clock import Clock
from stratalog.errors import InvalidRecordError, InvalidTimestampError, StratalogError
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


QUICK_BYTES = 2 * 1024 * 1024
"""The largest batch that an append that must not wait checks itself: a larger one may have millions of records."""

QUICK_DECOMPRESSED_BYTES = 1024 * 1024
"""The largest compressed batch, decompressed, that an append that must not wait checks itself."""


MOST_REFUSED_NAMED = 1000
"""The number of records of a refused batch that its error names."""

NO_LIMIT = -(2**63)


class Origin(Enum):
    """The source of an append. A client's batches are checked record by record, and must not be control batches."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class Appended(NamedTuple):
    """The offsets of an append. A duplicate was in the log already, at these offsets."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    duplicate: bool = False


class WouldWaitError(Exception):
    """An append or a read that must not wait would have to. The message names what it would wait for."""


class AppendRules:
    """The settings of a log that an append must meet. Never changed: other settings make other rules, so that one
    append uses one set of them."""

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_clock",
        "_codec",
        "_is_plain",
        "_level",
        "latest_timestamp",
        "max_message_bytes",
        "needs_keys",
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
        self._is_plain = self._codec is None and self._before_ms == LONG_MAX
        # A timestamp that was allowed once stays allowed: only later ones need the clock.
        self.latest_timestamp = LONG_MAX if self._after_ms == LONG_MAX else -1

    def apply(
        self, data: bytearray | memoryview, headers: list[BatchHeader], max_decompressed: int, may_recompress: bool
    ) -> tuple[bytearray | memoryview, list[BatchHeader]]:
        """Check a client's batches, and compress those again that have another codec than compression.type."""
        payloads: list[Buffer] | None = None
        earliest = NO_LIMIT
        if not self._is_plain:
            if self._before_ms != LONG_MAX:
                earliest = self._clock.now_ms() - self._before_ms
            if self._codec is not None and any(header.codec != self._codec for header in headers):
                if not may_recompress:
                    raise WouldWaitError("batches have to be compressed again, as compression.type says")
                payloads = []
        try:
            null_keys = validation.check_contents(data, headers, max_decompressed, earliest, payloads)
            if null_keys and self.needs_keys:
                raise InvalidRecordError(
                    f"{null_keys} records have no key, and the topic is compacted by key (cleanup.policy)"
                )
            if headers[-1].max_timestamp > self.latest_timestamp or len(headers) > 1:
                self._check_not_after(headers)
        except InvalidRecordError as error:
            if not error.records:
                error.records = self._refused_records(data, headers, max_decompressed, earliest)
            raise
        if payloads is None or self._codec is None:
            return data, headers
        return recompress(data, headers, payloads, self._codec, self._level, self.max_message_bytes)

    def _check_not_after(self, headers: list[BatchHeader]) -> None:
        """Check message.timestamp.after.max.ms for batches that are later than `latest_timestamp`."""
        timestamp = max(header.max_timestamp for header in headers)
        if timestamp <= self.latest_timestamp:
            return
        latest = self._latest_now()
        if timestamp > latest:
            raise InvalidTimestampError(
                f"a record's timestamp is {timestamp}; the latest that message.timestamp.after.max.ms allows now is "
                f"{latest}"
            )
        self.latest_timestamp = latest

    def _latest_now(self) -> int:
        return min(self._clock.now_ms() + self._after_ms, LONG_MAX)

    def _refused_records(
        self, data: Buffer, headers: list[BatchHeader], max_decompressed: int, earliest: int
    ) -> tuple[tuple[int, str], ...]:
        """Return which records the topic refuses, and why, for the producer's callbacks: the whole batch is refused."""
        latest = self._latest_now()
        try:
            refused = validation.find_refused(
                data, headers, max_decompressed, self.needs_keys, earliest, latest, MOST_REFUSED_NAMED
            )
        except StratalogError:
            return ()  # the batch breaks other rules, which its error names
        return tuple(
            (index, _reason(timestamp, earliest, latest) if by_time else "the key is missing")
            for index, by_time, timestamp in refused
        )


PreparedBatches = tuple[bytearray | memoryview, list[BatchHeader], AppendRules]
"""Batches whose contents were checked by these rules, ready to be given offsets."""


def _reason(timestamp: int, earliest: int, latest: int) -> str:
    if timestamp < earliest:
        return f"timestamp {timestamp} is before {earliest} (message.timestamp.before.max.ms)"
    return f"timestamp {timestamp} is after {latest} (message.timestamp.after.max.ms)"


def _level(config: LogConfig) -> int | None:
    level = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }.get(config.compression_type)
    return None if config.compression_type == "gzip" and level == -1 else level


def writable(data: Buffer) -> bytearray | memoryview:
    """Return the same bytes if they may be written to, else a copy."""
    view = memoryview(data)
    return bytearray(view) if view.readonly else view.cast("B")
