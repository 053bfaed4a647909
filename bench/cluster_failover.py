"""Many partitions: how long a killed leader stops writes, what idle clusters cost, and how long a start takes.

Each side runs alone, in turns with the other. The client is librdkafka: after a leader is killed, it sends one record
to each partition with acks=all, and repeats it until it is acknowledged. A partition whose leader lives waits too,
because the killed broker is still in its ISR.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from bench.cluster_sides import BROKERS, SIDES, WAIT_SECONDS, Side, running
from bench.report import Row, directory

PARTITIONS = 300
IDLE_SECONDS = 20.0
SETTLE_SECONDS = 10.0
SESSION_MS = 9_000  # Kafka's default
MANY_TOPICS = 1_000
MANY_TOPIC_PARTITIONS = 3
TOPICS_OF_REQUEST = 100
POLL_SECONDS = 0.05


class Probe:
    """Measures how long it takes until all partitions have acknowledged a record."""

    def __init__(self, side: Side, topics: list[str], partitions: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": side.bootstrap_servers,
                "acks": "all",
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.fast.interval.ms": 100,
                "message.timeout.ms": int(WAIT_SECONDS * 1000),
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
                "error_cb": lambda _: None,
            }
        )
        self._partitions = [(topic, partition) for topic in topics for partition in range(partitions)]
        self._waiting: set[tuple[str, int]] = set()

    def seconds(self) -> float:
        start = time.perf_counter()
        self._waiting = set(self._partitions)
        for topic, partition in self._partitions:
            self._producer.produce(topic, b"probe", partition=partition, on_delivery=self._delivered)
        while self._waiting:
            if time.perf_counter() - start > WAIT_SECONDS:
                raise TimeoutError(f"{len(self._waiting)} partitions took no writes within {WAIT_SECONDS:g} s")
            self._producer.poll(POLL_SECONDS)
        return time.perf_counter() - start

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise RuntimeError(f"a record was refused for good: {error}")
        topic, partition = message.topic(), message.partition()
        assert topic is not None and partition is not None
        self._waiting.discard((topic, partition))


@dataclass
class ClusterCosts:
    """Results of one side, over all rounds."""

    failover: list[float] = field(default_factory=list)
    created: list[float] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)  # share of a core
    idle_coordinator: list[float] = field(default_factory=list)


def failover(parent: Path | None, rounds: int) -> Iterator[Row]:
    """Kill each broker of both clusters in turn, `rounds` times."""
    results = (ClusterCosts(), ClusterCosts())
    with directory(parent) as path:
        for side, result in zip(SIDES, results, strict=True):
            with running(side, path, session_ms=SESSION_MS) as cluster:
                names = ["failover"]
                cluster.create_topics(names, PARTITIONS)
                _measure_idle(cluster, result)
                probe = Probe(cluster, names, PARTITIONS)
                for victim in BROKERS * rounds:
                    _kill_and_measure(cluster, victim, names, probe, result)
    ours, theirs = results
    yield _idle_row(PARTITIONS, ours, theirs, has_target=True)
    yield _failover_row(PARTITIONS, ours, theirs, has_target=True)


def many(parent: Path | None) -> Iterator[Row]:
    """Create thousands of partitions, restart the cluster, kill a broker, and measure the idle cluster."""
    results = (ClusterCosts(), ClusterCosts())
    partitions = MANY_TOPICS * MANY_TOPIC_PARTITIONS
    with directory(parent) as path:
        for side, result in zip(SIDES, results, strict=True):
            with running(side, path, session_ms=SESSION_MS) as cluster:
                names = [f"topic-{number:04}" for number in range(MANY_TOPICS)]
                start = time.perf_counter()
                for first in range(0, MANY_TOPICS, TOPICS_OF_REQUEST):
                    cluster.create_topics(names[first : first + TOPICS_OF_REQUEST], MANY_TOPIC_PARTITIONS)
                result.created.append(time.perf_counter() - start)
                _measure_idle(cluster, result)
                probe = Probe(cluster, names, MANY_TOPIC_PARTITIONS)
                _kill_and_measure(cluster, BROKERS[0], names, probe, result)
                start = time.perf_counter()
                cluster.restart()
                cluster.await_in_sync(names)
                result.started.append(time.perf_counter() - start)
    ours, theirs = results
    what = f"partitions: {partitions:,}, replication factor 3"
    for name, mine, others in (
        ("creation until all replicas are in sync", ours.created, theirs.created),
        ("stop and start of all brokers until all replicas are in sync", ours.started, theirs.started),
    ):
        yield Row(f"{what}: {name}", f"{mine[0]:.1f} s", "", None, f"against {others[0]:.1f} s")
    yield _idle_row(partitions, ours, theirs, has_target=False)
    yield _failover_row(partitions, ours, theirs, has_target=False)


def _measure_idle(cluster: Side, result: ClusterCosts) -> None:
    time.sleep(SETTLE_SECONDS)
    before, start = cluster.cpu(), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    cpu, seconds = cluster.cpu() - before, time.perf_counter() - start
    result.idle.append(cpu.all_brokers / seconds)
    result.idle_coordinator.append(cpu.coordinator / seconds)


def _kill_and_measure(cluster: Side, victim: int, names: list[str], probe: Probe, result: ClusterCosts) -> None:
    probe.seconds()
    cluster.kill_broker(victim)
    result.failover.append(probe.seconds())
    cluster.start_broker(victim)
    cluster.await_in_sync(names)
    probe.seconds()


def _idle_row(partitions: int, ours: ClusterCosts, theirs: ClusterCosts, *, has_target: bool) -> Row:
    mine, others = statistics.median(ours.idle), statistics.median(theirs.idle)
    return Row(
        f"idle brokers, each with {partitions:,} partitions, CPU of all three",
        f"{mine:.1%} of a core",
        f"<= {others:.1%}" if has_target else "",
        mine <= others if has_target else None,
        f"ZooKeeper {statistics.median(ours.idle_coordinator):.1%}; Kafka {others:.1%}",
    )


def _failover_row(partitions: int, ours: ClusterCosts, theirs: ClusterCosts, *, has_target: bool) -> Row:
    mine, others = statistics.median(ours.failover), statistics.median(theirs.failover)
    return Row(
        f"a broker of {partitions:,} partitions is killed: time until all take writes, session timeout "
        f"{SESSION_MS / 1000:g} s",
        f"{mine:.1f} s",
        f"<= {others:.1f} s" if has_target else "",
        mine <= others if has_target else None,
        f"longest {max(ours.failover):.1f} against {max(theirs.failover):.1f} s",
    )
