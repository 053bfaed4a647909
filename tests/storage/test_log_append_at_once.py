"""An append that must not wait raises WouldWaitError instead of waiting, and has then changed nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.clock import ManualClock
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType
from stratalog.storage import Log
from stratalog.storage.appending import QUICK_BYTES, QUICK_DECOMPRESSED_BYTES, Origin, WouldWaitError
from tests.storage.hand_made import START_MS, batch_of, offsets_of, open_directory


def refuses(log: Log, data: bytes | bytearray, reason: str) -> None:
    """Check that the append raises WouldWaitError and leaves the log and the batch unchanged."""
    before, size, data = log.log_end_offset, log.size, bytearray(data)
    unchanged = bytes(data)
    with pytest.raises(WouldWaitError, match=reason):
        log.append_at_once(data)
    assert (log.log_end_offset, log.size, bytes(data)) == (before, size, unchanged)


def append_in_steps(log: Log, data: bytes | bytearray) -> int:
    prepared = log.prepare(bytearray(data))
    log.get_ready(prepared)
    return log.append_prepared(prepared).base_offset


def test_append_that_need_not_wait_succeeds_at_once(tmp_path: Path) -> None:
    with open_directory(tmp_path) as directory:
        log = directory.log("orders", 0)
        for offset in range(3):
            assert log.append_at_once(bytes(batch_of(1)) if offset else batch_of(1)).base_offset == offset
        assert offsets_of(log) == [0, 1, 2]


@pytest.mark.parametrize(
    ("settings", "data", "reason"),
    [
        ({}, build_batch([(None, bytes(QUICK_DECOMPRESSED_BYTES))], codec=Codec.ZSTD), "decompresses to more"),
        ({}, build_batch([(None, bytes(QUICK_DECOMPRESSED_BYTES))], codec=Codec.GZIP), "decompresses to more"),
        ({"compression_type": "gzip"}, build_batch([(None, b"value")]), "compression.type"),
        ({"max_message_bytes": 2 * QUICK_BYTES}, build_batch([(None, bytes(QUICK_BYTES))]), "have to be checked"),
        ({"flush_messages": 1}, build_batch([(None, b"value")]), "flush.messages"),
    ],
    ids=["zstd bomb", "gzip bomb", "other codec", "large", "flush"],
)
def test_expensive_batch_is_left_to_another_thread(
    tmp_path: Path, settings: dict[str, Any], data: bytearray, reason: str
) -> None:
    with open_directory(tmp_path, **settings) as directory:
        log = directory.log("orders", 0)
        refuses(log, data, reason)
        assert append_in_steps(log, data) == 0
        assert log.flush_is_due() == ("flush_messages" in settings)
        log.flush()
        assert not log.flush_is_due()


def test_a_roll_is_left_to_another_thread(tmp_path: Path) -> None:
    with open_directory(tmp_path, segment_bytes=300) as directory:
        log = directory.log("orders", 0)
        log.append_at_once(batch_of(1, size=100))
        refuses(log, batch_of(1, size=100), "has to roll")
        prepared = log.prepare(batch_of(1, size=100))
        with pytest.raises(WouldWaitError, match="has to roll"):
            log.append_prepared(prepared)
        log.get_ready(prepared)
        assert log.append_prepared(prepared).base_offset == 1
        assert len(log.segments) == 2
        assert offsets_of(log) == [0, 1]


def test_append_at_once_does_not_wait_for_a_lock(tmp_path: Path) -> None:
    with open_directory(tmp_path) as directory:
        log = directory.log("orders", 0)
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with log._write_lock:
                held.set()
                done.wait(30)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(30)
        try:
            refuses(log, batch_of(1), "another thread")
        finally:
            done.set()
            thread.join()
        log.append_at_once(batch_of(1))


def test_prepared_batches_keep_the_rules_they_were_prepared_with(tmp_path: Path) -> None:
    with open_directory(tmp_path) as directory:
        log = directory.log("orders", 0)
        prepared = log.prepare(build_batch([(None, b"no key")]))
        log.reconfigure(replace(log.config, cleanup_policy=("compact",)))
        assert log.append_prepared(prepared).base_offset == 0


def test_duplicate_of_a_prepared_batch_is_recognised(tmp_path: Path) -> None:
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    with open_directory(tmp_path) as directory:
        log = directory.log("orders", 0)
        prepared = log.prepare(build_batch([(None, b"value")], **fields))  # type: ignore[arg-type]
        log.append_at_once(build_batch([(None, b"value")], **fields))  # type: ignore[arg-type]
        assert log.append_prepared(prepared).duplicate
        assert log.log_end_offset == 1


def test_duplicate_is_not_acknowledged_before_the_flush_that_failed_is_repeated(tmp_path: Path) -> None:
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    with open_directory(tmp_path, flush_messages=1) as directory:
        log = directory.log("orders", 0)
        data = build_batch([(None, b"value")], **fields)  # type: ignore[arg-type]
        log.append_prepared(log.prepare(bytearray(data)))  # then flush() fails
        refuses(log, data, "flush.messages")
        log.flush()
        assert log.append_at_once(data).duplicate


def marker() -> bytearray:
    return build_control_batch(ControlType.COMMIT, 1, 0, 0, START_MS)


def test_a_coordinator_appends_past_a_full_segment_and_the_housekeeper_rolls(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with open_directory(tmp_path, clock=clock, segment_bytes=10 * len(marker())) as directory:
        log = directory.log("orders", 0)
        for _ in range(11):
            log.append(marker(), origin=Origin.COORDINATOR)
        assert len(log.segments) == 1
        directory.turn()
        assert len(log.segments) == 2
        log.append(marker(), origin=Origin.COORDINATOR)
        assert log.segments[-1].size == len(marker())


def test_a_coordinator_rolls_when_the_slack_is_used_up(tmp_path: Path) -> None:
    with open_directory(tmp_path, segment_bytes=10 * len(marker())) as directory:
        log = directory.log("orders", 0)
        for _ in range(12):
            log.append(marker(), origin=Origin.COORDINATOR)
        assert len(log.segments) == 2


def test_an_append_of_a_coordinator_that_needs_a_roll_is_refused_for_good(tmp_path: Path) -> None:
    """The event loop can't roll, and other appends may never come: the housekeeper has to know about it."""
    with open_directory(tmp_path, segment_bytes=100_000) as directory:
        log = directory.log("orders", 0)
        log.append(batch_of(size=95_000))
        large = batch_of(size=60_000)
        with pytest.raises(WouldWaitError, match="has to roll"):
            log.append_for_coordinator(bytearray(large), 0)
        directory.turn()
        assert log.append_for_coordinator(bytearray(large), 0).base_offset == 1
        assert len(log.segments) == 2
