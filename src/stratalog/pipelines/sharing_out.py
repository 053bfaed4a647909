"""Pieces of work shared out over Spark, one task each, in rounds: after a round its results are there to be kept.

Large pieces come first, so that a round ends with small ones and cores do not wait long for the last. An interrupt
cancels what runs; the rounds before it are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from stratalog.pipelines.job_watch import Polling
from stratalog.pipelines.progress import Progress

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

PIECES_A_CORE = 8  # a round; many enough that one that is slow matters little

P = TypeVar("P")
R = TypeVar("R")


def share_out(
    spark: SparkSession,
    pieces: Sequence[P],
    work: Callable[[P], R],
    size_of: Callable[[P], int],
    progress: Progress,
    what: str,
) -> Iterator[list[tuple[P, R]]]:
    """Rounds of pieces with their results. `work` must be importable on the executors; what it raises ends the job."""
    context = spark.sparkContext
    progress.begin(what, sum(map(size_of, pieces)), "bytes")
    done = context.accumulator(0)
    for some in rounds(pieces, size_of, context.defaultParallelism * PIECES_A_CORE):
        sized = [(piece, size_of(piece)) for piece in some]
        context.setJobDescription(f"stratalog: {what}")
        with Polling(lambda: progress.within(done.value)):
            results: list[R] = context.parallelize(sized, len(sized)).map(_Counted(work, done)).collect()
        progress.reached(done.value)
        yield list(zip(some, results, strict=True))


def rounds(pieces: Sequence[P], size_of: Callable[[P], int], length: int) -> list[list[P]]:
    ordered = sorted(pieces, key=size_of, reverse=True)
    return [ordered[start : start + length] for start in range(0, len(ordered), length)]


class _Counted(Generic[P, R]):
    """A task: the work, and its size added up on the driver when it is done."""

    def __init__(self, work: Callable[[P], R], done: Accumulator[int]) -> None:
        self._work = work
        self._done = done

    def __call__(self, sized: tuple[P, int]) -> R:
        piece, size = sized
        result = self._work(piece)
        self._done.add(size)
        return result
