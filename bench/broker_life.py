"""How long the broker takes to be ready, and what memory it holds: after a start, and after many clients have gone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.broker_frames import TOPIC, batch_of, produce_ring
from bench.broker_processes import Process, broker, start_broker
from bench.broker_wire import Wire
from bench.measure import ROUNDS
from bench.report import Row, directory

PARTITIONS = 1_000
CONNECTIONS = 1_000
SETTLE_SECONDS = 1.0
MB = 1e6


def ready(parent: Path | None) -> Iterator[Row]:
    """From the start of the process to its line on stdout; the last row's broker was killed before each start."""
    with directory(parent) as path:
        empty = []
        for number in range(ROUNDS):
            (path / str(number)).mkdir()
            empty.append(_start(path / str(number)))
        yield _ready_row("an empty directory", empty, 0.7)
        _write_partitions(path)
        yield _ready_row(f"{PARTITIONS:,} partitions", [_start(path) for _ in range(ROUNDS)], 3)
        killed = [_start(path, kill=True) for _ in range(ROUNDS + 1)][1:]
        yield _ready_row(f"{PARTITIONS:,} partitions after kill -9", killed, None)


def _start(path: Path, *, kill: bool = False) -> tuple[float, float]:
    process = start_broker(path)
    seconds, cpu = process.seconds_to_ready, sum(process.cpu())
    if kill:
        process.kill()
    else:
        process.stop()
    return seconds, cpu


def _write_partitions(path: Path) -> None:
    """Partitions with a batch in each: empty ones would be cheaper to open than any that is used."""
    with broker(path) as process, Wire(process.port) as wire:
        wire.create_topic(TOPIC, PARTITIONS)
        wire.produce(produce_ring([batch_of(0, 100)], 1, list(range(PARTITIONS))).frames)


def _ready_row(what: str, measured: list[tuple[float, float]], target: float | None) -> Row:
    seconds = statistics.median(seconds for seconds, _ in measured)
    cpu = statistics.median(cpu for _, cpu in measured)
    return Row(
        f"ready after a start on {what}",
        f"{seconds:.2f} s",
        "" if target is None else f"<= {target:.1f} s",
        None if target is None else seconds <= target,
        f"{cpu:.2f} s",
    )


def memory(parent: Path | None) -> Iterator[Row]:
    with directory(parent) as path, broker(path) as process:
        with Wire(process.port) as wire:
            wire.create_topic(TOPIC)
        idle = _resident(process)
        yield Row("resident memory, idle", f"{idle / MB:.0f} MB", "<= 90 MB", idle <= 90 * MB)
        for times, target in ((1, 0.10), (2, None)):
            during = _come_and_go(process)
            after = _resident(process)
            growth = after / idle - 1
            yield Row(
                f"the same, after {times * CONNECTIONS:,} connections came and went",
                f"{after / MB:.0f} MB, {growth:+.1%}",
                "" if target is None else f"<= {target:+.0%}",
                None if target is None else growth <= target,
                f"{during / MB:.0f} MB while {CONNECTIONS:,} were open",
            )


def _resident(process: Process) -> int:
    time.sleep(SETTLE_SECONDS)
    return process.resident_bytes()


def _come_and_go(process: Process) -> int:
    """All are open at the same time; what the broker holds then."""
    with ExitStack() as open_ones:
        for _ in range(CONNECTIONS):
            open_ones.enter_context(Wire(process.port)).greet()
        return _resident(process)
