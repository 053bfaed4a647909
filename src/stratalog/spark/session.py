"""A Spark session that is set up for topics: Java found, workers on this Python, push-down allowed, quiet.

What it sets is a default each: whatever is given by name counts instead. Where a session is there already, a
notebook's or that of spark-submit, that one is returned, with the settings that can still be changed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.errors import ConfigError, StratalogError
from stratalog.spark.failures import known_failure
from stratalog.spark.quiet_start import quiet_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*]"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_LOGGERS_OF_RAISED_ERRORS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

DEFAULTS = {
    # Without it Spark hands no filter to a Python source; with it, WHERE on key, offset and time prunes what is read.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# One machine: nobody else has a reason to connect, and a host name that does not resolve must not matter.
LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # With them tasks tell how far they are. Within one process they cost nothing.
    "spark.executor.heartbeatInterval": "1s",
}


class SparkMissingError(StratalogError):
    """PySpark is not installed."""


class SparkStartError(StratalogError):
    """Spark did not start. The message is the cause, where that is known with a remedy."""


def session(master: str | None = None, app_name: str = "stratalog", **config: object) -> SparkSession:
    """The session for `master`: by default local[*], or what spark-submit was told.

    `config`: Spark's settings by their names, `session(**{"spark.driver.memory": "4g"})`. Worth knowing for a sink of
    small records: "spark.sql.execution.arrow.maxBytesPerBatch": 2147483647 spares Spark the measuring of each row, but
    then ten thousand records of any size are one batch in memory.
    """
    settings = settings_for(master, config)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    check_pyspark()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkSession.getActiveSession() is None and not is_submitted:
        from stratalog.spark.class_archive import java_options
        from stratalog.spark.java import find_java_home

        java_home = find_java_home()
        os.environ["JAVA_HOME"] = str(java_home)
        given = settings.get(_DRIVER_OPTIONS, "")
        # First, so that what is given counts.
        settings[_DRIVER_OPTIONS] = " ".join(filter(None, (java_options(java_home, given), given)))
    builder = SparkSession.builder.appName(app_name)
    if master is not None or not is_submitted:
        builder = builder.master(master or LOCAL_MASTER)
    for name, value in settings.items():
        builder = builder.config(name, value)
    if settings["spark.log.level"] == DEFAULTS["spark.log.level"]:
        silence_raised_errors()
    if SparkSession.getActiveSession() is not None or is_submitted:
        return builder.getOrCreate()
    return _start(builder)


def check_pyspark() -> None:
    """Raises SparkMissingError."""
    try:
        import pyspark.sql  # noqa: F401
    except ImportError as error:
        raise SparkMissingError(f"pyspark can't be imported ({error}); pip install 'stratalog[spark]'") from None


def _start(builder: SparkSession.Builder) -> SparkSession:
    causes: list[str] = []

    def explain(error: Exception, said: str) -> str:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        causes.append("Spark did not start: " + (known_failure(said) or known_failure(str(error)) or first))
        return causes[0]

    try:
        with quiet_start(explain):
            return builder.getOrCreate()
    except Exception as error:
        raise SparkStartError(causes[0]) from error


def silence_raised_errors() -> None:
    """PySpark logs what a query did wrong, with Java's stack, beside raising it: who catches it has said enough."""
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS_OF_RAISED_ERRORS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def settings_for(master: str | None, given: Mapping[str, object]) -> dict[str, str]:
    """All settings of a new session, as Spark takes them. Raises ConfigError for a name that is none of Spark's."""
    for name in given:
        if not name.startswith("spark."):
            raise ConfigError(f"{name} is no setting of Spark: they begin with 'spark.', like spark.driver.memory")
    local = LOCAL_DEFAULTS if (master or LOCAL_MASTER).startswith("local") else {}
    settings = DEFAULTS | local | {name: _text(value) for name, value in given.items()}
    own = []
    if settings["spark.log.level"] == DEFAULTS["spark.log.level"]:
        own.append(f"-Dlog4j2.configurationFile=file:{_LOG_SETTINGS}")
    own.append("-XX:+DisplayVMOutputToStderr")  # why Java did not start is no output of the program
    settings[_DRIVER_OPTIONS] = " ".join(filter(None, (settings.get(_DRIVER_OPTIONS), *own)))
    return settings


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
