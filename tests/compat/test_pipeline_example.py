"""examples/pipeline, run by the real `spark-pipelines`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from stratalog import Producer
from stratalog.testing import BrokerProcess

pytestmark = pytest.mark.compat

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipeline"
HOME = Path(pyspark.__file__).parent


def run_pipeline(project: Path, servers: str) -> None:
    settings = {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable, "STRATALOG_BOOTSTRAP_SERVER": servers}
    command = [str(HOME / "bin" / "spark-pipelines"), "run"]
    done = subprocess.run(command, cwd=project, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


def send(servers: str, topic: str, *values: dict[str, object]) -> None:
    with Producer(servers) as producer:
        for value in values:
            producer.send(topic, json.dumps(value).encode())


def unpaid(project: Path) -> dict[str, tuple[int, int]]:
    (table,) = (project / "spark-warehouse").glob("**/unpaid")
    return {row["customer"]: (row["orders"], row["cups"]) for row in pq.read_table(table).to_pylist()}


@pytest.mark.timeout(900)
def test_unpaid_orders_agree_with_both_topics(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///var/tmp/stratalog-shop", (tmp_path / "storage").as_uri()))
    with BrokerProcess(settings={"num.partitions": 2}) as broker:
        servers = broker.bootstrap_servers
        orders: list[dict[str, object]] = [
            {"id": 1, "customer": "ada", "cups": 2},
            {"id": 2, "customer": "ada", "cups": 3},
            {"id": 3, "customer": "bob", "cups": 1},
        ]
        send(servers, "orders", *orders)
        send(servers, "payments", {"order_id": 1, "cents": 500})
        run_pipeline(project, servers)
        assert unpaid(project) == {"ada": (1, 3), "bob": (1, 1)}
