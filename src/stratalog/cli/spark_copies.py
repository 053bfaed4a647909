"""stratalog spark rekey and repartition: copy a topic into another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from stratalog.cli.options import AsJson, DryRun, argument, flag, option
from stratalog.cli.output import Output
from stratalog.cli.spark_session import Every, ReadClusterOptions, SparkOptions, State, StepRecords
from stratalog.cli.wording import pluralize

if TYPE_CHECKING:
    from stratalog.pipelines.copy_topic import Copied, CopyOptions


@dataclass(frozen=True)
class CopyArguments:
    """The topics, and the options of both commands."""

    source: Annotated[str, argument("SOURCE", "The topic to copy.")]
    target: Annotated[str, argument("TARGET", "The topic to write to.")]
    partitions: Annotated[
        int | None,
        option("--partitions", "COUNT", "Partitions of a target that is created; by default as the source.", min=1),
    ] = None
    append: Annotated[bool, flag("--append", "Copy even if the target has records.")] = False
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


def rekey(
    key: Annotated[str, option("--key", "SQL", "The new key.")],
    copy: CopyArguments,
    cluster: ReadClusterOptions,
    on: SparkOptions,
    sort_by_time: Annotated[bool, flag("--sort-by-time", "Sort each key's records within a step.")] = False,
) -> None:
    """Copy a topic into another, with other keys.

    The key is any SQL expression over key, value, headers, partition, offset and timestamp. Records of one source
    partition are written in their order. Records of a new key that come from several partitions have no order, but
    --sort-by-time sorts them within each step. A missing target is created.

    \b
    Examples:
      stratalog spark rekey orders orders-by-customer --key "get_json_object(string(value), '$.customer')"
      stratalog spark rekey orders orders-by-day --key 'date(timestamp)' --partitions 12 --sort-by-time
    """
    from stratalog.pipelines.copy_topic import rekey as run

    options, address = copy.options(key, sort_by_time=sort_by_time), cluster.address()
    with on.session() as (spark, progress):
        copied = run(spark, address, copy.source, copy.target, options, progress=progress)
    _show(copied, copy)


def repartition(copy: CopyArguments, cluster: ReadClusterOptions, on: SparkOptions) -> None:
    """Copy a topic into another, with another number of partitions.

    Keys, values, headers and timestamps are kept. The order of a key's records is kept if they are in one partition of
    the source. A missing target is created.

    \b
    Examples:
      stratalog spark repartition orders orders-wide --partitions 24
      stratalog spark repartition orders orders-wide --partitions 24 --every 5
    """
    from stratalog.pipelines.copy_topic import repartition as run

    address = cluster.address()
    with on.session() as (spark, progress):
        copied = run(spark, address, copy.source, copy.target, copy.options(), progress=progress)
    _show(copied, copy)


def _show(copied: Copied, copy: CopyArguments) -> None:
    output = Output(as_json=copy.as_json)
    if copy.as_json:
        output.json(
            {
                "records": copied.records,
                "target": copy.target,
                "partitions": copied.partitions,
                "made": copied.made,
                "state": copied.state,
                "dry_run": copy.dry_run,
            }
        )
        return
    created = "which would be created" if copy.dry_run else "created"
    target = f"{copy.target} ({pluralize(copied.partitions, 'partition')}, {created if copied.made else 'existing'})"
    records = pluralize(copied.records, "record")
    if copy.dry_run:
        output.line(f"up to {records} would be copied to {target}")
    else:
        output.line(f"{records} copied to {target}; the state is in {copied.state}")
