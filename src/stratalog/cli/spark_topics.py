"""stratalog spark query, export and backfill: topics as results, as tables, and from files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from stratalog.cli.options import AsJson, DryRun, argument, flag, option, parse_pairs
from stratalog.cli.output import Output
from stratalog.cli.program import CommandError
from stratalog.cli.spark_session import (
    ClusterOptions,
    Every,
    ReadClusterOptions,
    SparkOptions,
    State,
    StepRecords,
    check_broker,
    check_source,
    check_tables,
    check_topics,
)
from stratalog.cli.wording import pluralize

if TYPE_CHECKING:
    from stratalog.pipelines.record_columns import ColumnChoice


def query(
    sql: Annotated[str, argument("SQL", "The query.")],
    cluster: ReadClusterOptions,
    on: SparkOptions,
    output_format: Annotated[
        str, option("--format -f", "FORMAT", "table, json, csv or parquet.", show_default=True)
    ] = "table",
    output: Annotated[str | None, option("--output -o", "DIR", "Write files to this folder instead.")] = None,
    explain: Annotated[bool, flag("--explain", "Show the plan, and what is pushed down.")] = False,
) -> None:
    """Run a SQL query in which every topic is a view.

    The columns are key, value (binary), topic, partition, offset, timestamp, timestampType and headers. Conditions on
    key, partition, offset and timestamp are pushed down: the scan skips what can't match. Write a topic whose name has
    dots or dashes in backquotes. Records of aborted transactions are not read.

    \b
    Examples:
      stratalog spark query 'SELECT partition, count(*) FROM orders GROUP BY partition'
      stratalog spark query "SELECT string(value) FROM orders WHERE key = 'customer-7'"
      stratalog spark query 'SELECT * FROM `web-clicks` WHERE timestamp >= "2026-01-31"' --format json
      stratalog spark query 'SELECT * FROM orders' --format parquet --output orders.parquet
    """
    from stratalog.cli import query_results
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
    topics: Annotated[list[str], argument("TOPIC...", "The topics.")],
    to: Annotated[str, option("--to", "DIR", "The table's folder or URL.")],
    cluster: ReadClusterOptions,
    on: SparkOptions,
    every: Every = None,
    step_records: StepRecords = 10_000_000,
    file_bytes: Annotated[
        int, option("--file-bytes", "BYTES", "About the size of merged files.", min=1, show_default=True)
    ] = 128 * 1024**2,
    merge_from: Annotated[
        int,
        option(
            "--merge-from", "COUNT", "Merge when a day has this many small files; 0: never.", min=0, show_default=True
        ),
    ] = 16,
    allow_data_loss: Annotated[
        bool, flag("--allow-data-loss", "Continue if records were deleted before they were exported.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Export topics to a table of Parquet files.

    The files are in DIR/topic=NAME/date=DAY. The day is that of the record's timestamp, in UTC. Each run continues
    where the last one ended, and the table has every record once, even if a run is stopped. Small files are merged.
    Anything that reads Parquet can read the table.

    \b
    Examples:
      stratalog spark export orders --to warehouse/orders
      stratalog spark export orders payments --to s3a://lake/events --every 60
      stratalog spark export orders --to warehouse/orders --dry-run
    """
    from stratalog.pipelines.export import ExportOptions
    from stratalog.pipelines.export import export as run

    options = ExportOptions(step_records, every, file_bytes, merge_from, allow_data_loss, dry_run)
    address = cluster.address()
    with on.session(check=lambda: check_topics(address, topics)) as (spark, progress):
        done = run(spark, address, topics, to, options, progress=progress)
    output = Output(as_json=as_json)
    records, steps = pluralize(done.records, "record"), pluralize(done.steps, "step")
    if as_json:
        output.json({**asdict(done), "dry_run": dry_run})
    elif dry_run:
        output.line(f"up to {records} would be exported to {to} in {steps}")
    else:
        merged = f", {pluralize(done.merged_files, 'file')} merged" if done.merged_files else ""
        output.line(f"{records} exported to {to} in {steps}{merged}")


@dataclass(frozen=True)
class Columns:
    """Which columns of the files become records."""

    key: Annotated[str | None, option("--key", "SQL", "The key.")] = None
    value: Annotated[str | None, option("--value", "SQL", "The value.")] = None
    timestamp: Annotated[str | None, option("--timestamp", "SQL", "The time.")] = None
    value_as_json: Annotated[bool, flag("--value-as-json", "All other columns as a JSON object.")] = False
    keep_partitions: Annotated[bool, flag("--keep-partitions", "Use the column `partition` instead of the keys.")] = (
        False
    )

    def choice(self) -> ColumnChoice:
        from stratalog.pipelines.record_columns import ColumnChoice

        if self.value_as_json and self.value is not None:
            raise CommandError(f"--value is {self.value!r}, and --value-as-json is given too; give one of them")
        return ColumnChoice(self.key, self.value, self.timestamp, self.value_as_json, self.keep_partitions)


def backfill(
    topic: Annotated[str, argument("TOPIC", "The topic; created if it is missing.")],
    source: Annotated[str, option("--from", "PATH", "Files: a folder, a pattern, a URL.")],
    columns: Columns,
    cluster: ClusterOptions,
    on: SparkOptions,
    input_format: Annotated[str | None, option("--format -f", "FORMAT", "parquet, csv, json or orc.")] = None,
    reader_options: Annotated[
        list[str] | None, option("--option", "NAME=VALUE", "An option of Spark's reader. Repeatable.")
    ] = None,
    schema: Annotated[str | None, option("--schema", "DDL", "The files' columns.")] = None,
    partitions: Annotated[
        int | None,
        option("--partitions", "COUNT", "Partitions of a topic that is created; by default the broker's.", min=1),
    ] = None,
    step_bytes: Annotated[
        int, option("--step-bytes", "BYTES", "About this many bytes of files per step.", min=1, show_default=True)
    ] = 256 * 1024**2,
    every: Every = None,
    state: State = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Load files into a topic, with their keys and timestamps.

    Columns called key, value, headers and timestamp are used as such; a table that export wrote has them. Other columns
    are named by --key, --value and --timestamp, which may be any SQL expression. With --value-as-json, the value has
    all other columns. Run again, the command loads files that are new. A missing topic is created, with --partitions
    partitions and the broker's retention: for older records, create it first with retention.ms=-1.

    \b
    Examples:
      stratalog spark backfill orders --from warehouse/orders
      stratalog spark backfill flights --from flights.csv --key carrier --timestamp time_hour --value-as-json
      stratalog spark backfill orders --from 'archive/*.json' --value payload --partitions 12 --dry-run
    """
    from stratalog.pipelines.backfill import BackfillOptions, format_of
    from stratalog.pipelines.backfill import backfill as run

    pairs = parse_pairs("--option", reader_options, "sep=;")
    choice = columns.choice()
    options = BackfillOptions(input_format, choice, pairs, schema, state, step_bytes, every, dry_run, partitions)
    address = cluster.address()

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
    records = pluralize(done.records, "record")
    if not dry_run:
        output.line(f"{records} loaded into {topic}; the state is in {done.state}")
        return
    for name, expression in done.columns.items():
        output.line(f"{name:<10} {expression}")
    if done.goes_on:
        output.line(f"of {records}, those in files that are not loaded yet would be loaded into {topic}")
    else:
        output.line(f"{records} would be loaded into {topic}")
    if done.created:
        count = "the broker's default number of partitions" if not partitions else pluralize(partitions, "partition")
        output.line(f"topic {topic} would be created, with {count}")
