"""The demo's Spark: a session that starts while other things are done, and is gone when the demo is.

Small, and everything that it writes is below the demo's directory, also what the JVM says while it starts and runs.
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

_MASTER = "local[2, 4]"  # two cores, and a task that failed is tried again, as on a cluster
_START_SECONDS = 120.0
_GIVE_UP_SECONDS = 30.0  # who has pressed Ctrl-C does not want to wait
_STOP_SECONDS = 10.0
# For a minute of work a compiler that is soon done is worth more than one whose code is fast.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class DemoSpark:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._session: SparkSession | None = None
        self._error: BaseException | None = None
        self._is_asked_for = False
        self._is_decided = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_asked_for:
            # A JVM that is being started can't be stopped before it is there; one that takes too long ends by itself,
            # when this process is gone.
            self._is_decided.wait(_START_SECONDS if error is None else _GIVE_UP_SECONDS)
        if self._session is not None:
            _stop(self._session)

    def start(self) -> None:
        """In a thread. Called within the `with` block, so that an interrupt at any line finds who puts it away."""
        self._is_asked_for = True
        threading.Thread(target=self._start, name="demo-spark", daemon=True).start()

    def session(self) -> SparkSession:
        """Waits for it. Raises what kept it from starting."""
        self._is_decided.wait()
        if self._error is not None:
            raise self._error
        if self._session is None:
            raise DemoError("Spark was not started")
        # Spark has an active session a thread; where it looks for a data source that is to be written, it asks for it.
        spark: Any = self._session
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
        return self._session

    def _start(self) -> None:
        try:
            self._session = _started(self._directory)
        except BaseException as error:  # for the thread that asks for the session
            self._error = error
        finally:
            self._is_decided.set()


def _started(directory: Path) -> SparkSession:
    from stratalog.spark.session import session

    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.local.dir": directory / "spark",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": directory / "warehouse",
    }
    with _stderr_to(directory / "spark.log"):  # whose descriptor the JVM inherits
        return session(_MASTER, "stratalog demo", **settings)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _stop(spark: SparkSession) -> None:
    """Queries, session and the JVM behind it, at once and not when Python ends."""
    from pyspark import SparkContext

    gateway = spark.sparkContext._gateway
    for query in spark.streams.active:
        query.stop()
    spark.stop()
    if gateway is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # or the next session would talk to the one that is gone
    jvm: subprocess.Popen[bytes] = gateway.proc
    if jvm.stdin is not None:
        jvm.stdin.close()  # the JVM ends when this does
    try:
        jvm.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()
