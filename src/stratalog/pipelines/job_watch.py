"""Watches a running Spark job: the records that its tasks have read, shuffled and written so far.

A thread polls Spark's status, because the thread that runs the job is blocked until the end. A task's figures arrive
with the heartbeats of its executor, and when the task ends.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.5
_GROUP = "spark.jobGroup.id"


class Counts(NamedTuple):
    """The records that a job has read from its source, moved through shuffles, and written to files."""

    read: int = 0
    shuffled: int = 0
    written: int = 0


def counts_of(spark: SparkSession, group: str, *, only_running: bool = False) -> Counts:
    """Return the sums over the jobs of a group that Spark still remembers, or with `only_running` that still run."""
    tracker = spark.sparkContext.statusTracker()
    jobs: Iterable[int] = tracker.getJobIdsForGroup(group)
    if only_running:
        running = set(tracker.getActiveJobsIds())
        jobs = [job for job in jobs if job in running]
    infos = [tracker.getJobInfo(job) for job in jobs]
    # A set, because a job also names the stages that it reuses from an earlier job.
    stages = {stage for info in infos if info is not None for stage in info.stageIds}
    counts = [_counts_of_stage(spark, stage) for stage in stages]
    return Counts(*(sum(column) for column in zip(*counts, strict=True))) if counts else Counts()


def _counts_of_stage(spark: SparkSession, stage: int) -> Counts:
    from py4j.protocol import Py4JJavaError

    try:
        data = spark.sparkContext._jsc.sc().statusStore().lastStageAttempt(stage)
    except Py4JJavaError:
        return Counts()  # not started, skipped, or no longer remembered
    return Counts(data.inputRecords(), data.shuffleReadRecords(), data.outputRecords())


@contextmanager
def watched(spark: SparkSession, report: Callable[[Counts], None]) -> Iterator[None]:
    """Call `report` from another thread, repeatedly, with the counts of the jobs that this thread runs in the block."""
    context = spark.sparkContext
    group, before = f"stratalog-{uuid.uuid4().hex}", context.getLocalProperty(_GROUP)
    context.setLocalProperty(_GROUP, group)
    try:
        with Polling(lambda: report(counts_of(spark, group))):
            yield
    finally:
        context._jsc.setLocalProperty(_GROUP, before)


class Polling:
    """Makes a call repeatedly from a thread until the block ends, and never after that."""

    def __init__(self, call: Callable[[], None], seconds: float = _POLL_SECONDS) -> None:
        self._call = call
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stratalog-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                self._call()
            except Exception:  # Spark is being stopped; missing progress must not fail the job
                return
