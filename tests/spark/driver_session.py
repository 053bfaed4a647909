"""The session of a driver that tests kill. It has the format `dying`, and stops cleanly when stdin is closed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "STRATALOG_TEST_MASTER"
_DEFAULT_MASTER = "local[2,8]"  # a task may fail seven times, because its worker is killed


def dying_session(scratch: str) -> SparkSession:
    from pyspark.sql import SparkSession

    from tests.spark.dying_sink import DyingDataSource

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(os.environ.get(MASTER, _DEFAULT_MASTER))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", f"{scratch}-warehouse")
        .config("spark.local.dir", f"{scratch}-local")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(DyingDataSource)
    return spark


def when_stdin_closes(call: Callable[[], object]) -> None:
    """Call from a thread when stdin is closed."""

    def wait() -> None:
        sys.stdin.read()
        call()

    threading.Thread(target=wait, daemon=True).start()
