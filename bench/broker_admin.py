"""Measure administrative requests for many topics and partitions: alone, or in turn with Apache Kafka.

Alone, creating topics has no target: most of it is the file system's time for five new names per partition. Kafka
responds to CreateTopics before it creates the partitions, so the comparison also measures how long it takes until all
of them can be used.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from bench.broker_frames import TOPIC, batch_of, produce_ring
from bench.broker_processes import broker
from bench.broker_sides import Server
from bench.broker_wire import Wire
from bench.measure import ROUNDS
from bench.report import Row, directory

TOPICS = 100
PARTITIONS_EACH = 4
RECORDS_PARTITIONS = 1_000
RATIO_TARGET = 3.0  # of Kafka's time


class Step(Enum):
    CREATE = f"create {TOPICS} topics of {PARTITIONS_EACH} partitions in one request"
    USABLE = f"create {TOPICS} topics of {PARTITIONS_EACH} partitions, until all partitions can be used"
    ALTER = f"alter the settings of {TOPICS} topics in one request"
    DELETE = f"delete {TOPICS} topics of {PARTITIONS_EACH} partitions in one request"
    DELETE_RECORDS = f"delete the records of {RECORDS_PARTITIONS:,} partitions in one request"


TARGET_SECONDS = {Step.DELETE: 0.5, Step.DELETE_RECORDS: 1.0}


class Measured(NamedTuple):
    seconds: float
    cpu: float


Round = dict[Step, Measured]


def admin(parent: Path | None) -> Iterator[Row]:
    rounds = [broker_round(parent) for _ in range(ROUNDS)]
    for step in Step:
        if step is Step.USABLE:
            continue  # the broker responds when the partitions can be used
        seconds, cpu = medians(rounds, step)
        target = TARGET_SECONDS.get(step)
        yield Row(
            step.value,
            f"{seconds:.2f} s",
            "" if target is None else f"<= {target:.1f} s",
            None if target is None else seconds <= target,
            f"{cpu:.2f} s",
        )


def compared_rows(ours: list[Round], theirs: list[Round], kafka_version: str) -> Iterator[Row]:
    for step in Step:
        our_seconds, our_cpu = medians(ours, step)
        their_seconds, their_cpu = medians(theirs, step)
        ratio = our_seconds / their_seconds
        has_target = step is not Step.CREATE  # Kafka responds before the partitions exist
        yield Row(
            f"{step.value}, against Kafka {kafka_version}",
            f"{ratio:.2f} x the time",
            f"<= {RATIO_TARGET:.1f} x" if has_target else "",
            ratio <= RATIO_TARGET if has_target else None,
            f"{our_cpu:.2f} against {their_cpu:.2f} s; {our_seconds * 1000:.0f} against {their_seconds * 1000:.0f} ms",
        )


def broker_round(parent: Path | None) -> Round:
    """Measure all steps on a new broker."""
    with directory(parent) as path, broker(path) as process:
        return measure_round(process, "new")


def measure_round(server: Server, name: str) -> Round:
    """Measure all steps. `name` begins the names of the topics, so that a server that is used again gets new ones."""
    topics = [f"{name}-{number}" for number in range(TOPICS)]
    indexes = list(range(RECORDS_PARTITIONS))
    with Wire(server.port) as wire:
        start = clock(server)
        wire.create_topics(topics, PARTITIONS_EACH)
        created = since(start, server)
        wire.await_leaders(topics, PARTITIONS_EACH)
        usable = since(start, server)
        altered = measured(server, lambda: wire.alter_configs(topics, {"retention.ms": "86400000"}))
        deleted = measured(server, lambda: wire.delete_topics(topics))
        wire.create_topic(TOPIC, RECORDS_PARTITIONS)
        wire.await_leaders([TOPIC], RECORDS_PARTITIONS)
        wire.produce(produce_ring([batch_of(0, 100)], 1, indexes).frames)
        trimmed = measured(server, lambda: wire.delete_records(TOPIC, indexes))
        wire.delete_topic(TOPIC)
    return {
        Step.CREATE: created,
        Step.USABLE: usable,
        Step.ALTER: altered,
        Step.DELETE: deleted,
        Step.DELETE_RECORDS: trimmed,
    }


def measured(server: Server, call: Callable[[], None]) -> Measured:
    start = clock(server)
    call()
    return since(start, server)


def clock(server: Server) -> Measured:
    return Measured(time.perf_counter(), sum(server.cpu()))


def since(start: Measured, server: Server) -> Measured:
    now = clock(server)
    return Measured(now.seconds - start.seconds, now.cpu - start.cpu)


def medians(rounds: list[Round], step: Step) -> Measured:
    return Measured(
        statistics.median(measured[step].seconds for measured in rounds),
        statistics.median(measured[step].cpu for measured in rounds),
    )
