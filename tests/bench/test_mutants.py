"""Mutation testing: the choice of mutants, the choice of tests for each, and the figures at the end."""

from __future__ import annotations

from io import StringIO

import pytest
from bench.mutants import PACKAGES, Outcome, drawn, figures, main, shares, table
from bench.mutants_tests import ROOT, Knowledge
from bench.mutations import Mutation, python_mutations
from rich.console import Console

SOURCE = b"LIMIT = 5\ndef f(a):\n    return a + 1\ndef g(a):\n    return a - 1\n"
MUTATIONS = python_mutations("src/a.py", SOURCE)
FOLDER = ("tests/a",)


def on_line(line: int) -> Mutation:
    return next(mutation for mutation in MUTATIONS if mutation.line == line)


def knowledge() -> Knowledge:
    seconds = {"tests/a/test_x.py::f": 3.0, "tests/a/test_x.py::g": 2.0, "tests/a/test_y.py::f": 4.0}
    return Knowledge(
        seconds={**seconds, "tests/ab/test_z.py::f": 1.0},
        executed_by={
            "src/a.py": {1: [""], 3: ["tests/a/test_x.py::f", "tests/ab/test_z.py::f"], 5: ["tests/a/test_x.py"]}
        },
    )


def test_seed_decides_the_mutants() -> None:
    many = [on_line(3)] + MUTATIONS * 5
    assert drawn(many, "1 a") == drawn(many, "1 a")
    assert drawn(many, "1 a") != drawn(many, "2 a")


def test_shares_are_proportional_but_a_small_package_gets_a_few() -> None:
    assert shares({"large": 900, "small": 10}, 100) == {"large": 97, "small": 3}
    assert shares({"large": 600, "half": 300}, 90) == {"large": 60, "half": 30}
    assert shares({"a": 500, "b": 500, "c": 500}, 10) == {"a": 4, "b": 3, "c": 3}


def test_package_gets_no_more_mutants_than_it_has() -> None:
    assert shares({"a": 2, "b": 5}, 100) == {"a": 2, "b": 5}
    assert sum(shares({"a": 10, "b": 10, "c": 10}, 2).values()) == 2


def test_only_tests_that_execute_the_line_are_run() -> None:
    assert knowledge().tests_for(on_line(3), FOLDER) == ["tests/a/test_x.py::f"]


def test_lines_of_a_shared_fixture_count_for_all_tests_of_the_file() -> None:
    assert knowledge().tests_for(on_line(5), FOLDER) == ["tests/a/test_x.py::g", "tests/a/test_x.py::f"]


def test_lines_run_at_import_count_for_all_tests() -> None:
    files = [test.partition("::")[0] for test in knowledge().tests_for(on_line(1), FOLDER)]
    assert files == ["tests/a/test_y.py", "tests/a/test_x.py", "tests/a/test_x.py"]


def test_line_that_no_test_executes_has_no_tests() -> None:
    assert Knowledge(seconds={"tests/a/test_x.py::f": 1.0}).tests_for(on_line(3), FOLDER) == []


def test_timed_out_counts_as_killed_and_not_covered_as_survived() -> None:
    results = ["killed", "timed out", "survived", "not covered"]
    outcomes = [Outcome("records", MUTATIONS[0], result) for result in results]
    assert figures(outcomes) == ("4", "2", "2", "1", "50%")
    console = Console(file=StringIO(), width=100)
    console.print(table(outcomes))
    assert isinstance(console.file, StringIO)
    assert "records" in console.file.getvalue()
    assert "storage" not in console.file.getvalue()


def test_empty_table_can_be_printed() -> None:
    assert figures([]) == ("0", "0", "0", "0", "-")


def test_packages_and_their_tests_exist() -> None:
    paths = [path for package in PACKAGES.values() for path in (package.source, *package.tests)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_list_prints_the_requested_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--count", "7", "--package", "planning", "transactions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert all(" -> " in line for line in lines)
