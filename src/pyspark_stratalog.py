"""How Spark finds the format `stratalog` by itself: it imports each module whose name begins with `pyspark_`, and takes
its DefaultSource. One that raised here would hide all others, so this one never does: without what it needs it has no
DefaultSource, and Spark says that there is no such format."""

try:
    from stratalog.spark.source import StratalogDataSource as DefaultSource
except Exception:  # an installation without PySpark, or one that is broken: `import stratalog.spark.source` says why
    pass
else:
    __all__ = ["DefaultSource"]
