"""from_stratalog with Spark's package for Avro, in a session of its own: jars are given when it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compat.fetch_kafka import fetch

pytestmark = pytest.mark.compat

AVRO_VERSION = "4.1.1"  # packages are published later than PySpark; this one runs in a newer Spark
ROOT = Path(__file__).resolve().parents[2]


def jar() -> str:
    libs = fetch(f"spark-avro-{AVRO_VERSION}", (f"org.apache.spark:spark-avro_2.13:{AVRO_VERSION}",), alone=True)
    return str(libs / f"spark-avro_2.13-{AVRO_VERSION}.jar")


def rows() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.compat.avro_rows", jar()],
        capture_output=True, text=True, cwd=ROOT, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_avro_is_decoded_by_one_schema_or_by_the_id_of_each_value() -> None:
    found = rows()
    assert found["one schema"] == [[{"name": "tea"}, False], [None, False], [None, True]]
    assert found["by id"] == [
        [{"name": "tea", "cups": None}, False],
        [{"name": "tea", "cups": 2}, False],
        [None, True],  # an id that was not given
        [None, True],  # no frame
        [None, False],
    ]
    assert found["by id, read as the first"] == [{"name": "tea"}, {"name": "tea"}, None, None, None]
    assert "unknown schema id: 8" in found["failfast"]
    assert found["no record"] == [["tea", False], [None, True]]
