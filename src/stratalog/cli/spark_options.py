"""Options of the commands on Spark, each said once: where Spark runs, which brokers, how a topic is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from stratalog.cli.cluster_options import (
    DEFAULT_SERVER,
    PATIENCE_MS,
    BootstrapServer,
    ClientSettings,
    client_config,
    parse_pairs,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.cli.spark_progress import TerminalProgress
    from stratalog.pipelines.cluster import ClusterAddress

LOCAL = "local[*]"
GO_ON = "what is done is kept: the same command goes on from there"

Master: TypeAlias = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="URL",
        envvar="STRATALOG_SPARK_MASTER",
        help="Where Spark runs: local[*], local[4], spark://HOST:PORT, yarn, k8s://URL.",
    ),
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
        "--every",
        metavar="SECONDS",
        min=0.1,
        show_default=False,
        help="Do not end: look for more every so many seconds.",
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
StepRecords: TypeAlias = Annotated[
    int, typer.Option("--step-records", metavar="COUNT", min=1, help="At most so many records a step.")
]


@dataclass(frozen=True)
class SparkOptions:
    """Where Spark runs."""

    master: Master = LOCAL
    conf: SparkSettings = None

    @contextmanager
    def session(
        self, advice: str = GO_ON, *, check: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[SparkSession, TerminalProgress]]:
        """`advice`: what an interrupt is answered with. `check` is called before Spark starts."""
        from stratalog.cli.spark_progress import TerminalProgress
        from stratalog.cli.spark_session import spark_session

        given = parse_pairs("--conf", self.conf, "spark.driver.memory=4g")
        with spark_session(self.master, given, advice, check) as spark, TerminalProgress() as progress:
            yield spark, progress


@dataclass(frozen=True)
class ClusterOptions:
    """Whose topics."""

    bootstrap_server: BootstrapServer = DEFAULT_SERVER
    settings: ClientSettings = None

    def address(self) -> ClusterAddress:
        from stratalog.pipelines.cluster import ClusterAddress

        given = client_config(self.bootstrap_server, {"default.api.timeout.ms": PATIENCE_MS}, self.settings)
        own = {name: str(value) for name, value in given.items() if name != "bootstrap.servers"}
        return ClusterAddress(self.bootstrap_server, own)


@dataclass(frozen=True)
class ReadClusterOptions(ClusterOptions):
    """Whose topics, where they are read."""

    log_dirs: LogDirs = None

    def address(self) -> ClusterAddress:
        found = tuple(filter(None, (self.log_dirs or "").split(",")))
        return replace(super().address(), log_dirs=found)
