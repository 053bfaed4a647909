"""Compare the storage engine with the bare system calls, and with itself at another size. `make bench` runs this.

Each result is a ratio from one run, with both sides in turn, the median of five rounds with CPU time; or a cost per
operation. Batches come from a small pool that stays in the processor's cache, like a batch that was just received.
Files are in a temporary directory (`--dir` selects another) and are never flushed: the comparison ends at the page
cache.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from bench import records as record_rates
from bench.measure import Comparison, Cost, compare, cost_of
from bench.report import Row, directory, report
from stratalog.records import Record, build_batch
from stratalog.records._framing import parse_headers, stamp
from stratalog.storage import LogConfig, LogDirectory

POOL = 16
APPEND_TOTAL = 384 * 1024 * 1024
CONFIG = LogConfig(max_message_bytes=4 * 1024 * 1024, segment_bytes=2**31 - 1)


def batch_of(size: int, value_size: int) -> bytearray:
    """Return a batch of about `size` bytes, with 8-byte keys and values of `value_size` random bytes."""
    count = max(1, (size - 61) // (value_size + 20))
    return build_batch(
        [Record(key=os.urandom(8), value=os.urandom(value_size), timestamp=1_700_000_000_000) for _ in range(count)]
    )


def append_against_write(parent: Path | None, size: int, value_size: int, total: int = APPEND_TOTAL) -> Comparison:
    """Compare a complete Log.append of prepared batches with os.write of the same bytes."""
    pool = [batch_of(size, value_size) for _ in range(POOL)]
    rounds = total // len(pool[0])

    def ours() -> Cost:
        with directory(parent) as path:
            logs = LogDirectory.open(path / "data", CONFIG, background=False)
            append = logs.log("bench", 0).append
            return cost_of(lambda: _each(append, pool, rounds))

    def peer() -> Cost:
        with directory(parent) as path:
            fd = os.open(path / "file", os.O_RDWR | os.O_CREAT)
            cost = cost_of(lambda: _each(lambda data: os.write(fd, data), pool, rounds))
            os.close(fd)
            return cost

    return compare(ours, peer)


def _each(call: Callable[[bytearray], object], pool: list[bytearray], rounds: int) -> None:
    for number in range(rounds):
        call(pool[number % POOL])


def appends(parent: Path | None) -> Iterator[Row]:
    for name, size, value_size, target in (
        ("append, 64 KiB batches of 1,000-byte values, against os.write", 65_536, 1_000, 0.80),
        ("append, 64 KiB batches of 100-byte values, against os.write", 65_536, 100, None),
        ("append, 1 MiB batches of 1,000-byte values, against os.write", 1_048_576, 1_000, 0.90),
        ("append, 1 MiB batches of 100-byte values, against os.write", 1_048_576, 100, None),
    ):
        result = append_against_write(parent, size, value_size)
        count = APPEND_TOTAL // size
        yield Row(
            name,
            f"{result.ratio:.2f}",
            "" if target is None else f">= {target:.2f}",
            None if target is None else result.ratio >= target,
            f"{result.ours.cpu / count * 1e6:.1f} us against {result.peer.cpu / count * 1e6:.1f} us per batch",
        )
    small = append_against_write(parent, 1024, 100, total=64 * 1024 * 1024)
    each = small.ours.cpu / (64 * 1024 * 1024 // len(batch_of(1024, 100))) * 1e6
    yield Row("append, 1 KiB batches, CPU each", f"{each:.1f} us", "<= 15 us", each <= 15)


def follower_against_leader(parent: Path | None, size: int, per_fetch: int, total: int) -> Comparison:
    """Compare the appends of a follower, `per_fetch` batches at a time, with the leader's, one batch at a time. The
    follower's side includes writing the offsets into the batches, which the leader does in its append."""
    pool = [batch_of(size, 100) for _ in range(POOL)]
    fetches = total // len(pool[0]) // per_fetch
    fetched = [
        bytearray().join(pool[(first + index) % POOL] for index in range(per_fetch))
        for first in range(POOL if per_fetch == 1 else 2)
    ]
    headers = [parse_headers(data)[0] for data in fetched]

    def follow() -> Cost:
        with directory(parent) as path:
            append = LogDirectory.open(path / "data", CONFIG, background=False).log("bench", 0).append_from_leader

            def work() -> None:
                end = 0
                for number in range(fetches):
                    slot = number % len(fetched)
                    stamp(fetched[slot], headers[slot], end, 0)
                    end = append(fetched[slot])

            return cost_of(work)

    def lead() -> Cost:
        with directory(parent) as path:
            append = LogDirectory.open(path / "data", CONFIG, background=False).log("bench", 0).append
            return cost_of(lambda: _each(append, pool, fetches * per_fetch))

    return compare(follow, lead)


def followers(parent: Path | None) -> Iterator[Row]:
    for name, size, per_fetch, total in (
        ("1 MiB batches", 1_048_576, 1, 192 * 1024 * 1024),
        ("16 x 64 KiB", 65_536, 16, 192 * 1024 * 1024),
        ("1,000 x 1 KiB", 1024, 1000, 64 * 1024 * 1024),
        ("1 KiB batches", 1024, 1, 16 * 1024 * 1024),
    ):
        result = follower_against_leader(parent, size, per_fetch, total)
        yield Row(
            f"append_from_leader against append, CPU, {name}",
            f"{result.cpu_ratio:.2f}",
            ">= 0.90",
            result.cpu_ratio >= 0.90,
            f"{result.ours.cpu / total * 1e9:.2f} s against {result.peer.cpu / total * 1e9:.2f} s of CPU per GB",
        )


def filled(path: Path, segments: int, segment_bytes: int = 256 * 1024) -> int:
    """Write a log with this number of segments, in 1 KiB batches of 8 records, and return its end offset."""
    config = LogConfig(segment_bytes=segment_bytes, segment_index_bytes=64 * 1024)
    batch = batch_of(1024, 100)
    with LogDirectory.open(path, config, background=False) as logs:
        log = logs.log("bench", 0)
        while len(log.segments) < segments:
            log.append(batch)
        return log.log_end_offset


def lookups(parent: Path | None) -> Iterator[Row]:
    few, many, lookups_per_round = 10, 1_000, 20_000
    with directory(parent) as path:
        ends = {segments: filled(path / str(segments), segments) for segments in (few, many)}
        logs = {segments: LogDirectory.open(path / str(segments), background=False) for segments in ends}

        def look_up(segments: int) -> Callable[[], Cost]:
            log, rng = logs[segments].log("bench", 0), random.Random(1)
            for _ in log.records():  # open, map and verify everything once before measuring
                pass
            offsets = [rng.randrange(ends[segments]) for _ in range(lookups_per_round)]

            def work() -> None:
                for offset in offsets:
                    log.read(offset, 1)

            return lambda: cost_of(work)

        result = compare(look_up(many), look_up(few))
        p50 = _p50_lookup(logs[many], ends[many])
        for opened in logs.values():
            opened.close()
    factor = 1 / result.ratio
    yield Row("lookup by offset, 1,000 segments against 10", f"{factor:.2f} x", "<= 1.5 x", factor <= 1.5)
    yield Row("lookup by offset, 1,000 segments, p50", f"{p50:.1f} us", "<= 15 us", p50 <= 15)


def _p50_lookup(logs: LogDirectory, end: int) -> float:
    log, rng, clock = logs.log("bench", 0), random.Random(2), time.perf_counter_ns
    times = []
    for _ in range(20_000):
        offset = rng.randrange(end)
        start = clock()
        log.read(offset, 1)
        times.append(clock() - start)
    return statistics.median(times) / 1000


def records() -> Iterator[Row]:
    for name, measure, target in (
        ("batches -> Arrow, checksums checked, 100-byte values", record_rates.decode_columns, 10e6),
        ("Arrow -> batches", record_rates.encode_columns, 8e6),
        ("batches -> record objects", record_rates.decode_objects, 2e6),
    ):
        rates = [measure(record_rates.ONE_BATCH) for _ in range(5)]
        speed = statistics.median(rate.records_per_second for rate in rates)
        cpu = statistics.median(rate.cpu_seconds for rate in rates) / record_rates.ONE_BATCH * 1e9
        yield Row(
            name, f"{speed / 1e6:.1f} M/s", f">= {target / 1e6:.0f} M/s", speed >= target, f"{cpu:.0f} ns per record"
        )


_OPEN = """
import resource, sys, time
from stratalog.storage import LogDirectory
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
logs = LogDirectory.open(sys.argv[1], background=False)
log = logs.log("bench", 0)
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, len(log.segments))
logs.close()
"""


def opening(parent: Path | None) -> Iterator[Row]:
    """Measure a restart and its memory, each time in a new process."""
    with directory(parent) as path:
        sizes = {"small": 64 * 1024, "large": 1024 * 1024}
        for name, segment_bytes in sizes.items():
            filled(path / name, 1_000, segment_bytes)
        measured = {name: [_open_once(path / name) for _ in range(5)] for name in sizes}
    seconds = statistics.median(seconds for seconds, _ in measured["large"])
    memory = {name: statistics.median(memory for _, memory in runs) for name, runs in measured.items()}
    yield Row("opening 1,000 clean segments", f"{seconds * 1000:.0f} ms", "< 500 ms", seconds < 0.5)
    yield Row(
        "memory for it, 1 GB log against 64 MB log",
        f"{memory['large'] / 1024:.1f} MB against {memory['small'] / 1024:.1f} MB",
        "flat",
        memory["large"] <= memory["small"] * 1.2 + 1024,
    )


def _open_once(path: Path) -> tuple[float, int]:
    run = subprocess.run([sys.executable, "-c", _OPEN, str(path)], capture_output=True, text=True, check=True)
    seconds, memory, segments = run.stdout.split()
    assert int(segments) == 1_000, segments
    return float(seconds), int(memory)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="directory for the files (default: the system's temporary directory)")
    parser.add_argument(
        "--only", choices=["appends", "followers", "lookups", "records", "opening"], help="run one part"
    )
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "appends": lambda: appends(arguments.dir),
        "followers": lambda: followers(arguments.dir),
        "lookups": lambda: lookups(arguments.dir),
        "records": records,
        "opening": lambda: opening(arguments.dir),
    }
    chosen = [arguments.only] if arguments.only else list(parts)
    with Console(stderr=True).status("measuring ..."):
        rows = [row for part in chosen for row in parts[part]()]
    return 0 if report("storage", rows, Console()) else 1


if __name__ == "__main__":
    sys.exit(main())
