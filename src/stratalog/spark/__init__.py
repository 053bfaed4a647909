"""Topics in Spark, through PySpark's Python data source API: no jar. The format is called `stratalog`.

    from stratalog.spark import session

    spark = session()
    spark.read.format("stratalog").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders")

Importing this imports no PySpark: that happens when something needs it.
"""

# Here and not on demand: the module has the function's name, and would take its place when somebody imports it later.
from stratalog.spark.session import session

__all__ = ["session"]
