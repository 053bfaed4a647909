"""Ratios that hold on a noisy machine: both sides alternate in one run, median of five rounds, CPU and wall time."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS = 5


@dataclass(frozen=True)
class Cost:
    wall: float
    cpu: float  # of the calling process: user and system


def cost_of(work: Callable[[], object]) -> Cost:
    gc.collect()
    gc.disable()
    before, wall = os.times(), time.perf_counter()
    try:
        work()
    finally:
        gc.enable()
    wall, after = time.perf_counter() - wall, os.times()
    return Cost(wall, after.user - before.user + after.system - before.system)


@dataclass(frozen=True)
class Comparison:
    """Medians of both sides, and the median of the rounds' ratios (peer's cost / ours: 1 is as fast as the peer)."""

    ours: Cost
    peer: Cost
    ratio: float
    cpu_ratio: float


def compare(ours: Callable[[], Cost], peer: Callable[[], Cost], rounds: int = ROUNDS) -> Comparison:
    """Run both sides in turn, in changing order, after one round that does not count."""
    ours(), peer()
    pairs = []
    for number in range(rounds):
        if number % 2:
            other, mine = peer(), ours()
        else:
            mine, other = ours(), peer()
        pairs.append((mine, other))
    return Comparison(
        median([mine for mine, _ in pairs]),
        median([other for _, other in pairs]),
        statistics.median(other.wall / mine.wall for mine, other in pairs),
        statistics.median(other.cpu / max(mine.cpu, 1e-9) for mine, other in pairs),
    )


def median(costs: list[Cost]) -> Cost:
    return Cost(statistics.median(c.wall for c in costs), statistics.median(c.cpu for c in costs))
