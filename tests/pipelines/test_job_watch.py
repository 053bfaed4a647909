"""How far Spark is within a job, from its own figures: also while tasks run, and only of the job that is asked for."""

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


def test_records_of_a_job_are_counted_where_they_are_read_moved_and_written(
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
    assert counts_of(spark, "one") == Counts(read=40, moved=40, written=40)
    assert counts_of(spark, "another").read == 40
    assert counts_of(spark, "one", only_running=True) == counts_of(spark, "none") == Counts()


class Within(NoProgress):
    """Waits for Spark's figures, and holds them: of the step under way, before it is reached."""

    def __init__(self) -> None:
        self.within_a_step: list[int] = []
        self.steps: list[int] = []

    def within(self, done: int) -> None:
        self.within_a_step.append(done)

    def reached(self, done: int) -> None:
        self.steps.append(done)


def test_export_tells_how_far_it_is_within_a_step(
    spark: SparkSession,
    cluster: ClusterAddress,
    filled_topic: FilledTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, told = filled_topic(60, partitions=4), Within()
    polled: list[Polling] = []

    def once_more(polling: Polling) -> None:
        """As a last look would be, with all that Spark knows of the step."""
        polled.append(polling)
        polling._ended.wait()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        polling._look()

    monkeypatch.setattr(Polling, "_run", once_more)
    export(spark, cluster, [topic], str(tmp_path / "table"), ExportOptions(step_records=30), progress=told)
    assert told.steps == [28, 56, 60]
    assert told.within_a_step == [28, 56, 60]
    assert len(polled) == 3


def test_polling_ends_with_its_block_and_hides_its_own_errors() -> None:
    looked = threading.Semaphore(0)
    with Polling(looked.release, seconds=0.001):
        assert looked.acquire(timeout=60)

    def fail() -> None:
        looked.release()
        raise RuntimeError

    with Polling(fail, seconds=0.001) as polling:
        assert looked.acquire(timeout=60)
    assert not polling._thread.is_alive()
