"""Options that all commands on Spark have, and the cluster that those for topics talk to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from stratalog.cli.cluster_options import PATIENCE_MS, parse_pairs

if TYPE_CHECKING:
    from stratalog.pipelines.cluster import ClusterAddress

LOCAL = "local[*]"

Master: TypeAlias = Annotated[
    str,
    typer.Option("--master", metavar="URL", envvar="STRATALOG_SPARK_MASTER", help="Where Spark runs: any of its URLs."),
]
SparkSettings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark, by its name. Repeatable."),
]
LogDirs: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--log-dirs",
        metavar="DIR[,DIR]",
        show_default=False,
        help="The brokers' data directories, where Spark sees them: read files, not the brokers.",
    ),
]
Every: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--every", metavar="SECONDS", show_default=False, help="Do not end: look for more every so many seconds."
    ),
]
State: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="DIR",
        show_default=False,
        help="Where the job keeps how far it is; by default in stratalog-state/ here.",
    ),
]
StepRecords: TypeAlias = Annotated[int, typer.Option("--step-records", help="At most so many records a step.")]


def cluster_address(server: str, settings: Sequence[str] | None, log_dirs: str | None = None) -> ClusterAddress:
    from stratalog.pipelines.cluster import ClusterAddress

    given = parse_pairs("--set", settings, "client.id=nightly")
    own = {"default.api.timeout.ms": str(PATIENCE_MS)} | given
    return ClusterAddress(server, own, tuple(filter(None, (log_dirs or "").split(","))))
