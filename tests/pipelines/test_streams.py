"""Running a stream: rows in order, micro-batches counted once, slow starts retried, failures explained. No Spark."""

from __future__ import annotations

import threading
import traceback
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
from stratalog.spark.failures import SparkFailedError


def batch(*rows: tuple[int, str]) -> pa.RecordBatch:
    times, values = zip(*rows, strict=True)
    return pa.record_batch({"timestamp": pa.array(times, pa.timestamp("us", "UTC")), "value": pa.array(values)})


def test_rows_of_a_task_come_in_the_order_of_their_times() -> None:
    batches = list(_sorted_by_time(iter([batch((3, "c"), (1, "a")), batch((2, "b"), (1, "A"))])))
    assert [value for each in batches for value in each.column("value").to_pylist()] == ["a", "A", "b", "c"]
    assert {each.schema for each in batches} == {batch((1, "a")).schema}


def test_task_without_rows_yields_no_batch() -> None:
    assert list(_sorted_by_time(iter([]))) == []


@pytest.fixture(autouse=True)
def _running_micro_batch_has_read_three_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the query of Spark's status, which test_job_watch.py covers."""
    monkeypatch.setattr(streams, "counts_of", lambda _, group, *, only_running: Counts(read=3 if group == "run" else 0))


class FakeQuery:
    """Ends after some polls, or fails with a message. It reports each micro-batch several times, and at the
    end the last one again without rows, as an idle Spark does."""

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
    """The parts of a frame that a write uses. It starts these queries one after another."""

    def __init__(self, *queries: FakeQuery) -> None:
        self.sparkSession = None
        self._queries = list(queries)
        self.settings: dict[str, Any] = {}

    @property
    def frame(self) -> DataFrame:
        return cast("DataFrame", self)

    @property
    def writeStream(self) -> Frame:  # noqa: N802 - Spark's name
        return self

    def format(self, _: str) -> Frame:
        return self

    def options(self, **options: str) -> Frame:
        self.settings |= options
        return self

    def trigger(self, **trigger: object) -> Frame:
        self.settings |= trigger
        return self

    def start(self) -> FakeQuery:
        return self._queries.pop(0)


def run(*queries: FakeQuery, stop: threading.Event | None = None) -> int:
    return run_stream(Frame(*queries).frame, ClusterAddress("host:1"), "orders", "state", NoProgress(), stop=stop)


SLOW = """[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back.
org.apache.spark.SparkException: Python worker failed to connect back.
\tat org.apache.spark.api.python.PythonWorkerFactory"""


def test_micro_batches_are_counted_once() -> None:
    assert run(FakeQuery(polls=3)) == 12


def test_slow_start_is_retried() -> None:
    assert run(FakeQuery(0, SLOW), FakeQuery(0, SLOW), FakeQuery(1)) == 12


def test_known_failure_is_explained_before_sparks_trace() -> None:
    with pytest.raises(SparkFailedError, match=r"^a Python worker of Spark did not start .*; .*local\[1\]") as raised:
        run(FakeQuery(0, SLOW), FakeQuery(0, SLOW), FakeQuery(0, SLOW), FakeQuery(1))
    assert "\n" not in str(raised.value)
    printed = "".join(traceback.format_exception(raised.value))
    assert printed.index("a Python worker of Spark did not start") < printed.index("failed to connect back")
    assert "PythonWorkerFactory" in printed


def test_other_failures_end_the_job_immediately() -> None:
    failing = FakeQuery(0, "no such topic")
    with pytest.raises(StreamingQueryException, match="no such topic"):
        run(failing, FakeQuery(1))
    assert failing.stopped


def test_stop_event_stops_the_stream() -> None:
    query, stop = FakeQuery(polls=1_000_000), threading.Event()
    stop.set()
    run(query, stop=stop)
    assert query.stopped


def test_progress_includes_the_running_micro_batch() -> None:
    class Within(NoProgress):
        reported: ClassVar[list[int]] = []

        def within(self, done: int) -> None:
            self.reported.append(done)

    assert run_stream(Frame(FakeQuery(2)).frame, ClusterAddress("host:1"), "orders", "state", Within()) == 12
    assert Within.reported == [5 + 3, 5 + 7 + 3]
