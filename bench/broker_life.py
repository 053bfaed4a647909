"""Measure how long the broker takes to be ready, and how much memory it holds after a start and after many clients have
disconnected."""

from __future__ import annotations

import contextlib
import os
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


def ready(parent: Path | None, partitions: int) -> Iterator[Row]:
    """Measure from the start of the process to its ready line, with an empty page cache where the process may empty it.

    Each start after a kill is the first start after that kill: the previous broker was started cleanly, wrote to every
    partition, and was killed.
    """
    with directory(parent) as path:
        empty = []
        for number in range(ROUNDS):
            (path / str(number)).mkdir()
            empty.append(_start(path / str(number)))
        yield _ready_row("an empty directory", empty, 0.7)
        with broker(path, _settings(partitions)) as process, Wire(process.port) as wire:
            wire.create_topic(TOPIC, partitions)
            wire.produce(_one_batch_each(partitions))
        rounds = ROUNDS if partitions <= PARTITIONS else 2
        clean, killed = [], []
        for _ in range(rounds):
            forget_cached(path)
            clean.append(_start(path, partitions, then_kill=True))
            forget_cached(path)
            killed.append(_start(path, partitions))
        per_thousand = partitions / 1_000
        yield _ready_row(f"{partitions:,} partitions", clean, None, 1 + 0.7 * per_thousand)
        yield _ready_row(f"{partitions:,} partitions, the first after kill -9", killed, None, 1 + 0.9 * per_thousand)
        ratio = _median_cpu(killed) / _median_cpu(clean)
        yield Row("CPU of a start after kill -9, against a start after a stop", f"{ratio:.2f}", "<= 3.00", ratio <= 3)


def _settings(partitions: int) -> list[str]:
    return [f"stratalog.max.partitions={max(partitions, PARTITIONS) + 1_000}"]


def _start(path: Path, partitions: int = 0, *, then_kill: bool = False) -> tuple[float, float]:
    """Return the seconds until ready, and the CPU seconds. A broker that is killed has written to all its logs."""
    process = start_broker(path, _settings(partitions))
    seconds, cpu = process.seconds_to_ready, sum(process.cpu())
    if then_kill:
        with Wire(process.port) as wire:
            wire.produce(_one_batch_each(partitions))
        process.kill()
    else:
        process.stop()
    return seconds, cpu


def _one_batch_each(partitions: int) -> memoryview:
    """Return requests that append a batch to each log: empty logs would be cheaper to open than real ones."""
    return produce_ring([batch_of(0, 100)], 1, list(range(partitions))).frames


def forget_cached(path: Path) -> None:
    """Make the next read of the files go to the disk.

    Drop all of the kernel's page cache if this process may do so, and otherwise the pages of these files, but not their
    names and inodes.
    """
    os.sync()
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return
    for file in path.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def _ready_row(
    what: str, measured: list[tuple[float, float]], target: float | None, cpu_target: float | None = None
) -> Row:
    seconds = statistics.median(seconds for seconds, _ in measured)
    cpu = _median_cpu(measured)
    target_text, met = "", None
    if target is not None:
        target_text, met = f"<= {target:.1f} s", seconds <= target
    elif cpu_target is not None:
        target_text, met = f"<= {cpu_target:.1f} s of CPU", cpu <= cpu_target
    return Row(f"ready after a start on {what}", f"{seconds:.2f} s", target_text, met, f"{cpu:.2f} s")


def _median_cpu(measured: list[tuple[float, float]]) -> float:
    return statistics.median(cpu for _, cpu in measured)


def memory(parent: Path | None) -> Iterator[Row]:
    with directory(parent) as path, broker(path) as process:
        with Wire(process.port) as wire:
            wire.create_topic(TOPIC)
        idle = _resident(process)
        yield Row("resident memory, idle", f"{idle / MB:.0f} MB", "<= 90 MB", idle <= 90 * MB)
        for times, target in ((1, 0.10), (2, None)):
            during = _open_and_close(process)
            after = _resident(process)
            growth = after / idle - 1
            yield Row(
                f"the same, after {times * CONNECTIONS:,} connections were opened and closed",
                f"{after / MB:.0f} MB, {growth:+.1%}",
                "" if target is None else f"<= {target:+.0%}",
                None if target is None else growth <= target,
                f"{during / MB:.0f} MB while {CONNECTIONS:,} were open",
            )


def _resident(process: Process) -> int:
    time.sleep(SETTLE_SECONDS)
    return process.resident_bytes()


def _open_and_close(process: Process) -> int:
    """Open all connections at the same time and close them. Return the broker's memory while they were open."""
    with ExitStack() as connections:
        for _ in range(CONNECTIONS):
            connections.enter_context(Wire(process.port)).greet()
        return _resident(process)
