"""Topics in Spark, through PySpark's Python data source API: no jar. The format is called `stratalog`."""
