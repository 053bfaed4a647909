"""stratalog spark sql: a prompt for queries over topics, in one session of Spark."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.options import option
from stratalog.cli.output import Output
from stratalog.cli.program import BAD_INPUT
from stratalog.cli.spark_session import ReadClusterOptions, SparkOptions, check_broker, explain_job_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.cli.progress import JobProgress
    from stratalog.client.metadata import TopicInfo
    from stratalog.pipelines.cluster import ClusterAddress

_SHOW_TABLES = re.compile(r"SHOW\s+TABLES", re.IGNORECASE)  # Spark's own lists the views of the session, not the topics


def sql(
    cluster: ReadClusterOptions,
    on: SparkOptions,
    output_format: Annotated[str, option("--format -f", "FORMAT", "table, json or csv.", show_default=True)] = "table",
) -> None:
    """Run SQL queries at a prompt, in which every topic is a view.

    Spark starts once, and then a query takes a second. A statement ends with a semicolon, and may have many lines. Tab
    completes topics, columns and keywords; the history is kept. Ctrl-C stops the running query; \\d lists the topics,
    as SHOW TABLES does; \\q or Ctrl-D ends. Without a terminal, statements are read from stdin, and the first that
    fails ends the run. Columns and names of topics are as for `stratalog spark query`.

    \b
    Examples:
      stratalog spark sql
      echo 'SELECT count(*) FROM orders; SELECT max(timestamp) FROM orders' | stratalog spark sql --format csv
      stratalog spark sql --conf spark.driver.memory=4g
    """
    from stratalog.cli import query_results
    from stratalog.cli.sql_completion import Completion
    from stratalog.cli.sql_prompt import HELP, Prompt

    query_results.check_format(output_format, None, query_results.PRINTED_FORMATS)
    address = cluster.address()
    is_interactive = sys.stdin.isatty()
    with on.session(advice="", check=lambda: check_broker(address)) as (spark, progress):
        engine = SparkEngine(spark, address, output_format, progress)
        if is_interactive:
            sys.stdout.write(HELP)
        succeeded = Prompt(engine, Completion(engine.topics), is_interactive=is_interactive).run()
    if not succeeded:
        raise typer.Exit(BAD_INPUT)


class SparkEngine:
    """Runs the statements of a prompt as `stratalog spark query` runs a query."""

    def __init__(self, spark: SparkSession, cluster: ClusterAddress, output_format: str, progress: JobProgress) -> None:
        self._spark = spark
        self._cluster = cluster
        self._format = output_format
        self._progress = progress

    def run(self, statement: str) -> None:
        from stratalog.cli import query_results
        from stratalog.pipelines.query import query

        if _SHOW_TABLES.fullmatch(statement):
            topics = sorted((name, len(info.partitions)) for name, info in self._list_topics().items())
            frame = self._spark.createDataFrame(topics, "topic string, partitions int")
        else:
            frame = query(self._spark, self._cluster, statement, runs_once=True)
        if frame.columns:  # a SET or a CREATE VIEW has no rows to show
            query_results.show(frame, self._format, self._progress.of_query(self._spark))

    def cancel(self) -> None:
        self._spark.sparkContext.cancelAllJobs()

    def topics(self) -> list[str]:
        return list(self._list_topics())

    def _list_topics(self) -> dict[str, TopicInfo]:
        with self._cluster.admin() as admin:
            return admin.list_topics()

    def describe(self, topic: str) -> None:
        from stratalog.spark.schema import ddl

        if not topic:
            rows = [(name, len(info.partitions)) for name, info in self._list_topics().items()]
            Output().table(("topic", "partitions"), rows)
            return
        with self._cluster.admin() as admin:
            admin.describe_topic(topic)
        columns = [tuple(column.split(" ", 1)) for column in ddl(include_headers=True).split(", ")]
        Output().table(("column", "type"), [list(column) for column in columns])

    def explain(self, error: Exception) -> str:
        return explain_job_error(error)
