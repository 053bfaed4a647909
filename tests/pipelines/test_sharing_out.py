"""Pieces of work over a real Spark: every result comes back to its piece, progress is told, a failure ends it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stratalog.inspect.findings import Finding
from stratalog.pipelines import compact, verify
from stratalog.pipelines.progress import NoProgress
from stratalog.pipelines.sharing_out import rounds, share_out
from tests.pipelines.test_compact import left, write


class Told(NoProgress):
    def __init__(self) -> None:
        self.total: int | None = None
        self.last = 0

    def begin(self, what: str, total: int | None, unit: str) -> None:
        self.total = total

    def reached(self, done: int) -> None:
        assert done >= self.last
        self.last = done


class Silent:
    def report(self, finding: Finding) -> None:
        raise AssertionError(finding)

    def advanced(self, size: int) -> None:
        pass


def pid_and_double(piece: int) -> tuple[int, int]:
    if piece < 0:
        raise ValueError("a negative piece")
    return os.getpid(), piece * 2


def test_large_pieces_come_first() -> None:
    assert rounds([1, 5, 3, 9, 7], lambda piece: piece, 2) == [[9, 7], [5, 3], [1]]


def test_results_come_back_to_their_pieces_from_other_processes(spark: SparkSession) -> None:
    told = Told()
    found = [pair for some in share_out(spark, range(20), pid_and_double, int, told, "testing") for pair in some]
    assert {piece: result[1] for piece, result in found} == {piece: piece * 2 for piece in range(20)}
    assert os.getpid() not in {result[0] for _, result in found}
    assert told.last == told.total == sum(range(20))


def test_failed_task_ends_the_job(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="a negative piece"):
        list(share_out(spark, [-1], pid_and_double, abs, NoProgress(), "testing"))


def test_directory_is_verified_compacted_and_verified_by_tasks(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "table", partitions=3)
    (before,) = verify.verify(spark, [tmp_path], Silent())
    done = compact.compact(spark, tmp_path, ["table"])
    assert [result.failure for result in done] == ["", "", ""]
    assert left(tmp_path, "table") == [(6 + i, b"key-%d" % (i % 3)) for i in range(6)]
    assert (before.problems, sum(partition.records for partition in before.partitions)) == (0, 36)
