"""A known failure of Spark is reported in one line with cause and remedy, before any trace."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stratalog.pipelines.spark_errors import first_line
from stratalog.spark.failures import known_failure
from stratalog.testing import BrokerProcess


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        (
            "py4j.protocol.Py4JJavaError: An error occurred while calling o38.count.\n: org.apache.spark."
            "SparkException: Python worker failed to connect back.\n\tat org.apache.spark",
            "a Python worker of Spark did not start within ten seconds",
            "local[1]",
        ),
        (
            "java.net.BindException: Cannot assign requested address: Service 'sparkDriver' failed after 16 retries "
            "(on a random free port)! Consider explicitly setting",
            "no address or port to listen on (sparkDriver)",
            "spark.driver.bindAddress",
        ),
        ("java.net.UnknownHostException: box: box: Name or service not known", "(box)", "/etc/hosts"),
        ("Caused by: java.lang.OutOfMemoryError: Java heap space", "(Java heap space)", "spark.driver.memory"),
        ('Cannot run program "python9": error=2, No such file', "(python9)", "PYSPARK_PYTHON"),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited before",
            "Java exited before Spark had started",
            "JAVA_HOME",
        ),
    ],
)
def test_known_failure_becomes_cause_and_remedy(text: str, cause: str, remedy: str) -> None:
    line = known_failure(text)
    assert line is not None
    assert cause in line.partition(";")[0]
    assert remedy in line.partition(";")[2]
    assert first_line(Exception(text)) == line


def test_unknown_failure_has_no_remedy() -> None:
    assert known_failure("[CAST_INVALID_INPUT] The value 'a' cannot be cast") is None


@pytest.mark.parametrize(
    "program",
    [
        "from stratalog.spark import session; session(**{'spark.driver.extraJavaOptions': '-agentlib:nosuchthing'})",
        "import sys; sys.argv[1:] = ['spark', 'query', 'SELECT 1', '--conf', "
        "'spark.driver.extraJavaOptions=-agentlib:nosuchthing']; from stratalog.cli.main import run; run()",
    ],
)
def test_failed_start_of_java_is_explained_before_its_output(program: str, stratalog_broker: BrokerProcess) -> None:
    env = {**os.environ, "STRATALOG_BOOTSTRAP_SERVER": stratalog_broker.bootstrap_servers}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    lines = [line for line in ran.stderr.splitlines() if not line.startswith("starting Spark")]
    assert ran.returncode != 0
    assert lines[0].startswith(
        "stratalog: Spark did not start: Java exited before Spark had started; its output is below"
    )
    assert "JAVA_HOME" in lines[0]
    assert any("nosuchthing" in line for line in lines[1:])  # Java's output
