"""Topics in Spark, through PySpark's Python data source API: no jar. The format is called `stratalog`.

    from stratalog.spark import session

    spark = session()
    spark.read.format("stratalog").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders")

Importing this imports no PySpark: that happens when something needs it.
"""

from typing import TYPE_CHECKING, Any

# Here and not on demand: the module has the function's name, and would take its place when somebody imports it later.
from stratalog.spark.session import session

if TYPE_CHECKING:
    from stratalog.spark.decode import from_stratalog, infer_json_schema

__all__ = ["from_stratalog", "infer_json_schema", "session"]


def __getattr__(name: str) -> Any:
    if name in ("from_stratalog", "infer_json_schema"):
        from stratalog.spark import decode

        return getattr(decode, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
