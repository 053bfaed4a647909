"""Run all fault tests that `make test` only samples: power cuts, failing calls, truncated files, flipped bits, kill -9
of a broker and its clients, and random faults of a cluster (`bench/cluster_faults.py`). `make faults` runs this.

Each part runs until it is done or until a case fails. It then prints how to repeat that case. `--only` selects a part,
and `--share` shortens all of them: `python -m bench.faults --only flips --share 0.1`.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from tests.broker.replication.simulation import first_violation
from tests.clients.copy_rounds import copy_under_kills
from tests.clients.transactional import TRANSACTIONAL_CLIENTS
from tests.cluster.campaign import Campaign
from tests.spark.batch_rounds import BatchRounds
from tests.spark.driver_process import CLUSTER
from tests.spark.dying_sink import DRIVER_POINTS, TASK_POINTS
from tests.spark.stream_rounds import EXECUTOR, KINDS, Rounds
from tests.storage.faults.damaged_files import DamagedLog, cut_to, cuts, flip, flips
from tests.storage.faults.failing_calls import FailingCalls
from tests.storage.faults.failing_disk import FAULTS
from tests.storage.faults.killing import kill_rounds
from tests.storage.faults.power_cut import PowerCuts

from bench.cluster_faults import ROUNDS

T = TypeVar("T")
Tick = Callable[[], None]
POWER_CUTS = 1000
IMAGES_PER_WORKLOAD = 25
KILLS = 1000
COPIER_KILLS = 50  # with each client
STREAM_KILLS = 30  # at random, in addition to the planned ones
EXECUTOR_KILLS = 5
BATCH_KILLS = 15
SIMULATIONS = 10_000
CLUSTER_SECONDS = 3 * 60 * 60
MOST_CALLS = 5000  # more disk calls than one run makes


@dataclass(frozen=True)
class Part:
    """A kind of fault: `run(where, count, tick)` runs `count` of its `total` cases."""

    name: str
    total: int
    run: Callable[[Path, int, Tick], int]


def power_cuts(where: Path, count: int, tick: Tick) -> int:
    done = 0
    for seed in range(1000, 1000 + -(-count // IMAGES_PER_WORKLOAD)):
        work = PowerCuts(where / str(seed), seed, min(IMAGES_PER_WORKLOAD, count - done), progress=tick)
        work.run()
        done += work.taken
        shutil.rmtree(where / str(seed))
    return done


def failing_calls(where: Path, count: int, tick: Tick) -> int:
    """Inject every kind of fault at every disk call, for one, four and nine calls in a row."""
    done = 0
    for length in (1, 4, 9):
        for number, fault in enumerate(FAULTS):
            for nth in range(1, MOST_CALLS):
                if done >= count:
                    return done
                struck = FailingCalls(where / "work", 100 * length + number, fault, nth, length).run()
                shutil.rmtree(where / "work", ignore_errors=True)
                done += 1
                tick()
                if not struck:
                    break
    return done


def cut_files(where: Path, count: int, tick: Tick) -> int:
    log = DamagedLog(where)
    cases = [(state, *cut) for state in ("killed", "closed") for cut in cuts(log, state)]
    for state, name, size in _some(cases, count):
        with _named(f"{state}, {name} truncated to {size} bytes"):
            log.check(state, name, cut_to(size), random.Random(size))
        tick()
    return min(count, len(cases))


def flipped_bits(where: Path, count: int, tick: Tick) -> int:
    log = DamagedLog(where)
    cases = [(state, *bit) for state in ("killed", "closed") for bit in flips(log, state)]
    for state, name, bit in _some(cases, count):
        with _named(f"{state}, {name}, bit {bit}"):
            log.check(state, name, flip(bit), random.Random(bit))
        tick()
    return min(count, len(cases))


def kills(where: Path, count: int, tick: Tick) -> int:  # noqa: ARG001 - it uses its own directories
    return kill_rounds(count, 1000, lambda _: tick())


def copies(where: Path, count: int, tick: Tick) -> int:
    """Read, process and write in transactions with each client, while the broker and the program are killed."""
    rounds = -(-count // len(TRANSACTIONAL_CLIENTS))
    for number, client in enumerate(TRANSACTIONAL_CLIENTS):
        with _named(f"{client}, seed {1000 + number}"):
            copy_under_kills(where / client, client, rounds, 1000 + number, tick)
    return rounds * len(TRANSACTIONAL_CLIENTS)


def streams(where: Path, count: int, tick: Tick) -> int:
    """Run a Spark stream into a topic while driver, workers and broker are killed, first at each planned point."""
    points = (*TASK_POINTS, *DRIVER_POINTS)[:count]
    kinds = random.Random(1000).choices(KINDS, k=max(count - len(points), 0))
    Rounds(where, 1000).run([(point,) for point in points], kinds, tick)
    return len(points) + len(kinds)


def executors(where: Path, count: int, tick: Tick) -> int:
    """Run the same on a cluster of two executors, which are killed with their JVMs."""
    Rounds(where, 2000, CLUSTER).run([], [EXECUTOR] * count, tick)
    return count


def batches(where: Path, count: int, tick: Tick) -> int:
    """Run Spark batch writes while driver, workers and broker are killed: each write has to be atomic."""
    BatchRounds(where, 3000).run(random.Random(3000).choices(KINDS, k=count), tick)
    return count


def simulations(where: Path, count: int, tick: Tick) -> int:  # noqa: ARG001 - nothing is written
    """Simulate the rules of replication. The first seeds are those of `make test-slow`."""
    for seed in range(count):
        violation = first_violation([seed])
        if violation is not None:
            raise AssertionError(f"{violation[1]}; replay it: python -m tests.broker.replication.simulation {seed}")
        tick()
    return count


def cluster(where: Path, count: int, tick: Tick) -> int:
    """Kill, pause and cut off brokers of a cluster under load, and restart ZooKeeper. The seed is a new one each time;
    a failure names it, and `python -m bench.cluster_faults --seed` repeats it."""
    counts = {kind: -(-rounds * count // sum(ROUNDS.values())) for kind, rounds in ROUNDS.items()}
    campaign = Campaign(where, random.SystemRandom().randrange(10**6))
    campaign.run(counts, CLUSTER_SECONDS, tick)
    return campaign.done.total()


def _some(cases: list[T], count: int) -> list[T]:
    return cases if count >= len(cases) else random.Random(1).sample(cases, count)


@contextmanager
def _named(case: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{case}: {error}") from error


NAMES = (
    "power cuts",
    "failing calls",
    "cuts",
    "flips",
    "kills",
    "copies",
    "streams",
    "executors",
    "batches",
    "simulations",
    "cluster",
)


def parts() -> list[Part]:
    with tempfile.TemporaryDirectory() as temporary:
        log = DamagedLog(Path(temporary))
        all_cuts, all_flips = (sum(len(each(log, state)) for state in ("killed", "closed")) for each in (cuts, flips))
    return [
        Part("power cuts", POWER_CUTS, power_cuts),
        Part("failing calls", 3 * len(FAULTS) * 350, failing_calls),
        Part("cuts", all_cuts, cut_files),
        Part("flips", all_flips, flipped_bits),
        Part("kills", KILLS, kills),
        Part("copies", COPIER_KILLS * len(TRANSACTIONAL_CLIENTS), copies),
        Part("streams", STREAM_KILLS + len(TASK_POINTS) + len(DRIVER_POINTS), streams),
        Part("executors", EXECUTOR_KILLS, executors),
        Part("batches", BATCH_KILLS, batches),
        Part("simulations", SIMULATIONS, simulations),
        Part("cluster", sum(ROUNDS.values()), cluster),
    ]


def run(part: Part, share: float, console: Console) -> tuple[int, float, str | None]:
    """Return how many cases ran, how many seconds they took, and what failed."""
    count = max(1, round(part.total * share))
    where = Path(tempfile.mkdtemp(prefix="stratalog-faults-"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    start = time.monotonic()
    done = 0
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(part.name, total=count)

        def tick() -> None:
            nonlocal done
            done += 1
            progress.advance(task)

        try:
            part.run(where, count, tick)
        except AssertionError as error:
            return done, time.monotonic() - start, str(error)
    shutil.rmtree(where)
    return done, time.monotonic() - start, None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NAMES, action="append", help="run one part; can be repeated")
    parser.add_argument("--share", type=float, default=1.0, help="the share of all cases to run: 0.1 for a tenth")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    table = Table(title="faults")
    for column in ("what", "cases", "seconds", "outcome"):
        table.add_column(column)
    failed = False
    for part in parts():
        if arguments.only and part.name not in arguments.only:
            continue
        done, seconds, problem = run(part, arguments.share, Console(stderr=True))
        table.add_row(part.name, f"{done:,}", f"{seconds:.0f}", problem or "passed")
        failed = failed or problem is not None
    Console().print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
