"""Replicated produce and the copying of followers, with Kafka's own ProducerPerformance as the client of both sides."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.compat.jvm import SILENT, java_command

from bench.cluster_sides import BROKERS, SIDES, CpuSeconds, Side, running
from bench.report import Row, directory

MIB = 1024 * 1024
GB = 1e9
RECORD_BYTES = 1024
PRODUCER_SECONDS = 600
PAUSED_SESSION_MS = 6_000
# The compiler level overrides a setting for quick starts.
PRODUCER_JVM = ("-XX:TieredStopAtLevel=4", "-Xmx512m", *SILENT)
_RESULT = re.compile(
    r"records sent, .*\(([\d.]+) MB/sec\), ([\d.]+) ms avg latency.* (\d+) ms 99th, (\d+) ms 99\.9th\."
)


@dataclass(frozen=True)
class Produced:
    """The result of one run of ProducerPerformance."""

    mib_per_second: float
    average_ms: float
    p99_ms: float
    gb: float
    cpu: CpuSeconds
    leader_cpu: float  # of the brokers that led partitions

    @property
    def follower_cpu(self) -> float:
        return self.cpu.all_brokers - self.leader_cpu


@dataclass(frozen=True)
class CaughtUp:
    """The cost of copying the records that a follower had missed."""

    gb: float
    seconds: float
    follower_cpu: float
    leader_cpu: float


def perform(side: Side, topic: str, mib: int, records_per_second: int = -1, *settings: str) -> Produced:
    """Produce so many MiB to the topic with acks=all."""
    records = mib * MIB // RECORD_BYTES
    arguments = ["--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES)]
    arguments += ["--throughput", str(records_per_second)]
    leaders = {each.leader for each in side.partitions([topic])}
    servers = ",".join(side.address(node_id) for node_id in leaders)  # a paused broker would not answer
    arguments += ["--producer-props", f"bootstrap.servers={servers}", "acks=all", *settings]
    command = java_command("org.apache.kafka.tools.ProducerPerformance", arguments, options=PRODUCER_JVM)
    before = side.cpu()
    output = subprocess.run(command, capture_output=True, text=True, timeout=PRODUCER_SECONDS, check=True).stdout
    cpu = side.cpu() - before
    result = _RESULT.search(output.splitlines()[-1])
    if result is None:
        raise ValueError(f"ProducerPerformance reported no result: {output[-1000:]}")
    leader_cpu = sum(cpu.brokers[node_id] for node_id in leaders)
    speed, average, p99, _ = map(float, result.groups())
    return Produced(speed, average, p99, records * RECORD_BYTES / GB, cpu, leader_cpu)


def produce(parent: Path | None, mib: int, rounds: int) -> Iterator[Row]:
    """Compare both sides, round by round. Both clusters run all the time, idle while the other is measured."""
    with directory(parent) as path, ExitStack() as stack:
        sides = [stack.enter_context(running(side, path)) for side in SIDES]
        for side in sides:  # the JVM compiles at run time
            for number in range(2):
                _on_new_topic(side, f"warm-up-{number}", 12, mib)
        for partitions in (1, 12):
            runs: tuple[list[Produced], list[Produced]] = ([], [])
            for number in range(rounds):
                for index in (0, 1) if number % 2 else (1, 0):
                    runs[index].append(_on_new_topic(sides[index], f"round-{partitions}-{number}", partitions, mib))
            yield from _rows(partitions, *runs)


def _on_new_topic(side: Side, topic: str, partitions: int, mib: int) -> Produced:
    assignment = [[BROKERS[(index + step) % len(BROKERS)] for step in range(3)] for index in range(partitions)]
    side.create_topics([topic], partitions, assignment=assignment)
    produced = perform(side, topic, mib)
    side.delete_topics([topic])
    return produced


def _rows(partitions: int, ours: list[Produced], theirs: list[Produced]) -> Iterator[Row]:
    what = f"produce, replication factor 3, acks=all, 1 KiB records, partitions: {partitions}"
    ratio = statistics.median(a.mib_per_second / b.mib_per_second for a, b in zip(ours, theirs, strict=True))
    speeds = [statistics.median(run.mib_per_second for run in runs) for runs in (ours, theirs)]
    yield Row(
        f"{what}, against Kafka",
        f"{ratio:.2f} x",
        ">= 1.00 x",
        ratio >= 1,
        f"{speeds[0]:.1f} against {speeds[1]:.1f} MiB/s; {_cpu(ours)} against {_cpu(theirs)}",
    )
    p99, average = _latencies(ours)
    other_p99, other_average = _latencies(theirs)
    yield Row(
        f"{what}: p99 latency",
        f"{p99:.0f} ms",
        f"<= {other_p99:.0f} ms",
        p99 <= other_p99,
        f"average {average:.0f} against {other_average:.0f} ms",
    )
    if partitions == 1:
        followers, others = (sum(run.follower_cpu for run in runs) for runs in (ours, theirs))
        gb = 2 * sum(run.gb for run in ours)
        yield Row(
            "two followers that copy during the produce, CPU",
            f"{followers / gb:.2f} s/GB",
            f"<= {others / gb:.2f} s/GB",
            followers <= others,
            f"leader {sum(run.leader_cpu for run in ours) * 2 / gb:.2f} against "
            f"{sum(run.leader_cpu for run in theirs) * 2 / gb:.2f} s/GB",
        )


def catch_up(parent: Path | None, mib: int, rounds: int) -> Iterator[Row]:
    """Pause a follower for longer than its session, produce to the others, and measure how it catches up."""
    with directory(parent) as path, ExitStack() as stack:
        sides = [stack.enter_context(running(side, path, session_ms=PAUSED_SESSION_MS)) for side in SIDES]
        runs: tuple[list[CaughtUp], list[CaughtUp]] = ([], [])
        for number in range(rounds + 1):
            for side, results in zip(sides, runs, strict=True):
                results.append(_catch_up_once(side, f"catch-up-{number}", mib))
    ours, theirs = (results[1:] for results in runs)  # the JVM compiles in the first round
    gb = sum(run.gb for run in ours)
    mine, others = (sum(run.follower_cpu for run in results) / gb for results in (ours, theirs))
    leader, other_leader = (sum(run.leader_cpu for run in results) / gb for results in (ours, theirs))
    speed, other_speed = (
        statistics.median(run.gb * 1000 / run.seconds for run in results) for results in (ours, theirs)
    )
    yield Row(
        "a follower that catches up, CPU",
        f"{mine:.2f} s/GB",
        f"<= {others:.2f} s/GB",
        mine <= others,
        f"leader {leader:.2f} against {other_leader:.2f} s/GB; {speed:.0f} against {other_speed:.0f} MB/s",
    )


def _catch_up_once(side: Side, topic: str, mib: int) -> CaughtUp:
    leader, paused = BROKERS[0], BROKERS[-1]
    side.create_topics([topic], 1, assignment=[list(BROKERS)])
    os.kill(side.pid(paused), signal.SIGSTOP)
    try:
        side.await_in_sync([topic], len(BROKERS) - 1)
        produced = perform(side, topic, mib)
        before, start = side.cpu(), time.perf_counter()
    finally:
        os.kill(side.pid(paused), signal.SIGCONT)
    side.await_in_sync([topic])
    cpu, seconds = side.cpu() - before, time.perf_counter() - start
    side.delete_topics([topic])
    return CaughtUp(produced.gb, seconds, cpu.brokers[paused], cpu.brokers[leader])


def _latencies(runs: list[Produced]) -> tuple[float, float]:
    return statistics.median(run.p99_ms for run in runs), statistics.median(run.average_ms for run in runs)


def _cpu(runs: list[Produced]) -> str:
    gb = sum(run.gb for run in runs)
    brokers = sum(run.cpu.all_brokers for run in runs) / gb
    coordinator = sum(run.cpu.coordinator for run in runs) / gb
    return f"{brokers:.2f} s/GB" + (f" + ZooKeeper {coordinator:.2f}" if coordinator else "")
