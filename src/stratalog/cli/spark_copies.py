"""stratalog spark rekey and repartition: a topic copied into another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from stratalog.cli.cluster_options import AsJson, DryRun
from stratalog.cli.option_groups import spread
from stratalog.cli.spark_options import Every, ReadClusterOptions, SparkOptions, State, StepRecords

if TYPE_CHECKING:
    from stratalog.pipelines.copy_topic import Copied, CopyOptions

REKEY_HELP = """Copy a topic into another, with other keys.

The key is any expression in SQL over key, value, headers, partition, offset and timestamp. Records of one source
partition are written in their order; those of a new key that come from several partitions have none between them, but
with --sort-by-time they are sorted within each step. The target is made where it is missing.

\b
Examples:
  stratalog spark rekey orders orders-by-customer --key "get_json_object(string(value), '$.customer')"
  stratalog spark rekey orders orders-by-day --key 'date(timestamp)' --partitions 12 --sort-by-time
"""
REPARTITION_HELP = """Copy a topic into another with another number of partitions.

Keys, values, headers and timestamps are kept, and so is the order of each key's records, where those of a key are in
one partition of the source. The target is made where it is missing.

\b
Examples:
  stratalog spark repartition orders orders-wide --partitions 24
  stratalog spark repartition orders orders-wide --partitions 24 --every 5
"""

Source: TypeAlias = Annotated[str, typer.Argument(metavar="SOURCE", show_default=False, help="The topic to copy.")]
Target: TypeAlias = Annotated[str, typer.Argument(metavar="TARGET", show_default=False, help="The topic to write to.")]
Partitions: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        metavar="COUNT",
        min=1,
        show_default=False,
        help="Of a target that is made; by default as the source has.",
    ),
]
Append: TypeAlias = Annotated[bool, typer.Option("--append", help="Also where the target has records already.")]


@dataclass(frozen=True)
class Copying:
    """What both have."""

    source: Source
    target: Target
    partitions: Partitions = None
    append: Append = False
    step_records: StepRecords = 1_000_000
    every: Every = None
    state: State = None
    dry_run: DryRun = False
    as_json: AsJson = False

    def options(self, key: str | None = None, *, sort_by_time: bool = False) -> CopyOptions:
        from stratalog.pipelines.copy_topic import CopyOptions

        return CopyOptions(
            key,
            self.partitions,
            sort_by_time,
            self.append,
            self.state,
            self.step_records,
            self.every,
            self.dry_run,
        )


def add_to(app: typer.Typer) -> None:
    app.command("rekey", help=REKEY_HELP, short_help="Copy a topic, with other keys.")(spread(rekey))
    app.command("repartition", help=REPARTITION_HELP, short_help="Copy a topic, to other partitions.")(
        spread(repartition)
    )


def rekey(
    key: Annotated[str, typer.Option("--key", metavar="SQL", show_default=False, help="The new key.")],
    sort_by_time: Annotated[bool, typer.Option("--sort-by-time", help="Sort each key's records in a step.")] = False,
    *,
    copying: Copying,
    cluster: ReadClusterOptions,
    on: SparkOptions,
) -> None:
    from stratalog.pipelines.copy_topic import rekey as run

    options = copying.options(key, sort_by_time=sort_by_time)
    address = cluster.address()
    with on.session() as (spark, progress):
        done = run(spark, address, copying.source, copying.target, options, progress=progress)
    _show(done, copying)


def repartition(copying: Copying, cluster: ReadClusterOptions, on: SparkOptions) -> None:
    from stratalog.pipelines.copy_topic import repartition as run

    address = cluster.address()
    with on.session() as (spark, progress):
        done = run(spark, address, copying.source, copying.target, copying.options(), progress=progress)
    _show(done, copying)


def _show(done: Copied, copying: Copying) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.wording import plural

    output = Output(as_json=copying.as_json)
    if copying.as_json:
        output.json(
            {
                "records": done.records,
                "target": copying.target,
                "partitions": done.partitions,
                "made": done.made,
                "state": done.state,
                "dry_run": copying.dry_run,
            }
        )
        return
    made = "which is to be made" if copying.dry_run and done.made else "made" if done.made else "there already"
    place = f"{copying.target} ({plural(done.partitions, 'partition')}, {made})"
    if copying.dry_run:
        output.line(f"up to {plural(done.records, 'record')} would be copied to {place}")
    else:
        output.line(f"{plural(done.records, 'record')} copied to {place}; the state is in {done.state}")
