"""A cluster of Spark's own kind, from PySpark's wheel: a master and two workers, each a process, and a driver.

It reads over the wire and from files, writes, and streams from topic to topic. An executor is killed while it writes.
"""

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
from tests.spark.committed import nothing_is_open, values
from tests.spark.dying_sink import DEATHS, EXECUTOR_POINT

SECONDS = 240
ROOT = Path(__file__).parents[2]

DRIVER = """
import json, sys
from stratalog.spark import session
from tests.spark.dying_sink import DyingDataSource

master, servers, topic, local = sys.argv[1:]
spark = session(master, **{
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "512m",
    "spark.executor.memory": "512m", "spark.executor.cores": 1,
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.cores.max": 2, "spark.local.dir": local,
    "spark.scheduler.minRegisteredResourcesRatio": 1, "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
})
spark.dataSource.register(DyingDataSource)
kafka = {"kafka.bootstrap.servers": servers}

def offsets(**options):
    frame = spark.read.format("stratalog").options(**kafka, subscribe=topic, minPartitions="4", **options).load()
    return [row.offset for row in frame.select("offset").collect()]

wire, files = offsets(**{"log.dirs": "none"}), offsets()
executors = len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
rows = spark.range(0, 1000, 1, 4).selectExpr("string(id) as value")
rows.write.format("dying").mode("append").options(**kafka, topic="written", delivery="exactly-once").save()
stream = spark.readStream.format("stratalog").options(**kafka, subscribe=topic, startingOffsets="earliest").load()
copy = stream.select("value").writeStream.format("stratalog").options(**kafka, topic="copied", delivery="exactly-once")
copy.option("checkpointLocation", local + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
print(json.dumps({"wire": [len(wire), sum(wire)], "files": [len(files), sum(files)], "executors": executors}))
spark.stop()
"""


@contextmanager
def running(directory: Path, name: str, main_class: str, *arguments: str) -> Iterator[Path]:
    """Run a Java process of Spark, and yield its log."""
    log = directory / f"{name}.log"
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = os.environ | {
        "JAVA_HOME": str(find_java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_WORKER_DIR": str(directory / f"{name}-work"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        DEATHS: f"{EXECUTOR_POINT}:{directory / 'died'}",
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


def written_match(log: Path, pattern: str) -> str:
    """Wait until a process has written a match, and return it."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if actual := re.search(pattern, log.read_text(errors="replace")):
            return actual[1]
        time.sleep(0.1)
    raise AssertionError(f"{log.name} never contained {pattern!r}:\n{log.read_text(errors='replace')[-3000:]}")


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_a_cluster_of_two_workers_reads_writes_and_streams(
    stratalog_fresh_broker: BrokerProcess, tmp_path: Path
) -> None:
    broker = stratalog_fresh_broker
    servers = broker.bootstrap_servers
    for topic in ("read", "written", "copied"):
        broker.create_topic(topic, 2)
    with Producer(servers) as producer:
        for index in range(1000):
            producer.send("read", value=b"%d" % index, partition=index % 2)
    local = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with running(tmp_path, "master", "master.Master", *local) as master_log:
        master = written_match(master_log, r"(spark://127\.0\.0\.1:[1-9]\d*)")
        small = ("--cores", "1", "--memory", "512m", *local, master)
        with (
            running(tmp_path, "one", "worker.Worker", *small) as each,
            running(tmp_path, "two", "worker.Worker", *small) as two,
        ):
            for log in (each, two):
                written_match(log, r"(Successfully registered with master)")
            done = subprocess.run(
                [sys.executable, "-c", DRIVER, master, servers, "read", str(tmp_path)],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
                cwd=ROOT,
            )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().splitlines()[-1] == '{"wire": [1000, 249500], "files": [1000, 249500], "executors": 2}'
    assert (tmp_path / "died").exists()
    for topic in ("written", "copied"):
        assert values(servers, topic, 2) == sorted(str(number) for number in range(1000))
        assert nothing_is_open(servers, topic, 2)
