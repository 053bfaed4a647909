"""Runs pieces of work on Spark, one task per piece, in rounds: the results of a round can be saved when it ends.

Large pieces come first, so each round ends with small ones, and no core waits long for the last. An interrupt cancels
the running round; earlier rounds are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from stratalog.pipelines.job_watch import Polling
from stratalog.pipelines.progress import Progress
from stratalog.pipelines.spark_errors import failures_explained

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

PIECES_PER_CORE = 8  # in a round; with so many, a slow piece matters little

P = TypeVar("P")
R = TypeVar("R")


def run_in_rounds(
    spark: SparkSession,
    pieces: Sequence[P],
    work: Callable[[P], R],
    size_of: Callable[[P], int],
    progress: Progress,
    what: str,
) -> Iterator[list[tuple[P, R]]]:
    """Yield rounds of pieces with their results. Executors must be able to import `work`; its errors end the job."""
    context = spark.sparkContext
    progress.begin(what, sum(map(size_of, pieces)), "bytes")
    done = context.accumulator(0)
    for batch in rounds(pieces, size_of, context.defaultParallelism * PIECES_PER_CORE):
        sized = [(piece, size_of(piece)) for piece in batch]
        context.setJobDescription(f"stratalog: {what}")
        with failures_explained(), Polling(lambda: progress.within(done.value)):
            results: list[R] = context.parallelize(sized, len(sized)).map(_Counted(work, done)).collect()
        progress.reached(done.value)
        yield list(zip(batch, results, strict=True))


def rounds(pieces: Sequence[P], size_of: Callable[[P], int], length: int) -> list[list[P]]:
    ordered = sorted(pieces, key=size_of, reverse=True)
    return [ordered[start : start + length] for start in range(0, len(ordered), length)]


class _Counted(Generic[P, R]):
    """A task: it does the work, and then adds its size to the total on the driver."""

    def __init__(self, work: Callable[[P], R], done: Accumulator[int]) -> None:
        self._work = work
        self._done = done

    def __call__(self, sized: tuple[P, int]) -> R:
        piece, size = sized
        result = self._work(piece)
        self._done.add(size)
        return result
