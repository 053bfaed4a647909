"""Measure how long the broker takes to create and delete many topics in one request, and to delete the records of many
partitions. Creating has no target: most of it is the file system's time for five new names per partition, and Apache
Kafka responds before it creates them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.broker_frames import TOPIC, batch_of, produce_ring
from bench.broker_processes import Process, broker
from bench.broker_wire import Wire
from bench.measure import ROUNDS
from bench.report import Row, directory

TOPICS = 100
PARTITIONS_EACH = 4
RECORDS_PARTITIONS = 1_000

Measured = tuple[float, float]  # seconds and CPU seconds


def admin(parent: Path | None) -> Iterator[Row]:
    names = [f"topic-{number}" for number in range(TOPICS)]
    created: list[Measured] = []
    deleted: list[Measured] = []
    trimmed: list[Measured] = []
    indexes = list(range(RECORDS_PARTITIONS))
    for _ in range(ROUNDS):
        with directory(parent) as path, broker(path) as process, Wire(process.port) as wire:
            created.append(_measured(process, lambda: wire.create_topics(names, PARTITIONS_EACH)))
            deleted.append(_measured(process, lambda: wire.delete_topics(names)))
            wire.create_topic(TOPIC, RECORDS_PARTITIONS)
            wire.produce(produce_ring([batch_of(0, 100)], 1, indexes).frames)
            trimmed.append(_measured(process, lambda: wire.delete_records(TOPIC, indexes)))
    yield _row(f"create {TOPICS} topics of {PARTITIONS_EACH} partitions in one request", created, None)
    yield _row(f"delete {TOPICS} topics of {PARTITIONS_EACH} partitions in one request", deleted, 0.5)
    yield _row(f"delete the records of {RECORDS_PARTITIONS:,} partitions in one request", trimmed, 1.0)


def _measured(process: Process, call: Callable[[], None]) -> Measured:
    cpu, start = sum(process.cpu()), time.perf_counter()
    call()
    return time.perf_counter() - start, sum(process.cpu()) - cpu


def _row(what: str, measured: list[Measured], target: float | None) -> Row:
    seconds = statistics.median(seconds for seconds, _ in measured)
    cpu = statistics.median(cpu for _, cpu in measured)
    return Row(
        what,
        f"{seconds:.2f} s",
        "" if target is None else f"<= {target:.1f} s",
        None if target is None else seconds <= target,
        f"{cpu:.2f} s",
    )
