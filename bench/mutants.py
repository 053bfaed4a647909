"""Mutation testing: does a test fail when a line of the code is wrong? `python -m bench.mutants`

It makes one change in one file at a time (`<` becomes `<=`, a call is removed, ...), in a copy of the tree, and runs
the tests that execute the changed line. If no test fails, the mutant survives and is printed: either a test is missing,
or the change makes no difference. The sample depends only on the seed. At first, each package's tests run once with
coverage. A line that only child processes of the tests execute is "not covered", and its mutants count as survived.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bench.mutants_tests import ROOT, Knowledge, Tree
from bench.mutations import Mutation, python_mutations, still_compiles
from bench.mutations_pyx import pyx_mutations

EXAMPLES = """
examples:
  python -m bench.mutants                                     200 mutants of all packages
  python -m bench.mutants --count 40 --seed 1                 another, smaller sample
  python -m bench.mutants --package records storage --jobs 2  two packages, two at a time
  python -m bench.mutants --list                              print the changes and run nothing
"""
AT_LEAST = 3  # mutants per package, if it has as many
STARTUP = 20.0  # seconds for pytest and its imports on a busy machine
LIMIT_FACTOR = 5
NO_TESTS = 5  # pytest's exit code


@dataclass(frozen=True)
class Package:
    source: str
    tests: tuple[str, ...]


PACKAGES = {
    "records": Package("src/stratalog/records", ("tests/records",)),
    "storage": Package("src/stratalog/storage", ("tests/storage",)),
    "groups": Package("src/stratalog/broker/groups", ("tests/broker/groups", "tests/broker/apis")),
    "transactions": Package("src/stratalog/broker/transactions", ("tests/broker/transactions", "tests/broker/apis")),
    "planning": Package("src/stratalog/spark/planning.py", ("tests/spark/test_planning.py",)),
}


@dataclass(frozen=True)
class Outcome:
    package: str
    mutation: Mutation
    result: str  # killed, timed out, survived, not covered
    test: str = ""  # the test that failed

    @property
    def survived(self) -> bool:
        return self.result in ("survived", "not covered")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    sample = Sample(options.package or list(PACKAGES), options.count, options.seed)
    if options.list:
        for package, mutation in sample.listed():
            console.print(f"{package:<13}{mutation}", markup=False, highlight=False, soft_wrap=True)
        return 0
    outcomes: list[Outcome] = []
    status = 0
    with tempfile.TemporaryDirectory(prefix="stratalog-mutants-", ignore_cleanup_errors=True) as directory:
        try:
            trees = [Tree(Path(directory) / str(job), options.seed) for job in range(options.jobs)]
            _run(sample, trees, outcomes, console)
        except KeyboardInterrupt:
            console.print("interrupted; the results so far:")
            status = 130
    console.print(table(outcomes))
    if options.json:
        options.json.write_text(json.dumps([as_json(outcome) for outcome in outcomes], indent=1) + "\n")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.mutants",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=_positive, default=200, help="number of mutants (200)")
    parser.add_argument("--seed", type=int, default=2026, help="seed of the sample (2026)")
    parser.add_argument("--jobs", type=_positive, default=1, help="mutants to run at a time (1)")
    parser.add_argument(
        "--package", nargs="+", choices=PACKAGES, metavar="NAME", help=f"some of {', '.join(PACKAGES)} (all)"
    )
    parser.add_argument("--list", action="store_true", help="print the sample and exit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result of every mutant to a file")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not valid; it must be at least 1")
    return number


class Sample:
    """The mutants of a run. A mutant that does not compile is replaced by the next one of its package."""

    def __init__(self, packages: list[str], count: int, seed: int) -> None:
        by_package = {name: _mutations(PACKAGES[name].source) for name in packages}
        self.counts = shares({name: len(mutations) for name, mutations in by_package.items()}, count)
        self._drawn = {name: iter(drawn(mutations, f"{seed} {name}")) for name, mutations in by_package.items()}
        self._lock = threading.Lock()
        self.packages = [name for name, number in self.counts.items() for _ in range(number)]
        random.Random(seed).shuffle(self.packages)  # so that an interrupted run has results of each package

    def next(self, package: str) -> Mutation | None:
        """Return the package's next mutant, or None if there are no more."""
        with self._lock:
            for mutation in self._drawn[package]:
                if mutation.path.endswith(".pyx") or still_compiles(mutation, (ROOT / mutation.path).read_bytes()):
                    return mutation
        return None

    def listed(self) -> Iterator[tuple[str, Mutation]]:
        for package in sorted(self.packages, key=list(PACKAGES).index):
            mutation = self.next(package)
            if mutation is not None:
                yield package, mutation


def shares(available: dict[str, int], count: int) -> dict[str, int]:
    """Distribute `count` mutants over the packages in proportion to their available mutants. Each package gets a few,
    but not more than it has."""
    least = min(AT_LEAST, count // len(available))
    total = sum(available.values()) or 1
    exact = {name: count * number / total for name, number in available.items()}
    counts = {name: min(max(int(exact[name]), least), number) for name, number in available.items()}
    while sum(counts.values()) != count:
        too_few = count > sum(counts.values())
        step = 1 if too_few else -1
        candidates = [
            name for name in available if (counts[name] < available[name] if too_few else counts[name] > least)
        ]
        if not candidates:
            break
        name = max(candidates, key=lambda name: step * (exact[name] - counts[name]))
        counts[name] += step
    return counts


def drawn(mutations: list[Mutation], seed: str) -> list[Mutation]:
    """Return all mutations in an order that depends on the seed only."""
    return random.Random(seed).sample(mutations, len(mutations))


def _mutations(source: str) -> list[Mutation]:
    path = ROOT / source
    files = sorted(path.rglob("*.py*")) if path.is_dir() else [path]
    mutations: list[Mutation] = []
    for file in files:
        name = str(file.relative_to(ROOT))
        if file.suffix == ".py":
            mutations += python_mutations(name, file.read_bytes())
        elif file.suffix == ".pyx":
            mutations += pyx_mutations(name, file.read_bytes())
    return mutations


def _run(sample: Sample, trees: list[Tree], outcomes: list[Outcome], console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        knowledge = _learn(sample, trees[0], progress)
        task = progress.add_task("mutants", total=len(sample.packages))
        waiting: SimpleQueue[str] = SimpleQueue()
        for package in sample.packages:
            waiting.put(package)

        def report(outcome: Outcome) -> None:
            outcomes.append(outcome)
            progress.advance(task)
            if outcome.survived:
                progress.console.print(survivor_line(outcome), markup=False, highlight=False, soft_wrap=True)

        with ThreadPoolExecutor(len(trees)) as pool:
            workers = [pool.submit(_work, tree, sample, waiting, knowledge, report) for tree in trees]
            try:
                for worker in workers:
                    worker.result()
            finally:
                for tree in trees:
                    tree.stop()


def _learn(sample: Sample, tree: Tree, progress: Progress) -> Knowledge:
    chosen = [PACKAGES[name] for name in sample.counts]
    folders = list(dict.fromkeys(folder for package in chosen for folder in package.tests))
    sources = [package.source for package in chosen]
    knowledge = Knowledge()
    task = progress.add_task("tests with coverage", total=len(folders))
    for folder in folders:
        tree.learn(folder, sources, knowledge)
        progress.advance(task)
    if knowledge.unusable:
        names = ", ".join(knowledge.unusable[:5]) + (", ..." if len(knowledge.unusable) > 5 else "")
        progress.console.print(f"not used, because they fail or are skipped without a mutant: {names}", markup=False)
    return knowledge


def _work(
    tree: Tree, sample: Sample, waiting: SimpleQueue[str], knowledge: Knowledge, report: Callable[[Outcome], None]
) -> None:
    while True:
        try:
            package = waiting.get_nowait()
        except Empty:
            return
        outcome = None
        while outcome is None and (mutation := sample.next(package)) is not None:
            outcome = try_mutant(tree, package, mutation, knowledge)
        if outcome is not None:
            report(outcome)


def try_mutant(tree: Tree, package: str, mutation: Mutation, knowledge: Knowledge) -> Outcome | None:
    """Write the mutant, run the tests that can notice it, and restore the file. Return None if it does not compile."""
    tests = knowledge.tests_for(mutation, PACKAGES[package].tests)
    if not tests:
        return Outcome(package, mutation, "not covered")
    original = tree.read(mutation.path)
    is_kernel = mutation.path.endswith(".pyx")
    binary = tree.compiled(mutation.path) if is_kernel else None
    compiled = binary.read_bytes() if binary is not None else b""
    try:
        tree.write(mutation.path, mutation.apply(original))
        if is_kernel and not tree.build(mutation.path):
            return None
        limit = STARTUP + LIMIT_FACTOR * sum(knowledge.seconds[test] for test in tests)
        code, failed = tree.run_tests(tests, limit)
    finally:
        tree.write(mutation.path, original)
        if binary is not None:
            binary.unlink(missing_ok=True)
            binary.write_bytes(compiled)
    if code == NO_TESTS:
        raise RuntimeError(f"pytest did not find any of the {len(tests)} tests for {mutation}")
    return Outcome(package, mutation, {0: "survived", None: "timed out"}.get(code, "killed"), failed)


def survivor_line(outcome: Outcome) -> str:
    mutation = outcome.mutation
    source = (ROOT / mutation.path).read_text().splitlines()[mutation.line - 1].strip()
    note = " (not covered)" if outcome.result == "not covered" else ""
    return f"{mutation}{note}  | {source}"


def table(outcomes: list[Outcome]) -> Table:
    """Return the figures by package. Mutants that timed out count as killed."""
    result = Table(title="mutants by package")
    for column in ("package", "mutants", "killed", "survived", "timed out", "share killed"):
        result.add_column(column, justify="left" if column == "package" else "right")
    for name in PACKAGES:
        own = [outcome for outcome in outcomes if outcome.package == name]
        if own:
            result.add_row(name, *figures(own))
    result.add_section()
    result.add_row("all", *figures(outcomes))
    return result


def figures(outcomes: list[Outcome]) -> tuple[str, ...]:
    counts = Counter(outcome.result for outcome in outcomes)
    survived = sum(outcome.survived for outcome in outcomes)
    killed = len(outcomes) - survived
    share = f"{killed / len(outcomes):.0%}" if outcomes else "-"
    return str(len(outcomes)), str(killed), str(survived), str(counts["timed out"]), share


def as_json(outcome: Outcome) -> dict[str, object]:
    mutation = outcome.mutation
    return {
        "package": outcome.package,
        "path": mutation.path,
        "line": mutation.line,
        "before": mutation.before,
        "after": mutation.after,
        "result": outcome.result,
        "failed_test": outcome.test,
    }


if __name__ == "__main__":
    sys.exit(main())
