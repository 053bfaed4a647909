"""Creates a Spark session for topics: it finds Java, runs workers on this Python, allows push-down and is quiet.

All its settings are defaults, which the caller can override by name. If a session exists already, in a notebook or
under spark-submit, that one is returned, with the settings that can still be changed.
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
    # Lets Spark pass filters to a Python source, so that WHERE on key, offset and timestamp prunes the scan.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# On one machine nothing else has to connect, and a host name that does not resolve must not matter.
LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Tasks report their progress with heartbeats, which cost nothing within one process.
    "spark.executor.heartbeatInterval": "1s",
}


class SparkMissingError(StratalogError):
    """PySpark is not installed."""


class SparkStartError(StratalogError):
    """Spark did not start. The message is the cause, with a remedy if the cause is known."""


def session(master: str | None = None, app_name: str = "stratalog", **config: object) -> SparkSession:
    """Return a session for `master`, by default local[*] or the master of spark-submit.

    `config` has Spark's settings by name: `session(**{"spark.driver.memory": "4g"})`. For a sink of small records,
    "spark.sql.execution.arrow.maxBytesPerBatch": 2147483647 makes writes faster, because Spark does not measure each
    row; a batch in memory is then ten thousand records of any size.

    Raises SparkMissingError, JavaNotFoundError, SparkStartError, and ConfigError for a name that does not start with
    "spark.".
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
        driver_options = settings.get(_DRIVER_OPTIONS, "")
        # Ours come first, so that the caller's take precedence.
        settings[_DRIVER_OPTIONS] = " ".join(filter(None, (java_options(java_home, driver_options), driver_options)))
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
    """Raise SparkMissingError if PySpark is not installed."""
    try:
        import pyspark.sql  # noqa: F401
    except ImportError as error:
        raise SparkMissingError(f"pyspark can't be imported ({error}); pip install 'stratalog[spark]'") from None


def _start(builder: SparkSession.Builder) -> SparkSession:
    causes: list[str] = []

    def explain(error: Exception, output: str) -> str:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        causes.append("Spark did not start: " + (known_failure(output) or known_failure(str(error)) or first))
        return causes[0]

    try:
        with quiet_start(explain):
            return builder.getOrCreate()
    except Exception as error:
        raise SparkStartError(causes[0]) from error


def silence_raised_errors() -> None:
    """Turn off PySpark's logging of errors that it also raises."""
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS_OF_RAISED_ERRORS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def settings_for(master: str | None, overrides: Mapping[str, object]) -> dict[str, str]:
    """Return all settings of a new session. Raises ConfigError for a name that does not start with "spark."."""
    for name in overrides:
        if not name.startswith("spark."):
            raise ConfigError(f"{name} is not a setting of Spark; their names start with 'spark.': spark.driver.memory")
    local = LOCAL_DEFAULTS if (master or LOCAL_MASTER).startswith("local") else {}
    settings = DEFAULTS | local | {name: _text(value) for name, value in overrides.items()}
    own = []
    if settings["spark.log.level"] == DEFAULTS["spark.log.level"]:
        own.append(f"-Dlog4j2.configurationFile=file:{_LOG_SETTINGS}")
    own.append("-XX:+DisplayVMOutputToStderr")  # keeps Java's messages out of the program's output
    settings[_DRIVER_OPTIONS] = " ".join(filter(None, (settings.get(_DRIVER_OPTIONS), *own)))
    return settings


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
