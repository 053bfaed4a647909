"""Topics in Spark, through PySpark's Python data source API, without a jar. The format is `stratalog`.

    from stratalog.spark import session

    spark = session()
    spark.read.format("stratalog").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders")

Importing this package does not import PySpark; its functions do.
"""

from typing import TYPE_CHECKING, Any

# Not on demand: the module has the function's name, and importing it later would replace the function.
from stratalog.spark.session import session

if TYPE_CHECKING:
    from stratalog.spark.decode import from_stratalog, infer_json_schema

__all__ = ["from_stratalog", "infer_json_schema", "session"]


def __getattr__(name: str) -> Any:
    if name in ("from_stratalog", "infer_json_schema"):
        from stratalog.spark import decode

        return getattr(decode, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
