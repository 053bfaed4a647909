"""stratalog spark: jobs on Spark, over topics and data directories."""

from __future__ import annotations

from stratalog.cli.options import CommandGroup
from stratalog.cli.spark_copies import rekey, repartition
from stratalog.cli.spark_directories import compact, verify
from stratalog.cli.spark_session import prepare
from stratalog.cli.spark_sql import sql
from stratalog.cli.spark_topics import backfill, export, query

app = CommandGroup("""Export, load, query, copy, verify and compact topics with Spark.

Spark runs on this machine by default, or on a cluster with --master. It needs pip install 'stratalog[spark]', which
includes Java; an installed Java 17 or newer is used if there is one. A job that is stopped, by Ctrl-C or a crash,
continues when the same command is run again.

\b
Examples:
  stratalog spark query 'SELECT partition, count(*) FROM orders GROUP BY partition'
  stratalog spark sql
  stratalog spark export orders --to warehouse/orders
  stratalog spark backfill orders --from old-orders.parquet
  stratalog spark rekey orders orders-by-customer --key "get_json_object(string(value), '$.customer')"
  stratalog spark repartition orders orders-wide --partitions 24
  stratalog spark verify stratalog-data
  stratalog spark compact backup --topic accounts --dry-run
  stratalog spark prepare
""")
for _command in (query, sql, export, backfill, rekey, repartition, verify, compact, prepare):
    app.add(_command.__name__)(_command)
