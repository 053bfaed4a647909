"""A cluster of Spark's own kind, from PySpark's wheel: a master and two workers, each a process, and a driver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from stratalog.client import Producer
from stratalog.spark.java import find_java_home
from stratalog.testing import BrokerProcess

SECONDS = 240

DRIVER = """
import json, sys
from stratalog.spark import session

master, servers, topic, local = sys.argv[1:]
spark = session(master, **{
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "512m",
    "spark.executor.memory": "512m", "spark.executor.cores": 1,
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.cores.max": 2, "spark.local.dir": local,
    "spark.scheduler.minRegisteredResourcesRatio": 1, "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
})
frame = spark.read.format("stratalog").options(**{
    "kafka.bootstrap.servers": servers, "subscribe": topic, "minPartitions": "4", "log.dirs": "none"}).load()
rows = [row.offset for row in frame.select("offset").collect()]
executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
print(json.dumps({"rows": len(rows), "sum": sum(rows), "executors": len(executors) - 1}))
spark.stop()
"""


@contextmanager
def running(directory: Path, name: str, main_class: str, *arguments: str) -> Iterator[Path]:
    """A Java process of Spark's; its log."""
    log = directory / f"{name}.log"
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = os.environ | {
        "JAVA_HOME": str(find_java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_WORKER_DIR": str(directory / f"{name}-work"),
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(spark_class), f"org.apache.spark.deploy.{main_class}", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def said(log: Path, pattern: str) -> str:
    """What a process writes sooner or later."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{log.name} never said {pattern!r}:\n{log.read_text(errors='replace')[-3000:]}")


@pytest.mark.stratalog_topic(partitions=2)
def test_a_cluster_of_two_workers_reads_a_topic(
    stratalog_broker: BrokerProcess, stratalog_topic: str, tmp_path: Path
) -> None:
    with Producer(stratalog_broker.bootstrap_servers) as producer:
        for index in range(1000):
            producer.send(stratalog_topic, value=b"%d" % index, partition=index % 2)
    local = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with running(tmp_path, "master", "master.Master", *local) as master_log:
        master = said(master_log, r"(spark://127\.0\.0\.1:[1-9]\d*)")
        small = ("--cores", "1", "--memory", "512m", *local, master)
        with (
            running(tmp_path, "one", "worker.Worker", *small) as one,
            running(tmp_path, "two", "worker.Worker", *small) as two,
        ):
            for log in (one, two):
                said(log, r"(Successfully registered with master)")
            done = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    DRIVER,
                    master,
                    stratalog_broker.bootstrap_servers,
                    stratalog_topic,
                    str(tmp_path),
                ],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().splitlines()[-1] == '{"rows": 1000, "sum": 249500, "executors": 2}'
