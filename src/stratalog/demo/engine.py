"""The demo's Spark: a session that starts in the background, and ends with the demo.

It is small, and writes everything below the demo's directory, including what the JVM prints.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from stratalog.demo.errors import DemoError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER = "local[2, 4]"  # two cores; a task that failed is retried, as on a cluster
_START_SECONDS = 120.0
_INTERRUPT_SECONDS = 30.0  # after Ctrl-C
_STOP_SECONDS = 10.0
# For a minute of work, a compiler that is done soon is better than one whose code is fast.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class DemoSpark:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._session: SparkSession | None = None
        self._error: BaseException | None = None
        self._is_starting = False
        self._has_outcome = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_starting:
            # A JVM can't be stopped while it starts. One that takes too long ends when this process does.
            self._has_outcome.wait(_START_SECONDS if error is None else _INTERRUPT_SECONDS)
        if self._session is not None:
            _stop(self._session)

    def start(self) -> None:
        """Start Spark in a thread. Call this within the `with` block, which stops Spark after an interrupt."""
        self._is_starting = True
        threading.Thread(target=self._start, name="demo-spark", daemon=True).start()

    def session(self) -> SparkSession:
        """Wait for the session and return it. Raise the error that kept it from starting."""
        self._has_outcome.wait()
        if self._error is not None:
            raise self._error
        if self._session is None:
            raise DemoError("Spark was not started")
        # The active session belongs to a thread. Spark needs it to find the data source of a write.
        spark: Any = self._session
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
        return self._session

    def _start(self) -> None:
        try:
            self._session = _start_session(self._directory)
        except BaseException as error:  # session() raises it
            self._error = error
        finally:
            self._has_outcome.set()


def _start_session(directory: Path) -> SparkSession:
    from stratalog.spark.session import session

    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.local.dir": directory / "spark",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": directory / "warehouse",
    }
    with _redirect_stderr(directory / "spark.log"):  # the JVM inherits the descriptor
        return session(_MASTER, "stratalog demo", **settings)


@contextmanager
def _redirect_stderr(path: Path) -> Iterator[None]:
    sys.stderr.flush()
    original = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)


def _stop(spark: SparkSession) -> None:
    """Stop the queries, the session and the JVM now, and not when Python exits."""
    from pyspark import SparkContext

    gateway = spark.sparkContext._gateway
    for query in spark.streams.active:
        query.stop()
    spark.stop()
    if gateway is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # or the next session would use the stopped JVM
    jvm: subprocess.Popen[bytes] = gateway.proc
    if jvm.stdin is not None:
        jvm.stdin.close()  # the JVM ends when this does
    try:
        jvm.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()
