"""Pieces of work shared out over Spark, one task each, in rounds: after a round its results are there to be kept.

Large pieces come first, so that a round ends with small ones and cores do not wait long for the last. An interrupt
cancels what runs; the rounds before it are done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from stratalog.pipelines.progress import Progress

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

PIECES_A_CORE = 8  # a round; many enough that one that is slow matters little
_POLL_SECONDS = 0.2

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
        with _Watch(done, progress):
            results: list[R] = context.parallelize(sized, len(sized)).map(_Counted(work, done)).collect()
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


class _Watch:
    """Tells how far a round is, from a thread: the one that waits for it hears nothing before its end."""

    def __init__(self, done: Accumulator[int], progress: Progress) -> None:
        self._done = done
        self._progress = progress
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stratalog-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._progress.reached(self._done.value)

    def _run(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            self._progress.reached(self._done.value)
