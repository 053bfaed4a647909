"""Measure what retention and compaction cost: compaction compared with a plain copy of the same files, its memory, its
effect on a producer, and the deletion of many segments at once.

Both sides of a ratio run in turn, and the result is the median of five rounds, with CPU time. The log of `--bytes` has
values of 100 bytes with a million keys in random order, in uncompressed batches of 16 KiB. Each round compacts hard
links to its files, which compaction never writes to. The copy reads and writes 256 KiB at a time. Compaction syncs its
files; the copy is synced only in a second row.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.broker_frames import TOPIC as PRODUCED_TOPIC
from bench.broker_frames import batch_of, produce_ring
from bench.broker_load import Producing
from bench.broker_processes import broker
from bench.broker_wire import Wire
from bench.measure import Cost, compare, cost_of
from bench.report import Row, directory, report
from stratalog.records import build_batch
from stratalog.storage import Log, LogConfig, LogDirectory
from stratalog.storage.compaction.config import CleanerConfig

TOPIC = "table"
KEYS = 1_000_000
VALUE_BYTES = 100
BATCH_RECORDS = 16 * 1024 // (VALUE_BYTES + 16)
SEGMENT_BYTES = 128 * 1024**2
CHUNK = 256 * 1024
MEMORY_BESIDES_THE_MAP = 64 * 1024**2
TABLES = 4  # tables that a broker compacts one after the other while its latency is measured
CONFIG: dict[str, Any] = {"cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.0, "file_delete_delay_ms": 0}


def fill(path: Path, size: int) -> None:
    """Create a log of `size` bytes whose segments are all sealed, except an empty active one."""
    rng = random.Random(1)
    values = [rng.randbytes(VALUE_BYTES) for _ in range(1000)]
    with LogDirectory.open(path, LogConfig(segment_bytes=SEGMENT_BYTES, **CONFIG), background=False) as logs:
        log = logs.log(TOPIC, 0)
        while log.size < size:
            batch = [(rng.randrange(KEYS).to_bytes(8, "big"), rng.choice(values)) for _ in range(BATCH_RECORDS)]
            log.append(build_batch(batch))
        log.roll()


def linked(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target, copy_function=os.link))


def compact(path: Path) -> Cost:
    with LogDirectory.open(path, LogConfig(**CONFIG), background=False) as logs:
        log = logs.log(TOPIC, 0)
        before = log.size
        cost = cost_of(lambda: _clean(logs))
        assert log.size < before
    return cost


def _clean(logs: LogDirectory) -> None:
    while logs.cleaner.turn() is not None:
        pass
    assert not logs.cleaner.set_aside(), logs.cleaner.set_aside()


def copy(source: Path, target: Path, *, durable: bool) -> None:
    for log in sorted(source.glob("*.log")):
        with log.open("rb", buffering=0) as reader, (target / log.name).open("wb", buffering=0) as writer:
            while chunk := reader.read(CHUNK):
                writer.write(chunk)
            if durable:
                os.fdatasync(writer.fileno())


def speed(parent: Path | None, size: int) -> Iterator[Row]:
    with directory(parent) as path:
        fill(path / "filled", size)
        round_ = path / "round"

        def ours() -> Cost:
            try:
                return compact(linked(path / "filled", round_))
            finally:
                shutil.rmtree(round_)

        def peer(durable: bool) -> Cost:
            round_.mkdir()
            try:
                return cost_of(lambda: copy(path / "filled" / f"{TOPIC}-0", round_, durable=durable))
            finally:
                shutil.rmtree(round_)

        for durable in (False, True):
            result = compare(ours, lambda durable=durable: peer(durable))  # type: ignore[misc]
            yield Row(
                f"compaction of {size / 1e9:.2g} GB, against a {'synced ' if durable else ''}copy",
                f"{result.ratio:.2f}: {size / result.ours.wall / 1e6:.0f} MB/s",
                "" if durable else ">= 0.50",
                None if durable else result.ratio >= 0.5,
                f"{result.ours.cpu:.2f} s against {result.peer.cpu:.2f} s",
            )
        yield _memory(linked(path / "filled", round_), size)


_MEASURE_MEMORY = """
import os, sys, threading
from pathlib import Path
from bench.cleaner import CONFIG, TOPIC, LogConfig, LogDirectory, _clean
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
with LogDirectory.open(sys.argv[1], LogConfig(**CONFIG), background=False) as logs:
    logs.log(TOPIC, 0)
    before = most = resident()
    thread = threading.Thread(target=_clean, args=(logs,))
    thread.start()
    while thread.is_alive():
        most = max(most, resident())
        thread.join(0.005)
    print(most - before)
"""


def _memory(path: Path, size: int) -> Row:
    run = subprocess.run([sys.executable, "-c", _MEASURE_MEMORY, str(path)], capture_output=True, text=True, check=True)
    grown, allowed = int(run.stdout), CleanerConfig().log_cleaner_dedupe_buffer_size + MEMORY_BESIDES_THE_MAP
    return Row(
        f"memory of a compaction of {size / 1e9:.2g} GB",
        f"{grown / 1e6:.0f} MB",
        f"<= {allowed / 1e6:.0f} MB",
        grown <= allowed,
    )


def latency(parent: Path | None, size: int, seconds: float = 4.0) -> Iterator[Row]:
    """Send one produce request of a 1 KiB batch at a time to a broker, with and without compaction running."""
    with directory(parent) as path:
        fill(path / "filled", size)
        p99s: dict[bool, list[float]] = {True: [], False: []}
        cleaned = 0
        for number in range(6):
            cleans = number % 2 == 1
            data = path / f"{number}" / "data"
            data.mkdir(parents=True)
            for table in range(TABLES):
                linked(path / "filled" / f"{TOPIC}-0", data / f"{TOPIC}-{table}")
            p99s[cleans].append(_p99(path / f"{number}", cleans, seconds))
            cleaned += cleans and sum(log.stat().st_size for log in data.glob(f"{TOPIC}-0/*.log")) < size // 2
            shutil.rmtree(path / f"{number}")
        assert cleaned == 3, "no table was compacted during the measurement"
        with_it, without = (statistics.median(p99s[cleans]) for cleans in (True, False))
        yield Row(
            "p99 of a produce request during compaction, against without",
            f"{with_it / without:.2f} x: {with_it * 1e6:.0f} us against {without * 1e6:.0f} us",
            "<= 2 x",
            with_it / without <= 2,
        )


def _p99(path: Path, cleans: bool, seconds: float) -> float:
    settings = [
        "log.cleanup.policy=compact",
        "log.cleaner.min.cleanable.ratio=0",
        "log.cleaner.backoff.ms=50",
        f"log.cleaner.enable={str(cleans).lower()}",
    ]
    times = []
    with broker(path, settings) as process, Wire(process.port) as wire:
        wire.create_topic(PRODUCED_TOPIC, 1)
        producing = Producing(process.port, produce_ring([batch_of(1024, 100)], 64), 1, ordered=True)
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            responses = producing.responses
            producing.begin()
            while producing.responses == responses:
                producing.step(more=False)
            times.append(time.perf_counter() - start)
            time.sleep(0.0005)
        producing.close()
    return statistics.quantiles(times, n=100)[-1]


def deletion(parent: Path | None, segments: int = 1_000) -> Iterator[Row]:
    """Delete all segments except the active one by retention.bytes while another thread appends. Their files are
    removed later."""
    with directory(parent) as path:
        config = LogConfig(segment_bytes=64 * 1024, segment_index_bytes=4096, file_delete_delay_ms=0)
        batch = batch_of(16 * 1024, 1000)
        with LogDirectory.open(path / "data", config, background=False) as logs:
            log = logs.log("bench", 0)
            while len(log.segments) <= segments:
                log.append(bytearray(batch))
            log.reconfigure(replace(config, retention_bytes=0))
            end = log.segments[-1].base_offset
            longest, seconds = _append_during(log, batch, log.apply_retention)
            assert log.log_start_offset >= end, "segments are left"
            files = list((path / "data" / "bench-0").glob("*.deleted"))
            removing = cost_of(logs.turn)
            assert not list((path / "data" / "bench-0").glob("*.deleted"))
    yield Row(f"deleting {segments:,} segments", f"{seconds * 1000:.0f} ms", "< 1 s", seconds < 1)
    yield Row("longest append during the deletion", f"{longest * 1000:.1f} ms", "< 100 ms", longest < 0.1)
    yield Row(
        f"removing their {len(files):,} files after the delay",
        f"{removing.wall * 1000:.0f} ms",
        "",
        None,
        f"{removing.cpu:.2f} s",
    )


def _append_during(log: Log, batch: bytes, work: Callable[[], object]) -> tuple[float, float]:
    """Return the longest time that an append took while `work` ran, and how long `work` took."""
    done = threading.Event()
    longest = [0.0]

    def append() -> None:
        while not done.is_set():
            start = time.perf_counter()
            log.append(bytearray(batch))
            longest[0] = max(longest[0], time.perf_counter() - start)
            time.sleep(0.001)

    thread = threading.Thread(target=append)
    thread.start()
    start = time.perf_counter()
    try:
        work()
    finally:
        seconds = time.perf_counter() - start
        done.set()
        thread.join()
    return longest[0], seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="directory for the files (default: the system's temporary directory)")
    parser.add_argument("--bytes", type=int, default=1_000_000_000, help="size of the log that is compacted")
    parser.add_argument("--only", choices=["speed", "latency", "deletion"], help="run one part")
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "speed": lambda: speed(arguments.dir, arguments.bytes),
        "latency": lambda: latency(arguments.dir, arguments.bytes),
        "deletion": lambda: deletion(arguments.dir),
    }
    chosen = [arguments.only] if arguments.only else list(parts)
    with Console(stderr=True).status("measuring ..."):
        rows = [row for part in chosen for row in parts[part]()]
    return 0 if report("cleaner", rows, Console()) else 1


if __name__ == "__main__":
    sys.exit(main())
