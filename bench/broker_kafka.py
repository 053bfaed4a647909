"""Run the same load against Apache Kafka on the same machine. `make compat` must have fetched Kafka before.

Kafka is started once and warmed up, because the JVM compiles at run time. Every round uses a new topic. While it is
measured, Kafka has one core, as the broker has. Results are the broker's speed as a multiple of Kafka's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from tests.compat.fetch_kafka import CACHE, KAFKA_VERSION
from tests.compat.kafka_server import KafkaServer

from bench import broker_admin
from bench.broker_frames import TOPIC, batch_of, produce_ring
from bench.broker_load import Load
from bench.broker_processes import CORES, SERVER_CORE, cpu_of
from bench.broker_sides import MIB, FetchLoad, Options, ProduceLoad, against, back_with_memory
from bench.broker_wire import Wire
from bench.report import Row, directory

WARM_UP_ROUNDS = 10
QUIET_SECONDS = 2.0  # Kafka deletes the files of deleted topics in the background
# Kafka's defaults for settings that the tests' small Kafka changes, and socket buffers like those of the other servers.
SETTINGS = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "log.index.size.max.bytes": str(10 * MIB),
    "socket.receive.buffer.bytes": "-1",
    "socket.send.buffer.bytes": "-1",
    "log.segment.delete.delay.ms": "100",
}
# The JVM options of Kafka's own start script. The compiler level overrides a setting for quick starts.
JVM_OPTIONS = (
    "-XX:TieredStopAtLevel=4",
    "-XX:-UseSerialGC",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-Xms1g",
    "-Xmx1g",
    "-XX:+AlwaysPreTouch",
)


class Kafka:
    """A `Server`: the running Kafka, pinned to some of the cores."""

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self.port = server.port

    def cpu(self) -> tuple[float, float]:
        return cpu_of(self._server.pid)

    def pin(self, cores: set[int]) -> None:
        for thread in Path(f"/proc/{self._server.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)

    def forget_topic(self) -> None:
        with Wire(self.port) as wire:
            wire.delete_topic(TOPIC)


def rows(options: Options, parts: Collection[str]) -> Iterator[Row]:
    """Measure the parts that `bench.broker` lists in KAFKA_PARTS, as far as they are in `parts`."""
    if not (CACHE / f"kafka-{KAFKA_VERSION}").is_dir():
        yield Row("Apache Kafka", "missing", "", None, "python -m tests.compat.fetch_kafka fetches it")
        return
    with directory(options.parent) as path:
        os.sched_setaffinity(0, CORES)  # child processes inherit the cores
        with KafkaServer(path / "kafka", SETTINGS, JVM_OPTIONS) as server:
            os.sched_setaffinity(0, {CORES[0]})
            kafka = Kafka(server)
            for part, name, ours, theirs in loads(options):
                if part in parts:
                    yield compared(options, path, kafka, name, ours, theirs)
            if "admin" in parts:
                yield from compared_admin(options, kafka)


def compared_admin(options: Options, kafka: Kafka) -> Iterator[Row]:
    kafka.pin(set(CORES))
    for number in range(WARM_UP_ROUNDS):
        broker_admin.measure_round(kafka, f"warm-up-{number}")
    kafka.pin({SERVER_CORE})
    ours, theirs = [], []
    for number in range(options.rounds):
        theirs.append(broker_admin.measure_round(kafka, f"round-{number}"))
        time.sleep(QUIET_SECONDS)
        ours.append(broker_admin.broker_round(options.parent))
    yield from broker_admin.compared_rows(ours, theirs, KAFKA_VERSION)


Ours = Callable[[], Load]
Theirs = Callable[[Kafka], Load]


def loads(options: Options) -> Iterator[tuple[str, str, Ours, Theirs]]:
    for part, name, size in (("produce-1m", "1 MiB", MIB), ("produce-64k", "64 KiB", MIB // 16)):
        pool = [batch_of(size - 128, options.value_bytes) for _ in range(16 * MIB // size)]
        produce = ProduceLoad(options, produce_ring(pool, len(pool)), options.in_flight)
        yield part, f"produce, {name} requests", produce.to_broker, produce.to_new_topic
    fetch = FetchLoad(options, MIB)
    yield "fetch", "fetch, 1 MiB responses", fetch.from_broker, fetch.from_new_topic
    small = ProduceLoad(options, produce_ring([batch_of(0, 100) for _ in range(64)], 4096), 100)
    yield "small", "requests of one 100-byte record, 100 in flight", small.to_broker, small.to_new_topic


def compared(options: Options, path: Path, kafka: Kafka, name: str, ours: Ours, theirs: Theirs) -> Row:
    def on_kafka() -> Load:
        back_with_memory(path, options.largest)
        load = theirs(kafka)
        kafka.forget_topic()
        return load

    for cores in (set(CORES), {SERVER_CORE}):  # during warm-up the JIT compiler needs a second core
        kafka.pin(cores)
        for _ in range(WARM_UP_ROUNDS):
            on_kafka()
    result = against(ours, on_kafka, options.rounds)
    ours_rate, theirs_rate = result.requests_per_second(), result.others_requests_per_second()
    return Row(
        f"{name}, against Kafka {KAFKA_VERSION}",
        f"{result.comparison.ratio:.2f} x",
        "",
        None,
        f"{result.cpu()}; {ours_rate:,.0f} against {theirs_rate:,.0f} requests/s",
    )
