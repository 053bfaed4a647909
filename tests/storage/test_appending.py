"""The rules of topic settings for appends: which timestamps are accepted, and the codec of stored batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratalog.clock import ManualClock
from stratalog.errors import InvalidTimestampError, MessageTooLargeError
from stratalog.records._framing import parse_headers, set_max_timestamp
from stratalog.records.batch import batches
from stratalog.records.format import Codec
from stratalog.settings import LONG_MAX
from stratalog.storage import Log, LogConfig, LogDirectory, Origin
from tests.storage.hand_made import START_MS, batch_of, timed

HOUR = 3_600_000


class CountingClock(ManualClock):
    readings = 0

    def now_ms(self) -> int:
        self.readings += 1
        return super().now_ms()


@pytest.fixture
def clock() -> CountingClock:
    return CountingClock(START_MS)


def opened(path: Path, clock: ManualClock, **settings: Any) -> Log:
    return LogDirectory.open(path, LogConfig(**settings), clock=clock, background=False).log("orders", 0)


def stored(log: Log) -> list[Any]:
    return [batch.header for batch in batches(log.segments[-1].path(".log").read_bytes())]


def test_record_dated_too_far_ahead_is_refused(tmp_path: Path, clock: CountingClock) -> None:
    log = opened(tmp_path, clock)
    log.append(batch_of(START_MS + HOUR))
    with pytest.raises(InvalidTimestampError, match=r"message\.timestamp\.after\.max\.ms allows now") as caught:
        log.append(batch_of(START_MS, START_MS + HOUR + 1))
    assert caught.value.code == 32
    assert log.log_end_offset == 1
    clock.advance(1)
    log.append(batch_of(START_MS, START_MS + HOUR + 1))


def test_timestamp_of_every_batch_of_an_append_is_checked(tmp_path: Path, clock: CountingClock) -> None:
    log = opened(tmp_path, clock)
    with pytest.raises(InvalidTimestampError):
        log.append(batch_of(START_MS + HOUR + 1) + batch_of(START_MS))
    log.append(batch_of(START_MS + HOUR) + batch_of(START_MS))


def test_max_timestamp_of_the_header_is_not_trusted(tmp_path: Path, clock: CountingClock) -> None:
    data = batch_of(START_MS + 2 * HOUR)
    set_max_timestamp(data, parse_headers(data)[0][0], START_MS)
    with pytest.raises(InvalidTimestampError):
        opened(tmp_path, clock).append(data)


def test_current_timestamps_do_not_read_the_clock(tmp_path: Path, clock: CountingClock) -> None:
    log = opened(tmp_path, clock)
    log.append(batch_of(START_MS))
    clock.readings = 0
    for number in range(10):
        log.append(batch_of(START_MS + number))
    assert clock.readings == 0


def test_record_that_is_too_old_is_refused(tmp_path: Path, clock: CountingClock) -> None:
    log = opened(tmp_path, clock, message_timestamp_before_max_ms=HOUR)
    log.append(batch_of(START_MS, START_MS - HOUR))
    with pytest.raises(InvalidTimestampError, match=r"message\.timestamp\.before\.max\.ms allows now"):
        log.append(batch_of(START_MS, START_MS - HOUR - 1))
    log.append(batch_of(START_MS, -1))
    assert log.log_end_offset == 4


def test_timestamps_are_not_checked_with_log_append_time(tmp_path: Path, clock: CountingClock) -> None:
    log = opened(tmp_path, clock, message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=1)
    assert log.append(batch_of(START_MS + 2 * HOUR, 5)).max_timestamp == START_MS


def test_batches_of_a_coordinator_are_not_checked(tmp_path: Path, clock: CountingClock) -> None:
    log = opened(tmp_path, clock, compression_type="zstd", message_timestamp_before_max_ms=1)
    log.append(batch_of(5, START_MS + 2 * HOUR), origin=Origin.COORDINATOR)
    assert stored(log)[0].codec == Codec.NONE


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize(
    ("setting", "target"),
    [
        ("producer", None),
        ("uncompressed", Codec.NONE),
        ("gzip", Codec.GZIP),
        ("snappy", Codec.SNAPPY),
        ("lz4", Codec.LZ4),
        ("zstd", Codec.ZSTD),
    ],
)
def test_stored_batches_have_the_codec_of_compression_type(
    tmp_path: Path, clock: CountingClock, source: Codec, setting: str, target: Codec | None
) -> None:
    log = opened(tmp_path, clock, compression_type=setting)
    for _ in range(2):
        log.append(
            batch_of(START_MS, START_MS + 1, size=50, codec=source, producer_id=4, producer_epoch=0, base_sequence=0)
        )
    assert [(header.codec, header.base_offset, header.producer_id) for header in stored(log)] == [
        (source if target is None else target, 0, 4)  # the second append was recognised as a duplicate
    ]
    assert [record.value for record in log.records()] == [
        record.value for record in timed(START_MS, START_MS + 1, size=50)
    ]


def test_recompression_does_not_change_the_callers_buffer(tmp_path: Path, clock: CountingClock) -> None:
    log = opened(tmp_path, clock, compression_type="gzip")
    data = batch_of(START_MS)
    before = bytes(data)
    log.append(data)
    assert data == before


def test_compression_level_is_used(tmp_path: Path, clock: CountingClock) -> None:
    sizes = []
    for level in (-50, 19):
        log = opened(tmp_path / str(level), clock, compression_type="zstd", compression_zstd_level=level)
        log.append(batch_of(*range(START_MS, START_MS + 2000)))
        sizes.append(stored(log)[0].size)
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("level", [-1, 1, 9])
def test_gzip_accepts_its_levels(tmp_path: Path, clock: CountingClock, level: int) -> None:
    log = opened(tmp_path, clock, compression_type="gzip", compression_gzip_level=level)
    log.append(batch_of(START_MS))
    assert stored(log)[0].codec == Codec.GZIP


def test_batch_too_large_when_inflated_is_refused(tmp_path: Path, clock: CountingClock) -> None:
    log = opened(tmp_path, clock, compression_type="uncompressed", max_message_bytes=2000)
    with pytest.raises(MessageTooLargeError, match=r"after compressing it again for compression\.type"):
        log.append(batch_of(START_MS, size=5000, codec=Codec.ZSTD))
    assert log.log_end_offset == 0


def test_largest_after_max_ms_allows_any_timestamp(tmp_path: Path, clock: CountingClock) -> None:
    log = opened(tmp_path, clock, message_timestamp_after_max_ms=LONG_MAX)
    log.append(batch_of(2**62))
    assert log.log_end_offset == 1
