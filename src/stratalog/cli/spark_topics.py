"""stratalog spark query, export and backfill: topics to people, to tables, and from files."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from stratalog.cli.cluster_options import AsJson, DryRun, parse_pairs
from stratalog.cli.option_groups import spread
from stratalog.cli.program import CommandError
from stratalog.cli.spark_options import ClusterOptions, Every, ReadClusterOptions, SparkOptions, State, StepRecords

QUERY_HELP = """Run a SQL query in which every topic is a view.

The columns are key, value (binary), topic, partition, offset, timestamp, timestampType and headers. Conditions on key,
partition, offset and timestamp are decided by the scan, which skips what can't match. A topic whose name has dots or
dashes stands in backquotes. Records of aborted transactions are not seen.

\b
Examples:
  stratalog spark query 'SELECT partition, count(*) FROM orders GROUP BY partition'
  stratalog spark query "SELECT string(value) FROM orders WHERE key = 'customer-7'"
  stratalog spark query 'SELECT * FROM `web-clicks` WHERE timestamp >= "2026-01-31"' --format json
  stratalog spark query 'SELECT * FROM orders' --format parquet --output orders.parquet
"""
EXPORT_HELP = """Export topics to a table of Parquet files: DIR/topic=NAME/date=DAY.

The day is that of the record's timestamp, in UTC. Each run goes on where the last one ended, and every record is in the
table once, whenever a run is stopped. Small files are merged. Anything that reads Parquet reads the table.

\b
Examples:
  stratalog spark export orders --to warehouse/orders
  stratalog spark export orders payments --to s3a://lake/events --every 60
  stratalog spark export orders --to warehouse/orders --dry-run
"""
BACKFILL_HELP = """Load files into a topic, with their keys and timestamps.

Columns called key, value, headers and timestamp are taken as such; a table that export made has them. Others are named
by --key, --value and --timestamp, which may be any expression in SQL, or the value is --value-as-json of all other
columns. Started again, it loads the files that have come since. A topic that is missing is created, with --partitions
partitions and the broker's retention: for older records, create it first with retention.ms=-1.

\b
Examples:
  stratalog spark backfill orders --from warehouse/orders
  stratalog spark backfill flights --from flights.csv --key carrier --timestamp time_hour --value-as-json
  stratalog spark backfill orders --from 'archive/*.json' --value payload --partitions 12 --dry-run
"""


def add_to(app: typer.Typer) -> None:
    app.command("query", help=QUERY_HELP, short_help="Run SQL over topics.")(spread(query))
    app.command("export", help=EXPORT_HELP, short_help="Export topics to a table of Parquet files.")(spread(export))
    app.command("backfill", help=BACKFILL_HELP, short_help="Load files into a topic.")(spread(backfill))


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", show_default=False, help="The query.")],
    output_format: Annotated[
        str, typer.Option("--format", "-f", metavar="FORMAT", help="table, json, csv or parquet.")
    ] = "table",
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="DIR", show_default=False, help="Write files there instead.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show how it would run, and what is pushed down.")] = False,
    *,
    cluster: ReadClusterOptions,
    on: SparkOptions,
) -> None:
    from stratalog.cli import query_results
    from stratalog.cli.spark_checks import check_tables
    from stratalog.pipelines.explained import explained
    from stratalog.pipelines.query import query as run

    query_results.check_format(output_format, output)
    address = cluster.address()
    with on.session(advice="", check=lambda: check_tables(address, sql)) as (spark, progress):
        frame = run(spark, address, sql, runs_once=True)
        if explain:
            query_results.show_plan(explained(frame))
        elif output is None:
            query_results.show(frame, output_format, progress.of_query(spark))
        else:
            with progress.of_query(spark):
                query_results.write(frame, output_format, output)


def export(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False, help="The topics.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", show_default=False, help="The table's folder or URL.")],
    every: Every = None,
    step_records: StepRecords = 10_000_000,
    file_bytes: Annotated[
        int, typer.Option("--file-bytes", metavar="BYTES", min=1, help="About the size of merged files.")
    ] = 128 * 1024**2,
    merge_from: Annotated[
        int,
        typer.Option(
            "--merge-from", metavar="COUNT", min=0, help="Merge where a day has so many small files; 0: never."
        ),
    ] = 16,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Go on where records were deleted before they were exported.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    *,
    cluster: ReadClusterOptions,
    on: SparkOptions,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.spark_checks import check_topics
    from stratalog.cli.wording import plural
    from stratalog.pipelines.export import ExportOptions
    from stratalog.pipelines.export import export as run

    options = ExportOptions(step_records, every, file_bytes, merge_from, allow_data_loss, dry_run)
    address = cluster.address()
    with on.session(check=lambda: check_topics(address, topics)) as (spark, progress):
        done = run(spark, address, topics, to, options, progress=progress)
    output = Output(as_json=as_json)
    if as_json:
        output.json({**asdict(done), "dry_run": dry_run})
    elif dry_run:
        output.line(f"up to {plural(done.records, 'record')} would be exported to {to} in {plural(done.steps, 'step')}")
    else:
        merged = f", {plural(done.merged_files, 'file')} merged" if done.merged_files else ""
        output.line(f"{plural(done.records, 'record')} exported to {to} in {plural(done.steps, 'step')}{merged}")


def backfill(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", show_default=False, help="The topic; created if it is missing.")
    ],
    source: Annotated[
        str, typer.Option("--from", metavar="PATH", show_default=False, help="Files: a folder, a pattern, a URL.")
    ],
    input_format: Annotated[
        str | None,
        typer.Option("--format", "-f", metavar="FORMAT", show_default=False, help="parquet, csv, json or orc."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="SQL", show_default=False, help="The key.")] = None,
    value: Annotated[str | None, typer.Option("--value", metavar="SQL", show_default=False, help="The value.")] = None,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", metavar="SQL", show_default=False, help="The time.")
    ] = None,
    value_as_json: Annotated[bool, typer.Option("--value-as-json", help="All other columns as a JSON object.")] = False,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="As the column `partition` says, not by key.")
    ] = False,
    reading: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="Of Spark's reader. Repeatable."),
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="DDL", show_default=False, help="The files' columns.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            metavar="COUNT",
            min=1,
            show_default=False,
            help="Of a topic that is created; by default as the broker chooses.",
        ),
    ] = None,
    step_bytes: Annotated[
        int, typer.Option("--step-bytes", metavar="BYTES", min=1, help="About so many bytes of files a step.")
    ] = 256 * 1024**2,
    every: Every = None,
    state: State = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    *,
    cluster: ClusterOptions,
    on: SparkOptions,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.spark_checks import check_broker, check_source
    from stratalog.cli.wording import plural
    from stratalog.pipelines.backfill import BackfillOptions, format_of
    from stratalog.pipelines.backfill import backfill as run
    from stratalog.pipelines.record_columns import ColumnChoice

    columns = ColumnChoice(key, value, timestamp, value_as_json, keep_partitions)
    given = parse_pairs("--option", reading, "sep=;")
    options = BackfillOptions(input_format, columns, given, schema, state, step_bytes, every, dry_run, partitions)
    address = cluster.address()
    if value_as_json and value is not None:
        raise CommandError(f"--value is {value!r}, and --value-as-json is given too; give one of them")

    def check() -> None:
        format_of(source, input_format)
        check_source(source, on.master)
        check_broker(address)

    with on.session(check=check) as (spark, progress):
        done = run(spark, address, source, topic, options, progress=progress)
    output = Output(as_json=as_json)
    if as_json:
        output.json(
            {
                "records": done.records,
                "state": done.state,
                "columns": dict(done.columns),
                "partitions": done.partitions,
                "created": done.created,
                "dry_run": dry_run,
            }
        )
        return
    if dry_run:
        for name, expression in done.columns.items():
            output.line(f"{name:<10} {expression}")
    records = plural(done.records, "record")
    if not dry_run:
        output.line(f"{records} loaded into {topic}; the state is in {done.state}")
    elif done.goes_on:
        output.line(f"of {records}, those in files that are not loaded yet would be loaded into {topic}")
    else:
        output.line(f"{records} would be loaded into {topic}")
    if dry_run and done.created:
        count = "as many partitions as the broker chooses" if not partitions else plural(partitions, "partition")
        output.line(f"topic {topic} would be created, with {count}")
