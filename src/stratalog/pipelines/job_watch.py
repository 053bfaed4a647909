"""How far Spark is within a job: the records that its tasks have read, moved and written so far.

Asked of Spark's own status every now and then, from a thread, as the one that waits for the job hears nothing before
its end. A task's figures come when it ends, and with the heartbeats of its executor before.
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
    """Records that went into a job from its source, through its shuffles, and out to files."""

    read: int = 0
    moved: int = 0
    written: int = 0


def counts_of(spark: SparkSession, group: str, *, only_running: bool = False) -> Counts:
    """Of all jobs of a group that Spark still remembers. `only_running`: of those that have not ended."""
    tracker = spark.sparkContext.statusTracker()
    jobs: Iterable[int] = tracker.getJobIdsForGroup(group)
    if only_running:
        running = set(tracker.getActiveJobsIds())
        jobs = [job for job in jobs if job in running]
    found = [tracker.getJobInfo(job) for job in jobs]
    # A job names those stages too that it took over from the one before.
    stages = {stage for info in found if info is not None for stage in info.stageIds}
    counts = [_counts_of_stage(spark, stage) for stage in stages]
    return Counts(*(sum(column) for column in zip(*counts, strict=True))) if counts else Counts()


def _counts_of_stage(spark: SparkSession, stage: int) -> Counts:
    from py4j.protocol import Py4JJavaError

    try:
        data = spark.sparkContext._jsc.sc().statusStore().lastStageAttempt(stage)
    except Py4JJavaError:
        return Counts()  # not begun, skipped, or forgotten
    return Counts(data.inputRecords(), data.shuffleReadRecords(), data.outputRecords())


@contextmanager
def watched(spark: SparkSession, tell: Callable[[Counts], None]) -> Iterator[None]:
    """Around an action of this thread: its counts so far are told again and again, from another thread."""
    context = spark.sparkContext
    group, before = f"stratalog-{uuid.uuid4().hex}", context.getLocalProperty(_GROUP)
    context.setLocalProperty(_GROUP, group)
    try:
        with Polling(lambda: tell(counts_of(spark, group))):
            yield
    finally:
        context._jsc.setLocalProperty(_GROUP, before)


class Polling:
    """Calls something now and then from a thread, until the block ends; not once more after that."""

    def __init__(self, look: Callable[[], None], seconds: float = _POLL_SECONDS) -> None:
        self._look = look
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
                self._look()
            except Exception:  # progress is for people: a Spark that is being stopped has none to tell
                return
