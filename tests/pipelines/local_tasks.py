"""Replaces Spark for jobs that only run pieces of work as tasks: the pieces run here, one after another.

test_task_rounds.py runs them on a real Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from pyspark.sql import SparkSession


class _Number:
    def __init__(self) -> None:
        self.value = 0

    def add(self, more: int) -> None:
        self.value += more


class _Pieces:
    def __init__(self, pieces: Iterable[Any]) -> None:
        self._pieces = pieces

    def map(self, work: Callable[[Any], Any]) -> _Pieces:
        return _Pieces(map(work, self._pieces))

    def collect(self) -> list[Any]:
        return list(self._pieces)


class _Context:
    defaultParallelism = 2  # noqa: N815 - Spark's name

    def __init__(self) -> None:
        self.rounds: list[list[Any]] = []

    def accumulator(self, _: int) -> _Number:
        return _Number()

    def setJobDescription(self, _: str) -> None:  # noqa: N802 - Spark's name
        pass

    def parallelize(self, pieces: list[Any], count: int) -> _Pieces:
        assert len(pieces) == count
        self.rounds.append([piece for piece, _ in pieces])
        return _Pieces(pieces)


class LocalTasks:
    def __init__(self) -> None:
        self.context = _Context()

    @property
    def spark(self) -> SparkSession:
        return cast("SparkSession", self)

    @property
    def sparkContext(self) -> _Context:  # noqa: N802 - Spark's name
        return self.context
