"""Compare the broker with the bare system calls, each in a process of its own. `make bench` runs this.

The generator (this process) has one core and sends prepared bytes. The broker, or the bare peer, has the other core.
Every round starts a new process on a new directory, warms it up and measures it. Both sides take turns, and the results
are medians of five rounds. CPU time is the server's own, from /proc. Files are in a temporary directory (`--dir`
selects another), are deleted after each round, and are never flushed. Fetched records are received into one buffer.

On a machine with other load, `nice` is not enough: a process that wakes up still waits for its turn. `chrt -f 10 python
-m bench.broker` gives both sides priority over everything else.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from bench import broker_admin, broker_life
from bench.broker_frames import batch_of, produce_ring
from bench.broker_processes import GENERATOR_CORE
from bench.broker_sides import MIB, FetchLoad, Options, ProduceLoad, Result, against
from bench.measure import ROUNDS
from bench.report import Row, report

LARGEST_ROUND_MIB = 320  # small enough for the next round to reuse the freed memory: see back_with_memory
POOL_BYTES = 16 * MIB


def produce(options: Options, size: int, name: str, target: float) -> Iterator[Row]:
    for value_bytes in (options.value_bytes, 100):
        result = produce_result(options, size, value_bytes)
        aim = target if value_bytes == options.value_bytes else None
        what = f"produce, {name} requests of {value_bytes:,}-byte values, against recv and write"
        yield ratio_row(what, result, aim)
        if size == MIB and aim is not None:
            user = result.per_gb(lambda load: load.user)
            yield Row("user CPU per GB in, 1 MiB requests", f"{user:.2f} s", "<= 0.60 s", user <= 0.6)


def produce_result(options: Options, size: int, value_bytes: int) -> Result:
    pool = [batch_of(size - 128, value_bytes) for _ in range(POOL_BYTES // size)]
    load = ProduceLoad(options, produce_ring(pool, len(pool)), options.in_flight)
    return against(load.to_broker, load.to_bare_peer, options.rounds)


def fetch(options: Options) -> Iterator[Row]:
    for name, batch_bytes, target in (("1 MiB", MIB, 0.90), ("16 KiB", 16 * 1024, None)):
        load = FetchLoad(options, batch_bytes)
        result = against(load.from_broker, load.from_bare_peer, options.rounds)
        yield ratio_row(f"fetch, 1 MiB responses of {name} batches, against sendfile", result, target)
        if target is not None:
            user = result.per_gb(lambda load: load.user)
            yield Row("user CPU per GB out, 1 MiB responses", f"{user:.2f} s", "<= 0.20 s", user <= 0.2)


def ratio_row(what: str, result: Result, target: float | None) -> Row:
    ratio = result.comparison.ratio
    if target is None:
        return Row(what, f"{ratio:.2f}", "", None, result.cpu())
    return Row(what, f"{ratio:.2f}", f">= {target:.2f}", ratio >= target, result.cpu())


def small(options: Options) -> Iterator[Row]:
    ring = produce_ring([batch_of(0, 100) for _ in range(64)], 4096)
    for connections, in_flight, target in ((1, 100, 20_000), (1, 5, None), (20, 5, None)):
        load = ProduceLoad(options, ring, in_flight, connections)
        result = against(load.to_broker, load.to_bare_peer, options.rounds)
        rate, per_cpu_second = result.requests_per_second(), result.requests_per_cpu_second()
        yield Row(
            f"requests of one 100-byte record, connections: {connections}, in flight on each: {in_flight}",
            f"{rate:,.0f}/s",
            "" if target is None else f">= {target:,}/s",
            None if target is None else rate >= target,
            f"{per_cpu_second:,.0f} per CPU second, {1e6 / per_cpu_second:.1f} us each; "
            f"bare peer {result.others_requests_per_second():,.0f}/s; {result.busy()}",
        )


PARTS: dict[str, Callable[[Options], Iterator[Row]]] = {
    "produce-1m": lambda options: produce(options, MIB, "1 MiB", 0.85),
    "produce-64k": lambda options: produce(options, MIB // 16, "64 KiB", 0.70),
    "fetch": fetch,
    "small": small,
    "ready": lambda options: broker_life.ready(options.parent, options.partitions),
    "memory": lambda options: broker_life.memory(options.parent),
    "admin": lambda options: broker_admin.admin(options.parent),
}

KAFKA_PARTS = ("produce-1m", "produce-64k", "fetch", "small", "admin")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS), action="append", help="run one part; can be repeated")
    parser.add_argument("--dir", type=Path, help="directory for the files; if None, the system's temporary directory")
    parser.add_argument("--seconds", type=float, default=1.0, help="longest duration of a round")
    parser.add_argument("--mib", type=int, default=LARGEST_ROUND_MIB, help="most MiB that a round writes")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of rounds; the result is their median")
    parser.add_argument("--value-bytes", type=int, default=1000, help="size of a value in the rows with a target")
    parser.add_argument("--in-flight", type=int, default=5, help="requests in flight on a connection")
    parser.add_argument(
        "--receive", choices=["discard", "copy"], default="copy", help="what to do with fetched records"
    )
    parser.add_argument("--wake-bytes", type=int, default=1, help="wake the generator after this many fetched bytes")
    parser.add_argument("--partitions", type=int, default=1_000, help="partitions of the broker that is killed")
    parser.add_argument("--kafka", action="store_true", help="compare with Apache Kafka instead of the bare peers")
    options = parser.parse_args()
    if options.kafka and (alone := set(options.only or ()) - set(KAFKA_PARTS)):
        parser.error(f"--kafka: {', '.join(sorted(alone))} is not compared with Kafka, only {', '.join(KAFKA_PARTS)}")
    return options


def main() -> int:
    chosen = arguments()
    options = Options(
        chosen.dir,
        chosen.seconds,
        chosen.mib * MIB,
        chosen.value_bytes,
        chosen.in_flight,
        chosen.receive == "discard",
        chosen.wake_bytes,
        chosen.rounds,
        chosen.partitions,
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 16_384)), hard))
    os.sched_setaffinity(0, {GENERATOR_CORE})
    with Console(stderr=True).status("measuring ..."):
        if chosen.kafka:
            from bench import broker_kafka  # imports Kafka's clients, which other runs do not need

            rows = list(broker_kafka.rows(options, chosen.only or KAFKA_PARTS))
        else:
            rows = [row for part in chosen.only or PARTS for row in PARTS[part](options)]
    return 0 if report("broker", rows, Console()) else 1


if __name__ == "__main__":
    sys.exit(main())
