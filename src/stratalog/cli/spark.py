"""stratalog spark: jobs over topics and data directories, on Spark."""

from __future__ import annotations

import typer

from stratalog.cli import spark_copies, spark_directories, spark_prepare, spark_sql, spark_topics

HELP = """Export, load, query, copy, verify and compact topics with Spark.

On this machine by default, on a cluster with --master. Needs pip install 'stratalog[spark]'; Java is the machine's (17
or newer), or comes with that. A job that is stopped, by Ctrl-C or a crash, goes on when it is started again.

\b
Examples:
  stratalog spark query 'SELECT partition, count(*) FROM orders GROUP BY partition'
  stratalog spark sql
  stratalog spark export orders --to warehouse/orders
  stratalog spark backfill orders --from old-orders.parquet
  stratalog spark rekey orders orders-by-customer --key "get_json_object(string(value), '$.customer')"
  stratalog spark repartition orders orders-wide --partitions 24
  stratalog spark verify data
  stratalog spark compact backup --topic accounts --dry-run
  stratalog spark prepare
"""

app = typer.Typer(help=HELP, rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def spark(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


spark_topics.add_to(app)
spark_sql.add_to(app)
spark_copies.add_to(app)
spark_directories.add_to(app)
spark_prepare.add_to(app)
