"""The imports in the processes that Spark starts to look up a data source and its schema."""

from __future__ import annotations

import subprocess
import sys


def test_name_and_schema_need_neither_arrow_nor_the_client() -> None:
    code = """
import sys
import pyspark_stratalog
assert pyspark_stratalog.DefaultSource({"includeHeaders": "true"}).schema().endswith("value:binary>>")
heavy = {"pyarrow", "numpy", "stratalog.client.cluster", "stratalog.storage", "stratalog.records"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
