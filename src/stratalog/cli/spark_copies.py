"""stratalog spark rekey and repartition: a topic copied into another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from stratalog.cli.cluster_options import DEFAULT_SERVER, AsJson, BootstrapServer, ClientSettings, DryRun
from stratalog.cli.spark_options import (
    LOCAL,
    Every,
    LogDirs,
    Master,
    SparkSettings,
    State,
    StepRecords,
    cluster_address,
)

if TYPE_CHECKING:
    from stratalog.pipelines.copy_topic import CopyOptions

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
    typer.Option("--partitions", show_default=False, help="Of a target that is made; by default as the source has."),
]
Append: TypeAlias = Annotated[bool, typer.Option("--append", help="Also where the target has records already.")]


def add_to(app: typer.Typer) -> None:
    app.command("rekey", help=REKEY_HELP, short_help="Copy a topic, with other keys.")(rekey)
    app.command("repartition", help=REPARTITION_HELP, short_help="Copy a topic, to other partitions.")(repartition)


def rekey(
    source: Source,
    target: Target,
    key: Annotated[str, typer.Option("--key", metavar="SQL", show_default=False, help="The new key.")],
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    partitions: Partitions = None,
    sort_by_time: Annotated[bool, typer.Option("--sort-by-time", help="Sort each key's records in a step.")] = False,
    append: Append = False,
    step_records: StepRecords = 1_000_000,
    every: Every = None,
    state: State = None,
    dry_run: DryRun = False,
    log_dirs: LogDirs = None,
    settings: ClientSettings = None,
    master: Master = LOCAL,
    conf: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    from stratalog.pipelines.copy_topic import CopyOptions

    options = CopyOptions(key, partitions, sort_by_time, append, state, step_records, every, dry_run)
    _copy("rekey", source, target, options, (bootstrap_server, settings, log_dirs), (master, conf), as_json=as_json)


def repartition(
    source: Source,
    target: Target,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    partitions: Partitions = None,
    append: Append = False,
    step_records: StepRecords = 1_000_000,
    every: Every = None,
    state: State = None,
    dry_run: DryRun = False,
    log_dirs: LogDirs = None,
    settings: ClientSettings = None,
    master: Master = LOCAL,
    conf: SparkSettings = None,
    as_json: AsJson = False,
) -> None:
    from stratalog.pipelines.copy_topic import CopyOptions

    options = CopyOptions(None, partitions, False, append, state, step_records, every, dry_run)
    address = (bootstrap_server, settings, log_dirs)
    _copy("repartition", source, target, options, address, (master, conf), as_json=as_json)


def _copy(
    job: str,
    source: str,
    target: str,
    options: CopyOptions,
    address: tuple[str, Sequence[str] | None, str | None],
    session: tuple[str, Sequence[str] | None],
    *,
    as_json: bool,
) -> None:
    from stratalog.cli.output import Output
    from stratalog.cli.spark_progress import TerminalProgress
    from stratalog.cli.spark_session import spark_session
    from stratalog.cli.wording import plural
    from stratalog.pipelines import copy_topic

    run = copy_topic.rekey if job == "rekey" else copy_topic.repartition
    with spark_session(*session) as spark, TerminalProgress() as progress:
        done = run(spark, cluster_address(*address), source, target, options, progress=progress)
    output = Output(as_json=as_json)
    if as_json:
        output.json(
            {
                "records": done.records,
                "target": target,
                "partitions": done.partitions,
                "made": done.made,
                "state": done.state,
                "dry_run": options.dry_run,
            }
        )
        return
    made = "which is to be made" if options.dry_run and done.made else "made" if done.made else "there already"
    place = f"{target} ({plural(done.partitions, 'partition')}, {made})"
    if options.dry_run:
        output.line(f"up to {plural(done.records, 'record')} would be copied to {place}")
    else:
        output.line(f"{plural(done.records, 'record')} copied to {place}; the state is in {done.state}")
