"""The reader as it is pickled to executors, and the modules that it imports."""

from __future__ import annotations

import base64
import subprocess
import sys

from pyspark import cloudpickle
from pyspark.sql.types import StructType

from stratalog.spark.source import StratalogDataSource

_LOAD = """
import base64, pickle, sys
source, reader = pickle.loads(base64.b64decode(sys.stdin.read()))
print(type(reader).__name__, sorted({"stratalog.client", "kio", "pyarrow.compute"} & set(sys.modules)))
"""


def test_a_task_that_reads_files_imports_no_client() -> None:
    """A new Python worker would need more time for that import than for a small scan."""
    source = StratalogDataSource({"kafka.bootstrap.servers": "localhost:1", "subscribe": "orders"})
    schema = StructType().add("value", "binary")
    for reader in (source.reader(schema), source.streamReader(schema)):
        sent: bytes = cloudpickle.dumps((source, reader))  # type: ignore[no-untyped-call]
        done = subprocess.run(
            [sys.executable, "-c", _LOAD], input=base64.b64encode(sent), capture_output=True, timeout=120, check=False
        )
        assert (done.returncode, done.stdout.decode().strip()) == (0, "TaskReader []"), done.stderr.decode()
