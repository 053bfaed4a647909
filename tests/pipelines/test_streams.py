"""What is around a stream of Spark's: rows in order, steps added up once, a slow start tried again. Without Spark."""

from __future__ import annotations

import threading
from typing import Any, ClassVar, cast

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from stratalog.pipelines import streams
from stratalog.pipelines.cluster import ClusterAddress
from stratalog.pipelines.job_watch import Counts
from stratalog.pipelines.progress import NoProgress
from stratalog.pipelines.streams import _sorted_by_time, run_stream


def batch(*rows: tuple[int, str]) -> pa.RecordBatch:
    times, values = zip(*rows, strict=True)
    return pa.record_batch({"timestamp": pa.array(times, pa.timestamp("us", "UTC")), "value": pa.array(values)})


def test_rows_of_a_task_come_in_the_order_of_their_times() -> None:
    found = list(_sorted_by_time(iter([batch((3, "c"), (1, "a")), batch((2, "b"), (1, "A"))])))
    assert [value for one in found for value in one.column("value").to_pylist()] == ["a", "A", "b", "c"]
    assert {one.schema for one in found} == {batch((1, "a")).schema}


def test_task_without_rows_gives_none() -> None:
    assert list(_sorted_by_time(iter([]))) == []


@pytest.fixture(autouse=True)
def _step_under_way_has_read_three_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark would be asked; test_job_watch.py asks it."""
    monkeypatch.setattr(streams, "counts_of", lambda _, group, *, only_running: Counts(read=3 if group == "run" else 0))


class Query:
    """Ends after some polls, or fails with a message; reports each step several times, the last as Spark does when it
    is idle: the step before once more, without rows."""

    def __init__(self, polls: int, failure: str = "") -> None:
        self.runId = "run"
        self._polls = polls
        self._failure = failure
        self.stopped = False

    def awaitTermination(self, _: float) -> bool:  # noqa: N802 - Spark's name
        if self._failure:
            raise StreamingQueryException(self._failure)
        self._polls -= 1
        return self._polls < 0

    def stop(self) -> None:
        self.stopped = True

    @property
    def recentProgress(self) -> list[dict[str, int]]:  # noqa: N802 - Spark's name
        reports = [{"batchId": 0, "numInputRows": 5}, {"batchId": 1, "numInputRows": 0 if self._polls > 0 else 7}]
        return [*reports, {"batchId": 1, "numInputRows": 0}]


class Frame:
    """As much of a frame as is written with; gives these queries one after another."""

    def __init__(self, *queries: Query) -> None:
        self.sparkSession = None
        self._queries = list(queries)
        self.given: dict[str, Any] = {}

    @property
    def frame(self) -> DataFrame:
        return cast("DataFrame", self)

    @property
    def writeStream(self) -> Frame:  # noqa: N802 - Spark's name
        return self

    def format(self, _: str) -> Frame:
        return self

    def options(self, **given: str) -> Frame:
        self.given |= given
        return self

    def trigger(self, **given: object) -> Frame:
        self.given |= given
        return self

    def start(self) -> Query:
        return self._queries.pop(0)


def run(*queries: Query, stop: threading.Event | None = None) -> int:
    return run_stream(Frame(*queries).frame, ClusterAddress("host:1"), "orders", "state", NoProgress(), stop=stop)


SLOW = "[STREAM_FAILED] terminated with exception: Python worker failed to connect back."


def test_steps_are_counted_once_however_often_they_are_reported() -> None:
    assert run(Query(polls=3)) == 12


def test_start_that_was_too_slow_for_spark_is_tried_again() -> None:
    assert run(Query(0, SLOW), Query(0, SLOW), Query(1)) == 12


def test_start_that_never_comes_is_an_error_in_the_end() -> None:
    with pytest.raises(StreamingQueryException, match="failed to connect back"):
        run(Query(0, SLOW), Query(0, SLOW), Query(0, SLOW), Query(1))


def test_other_failures_end_the_job_at_once() -> None:
    failing = Query(0, "topic is gone")
    with pytest.raises(StreamingQueryException, match="topic is gone"):
        run(failing, Query(1))
    assert failing.stopped


def test_job_that_is_told_to_stop_stops_its_stream() -> None:
    query, stop = Query(polls=1_000_000), threading.Event()
    stop.set()
    run(query, stop=stop)
    assert query.stopped


def test_records_of_the_step_under_way_are_told_before_it_ends() -> None:
    class Within(NoProgress):
        told: ClassVar[list[int]] = []

        def within(self, done: int) -> None:
            self.told.append(done)

    assert run_stream(Frame(Query(2)).frame, ClusterAddress("host:1"), "orders", "state", Within()) == 12
    assert Within.told == [5 + 3, 5 + 7 + 3]
