"""Progress within a job, from Spark's figures: also while tasks run, and only of the requested job."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stratalog.pipelines import job_watch
from stratalog.pipelines.cluster import FORMAT, ClusterAddress
from stratalog.pipelines.export import ExportOptions, export
from stratalog.pipelines.job_watch import Counts, Polling, counts_of
from stratalog.pipelines.progress import NoProgress
from tests.pipelines.conftest import FilledTopic


def test_records_of_a_job_are_counted_when_read_shuffled_and_written(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    topic, context = filled_topic(40, partitions=2), spark.sparkContext
    records = spark.read.format(FORMAT).options(**cluster.read_options(), subscribe=topic).load()
    context.setJobGroup("one", "")
    records.repartition(2).write.parquet(str(tmp_path / "out"))
    context.setJobGroup("another", "")
    assert records.where("offset < 5").count() == 10
    context._jsc.setLocalProperty(job_watch._GROUP, None)
    context._jsc.sc().listenerBus().waitUntilEmpty()
    assert counts_of(spark, "one") == Counts(read=40, shuffled=40, written=40)
    assert counts_of(spark, "another").read == 40
    assert counts_of(spark, "one", only_running=True) == counts_of(spark, "none") == Counts()


class Within(NoProgress):
    """Records the reports, within a step and at its end."""

    def __init__(self) -> None:
        self.within_a_step: list[int] = []
        self.steps: list[int] = []

    def within(self, done: int) -> None:
        self.within_a_step.append(done)

    def reached(self, done: int) -> None:
        self.steps.append(done)


def test_export_reports_progress_within_a_step(
    spark: SparkSession,
    cluster: ClusterAddress,
    filled_topic: FilledTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, progress = filled_topic(60, partitions=4), Within()
    polled: list[Polling] = []

    def poll_at_the_end(polling: Polling) -> None:
        """Poll once at the end, when Spark knows all figures of the step."""
        polled.append(polling)
        polling._ended.wait()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        polling._call()

    monkeypatch.setattr(Polling, "_run", poll_at_the_end)
    export(spark, cluster, [topic], str(tmp_path / "table"), ExportOptions(step_records=30), progress=progress)
    assert progress.steps == [28, 56, 60]
    assert progress.within_a_step == [28, 56, 60]
    assert len(polled) == 3


def test_polling_ends_with_its_block_and_ignores_its_errors() -> None:
    polls = threading.Semaphore(0)
    with Polling(polls.release, seconds=0.001):
        assert polls.acquire(timeout=60)

    def fail() -> None:
        polls.release()
        raise RuntimeError

    with Polling(fail, seconds=0.001) as polling:
        assert polls.acquire(timeout=60)
    assert not polling._thread.is_alive()
