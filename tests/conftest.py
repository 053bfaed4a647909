"""The setup of every test run before our modules are imported, and one Spark session per test process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import hypothesis  # before kio, which registers its types with hypothesis if that is imported
import pytest

from tests import scheduling
from tests.cost_report import CostReport
from tests.spark_sessions import small_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# For all JVMs of Spark: the optimising compiler does not pay off in short runs.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", os.environ["SPARK_SUBMIT_OPTS"])

# A shell starts background jobs with SIGINT ignored, and the processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("stratalog", deadline=None)  # no test asserts a duration
hypothesis.settings.load_profile("stratalog")


def pytest_addoption(parser: pytest.Parser) -> None:
    # Not in tests/client: its conftest is read before the command line only if the command line names that folder.
    parser.addoption("--kafka", action="store_true", help="run tests/client against Apache Kafka (see make compat)")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CostReport(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    scheduling.in_order_of_cost(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return scheduling.scheduler(config, log)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with small_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
