"""The module through which Spark finds the format `stratalog`.

Spark imports each module whose name starts with `pyspark_` and registers its DefaultSource. An exception here would
hide all other formats, so this module never raises. If an import fails, it has no DefaultSource, and Spark reports an
unknown format.
"""

try:
    from stratalog.spark.source import StratalogDataSource as DefaultSource
except Exception:  # PySpark is missing or broken; `import stratalog.spark.source` shows the error
    pass
else:
    __all__ = ["DefaultSource"]
