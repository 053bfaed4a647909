"""Spark for a command: its options, a quiet session that is stopped at the end, and checks before the slow start.

Spark's errors become one line. What Java and the workers write to stderr goes to a file, which is shown if Spark does
not start.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, TypeAlias

import typer

from stratalog.cli.options import TIMEOUT_MS, Client, option, parse_pairs, report_errors
from stratalog.cli.program import BAD_INPUT, CommandError, complain
from stratalog.cli.progress import JobProgress
from stratalog.errors import StratalogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.pipelines.cluster import ClusterAddress

CONTINUE = "what is done is kept: the same command continues from there"
_LAST_LINES = 15
_MASTER = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[.+\]|spark://[^\s/]+:\d+.*|yarn|k8s://\S+")

Every: TypeAlias = Annotated[
    float | None,
    option("--every", "SECONDS", "Keep running, and look for new records after this many seconds.", min=0.1),
]
State: TypeAlias = Annotated[
    str | None,
    option("--state", "DIR", "Where the job saves its progress; by default in stratalog-state/ in this directory."),
]
StepRecords: TypeAlias = Annotated[
    int, option("--step-records", "COUNT", "At most this many records per step.", min=1, show_default=True)
]


@dataclass(frozen=True)
class SparkOptions:
    """Where Spark runs."""

    master: Annotated[
        str,
        option(
            "--master",
            "URL",
            "Where Spark runs: local[*], local[4], spark://HOST:PORT, yarn, k8s://URL.",
            envvar="STRATALOG_SPARK_MASTER",
            show_default=True,
        ),
    ] = "local[*]"
    conf: Annotated[
        list[str] | None, option("--conf", "NAME=VALUE", "A setting of Spark, by its name. Repeatable.")
    ] = None

    @contextmanager
    def session(
        self, advice: str = CONTINUE, *, check: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[SparkSession, JobProgress]]:
        """Start Spark. `advice` is added to the message about an interrupt. `check` is called before Spark starts."""
        settings = parse_pairs("--conf", self.conf, "spark.driver.memory=4g")
        with spark_session(self.master, settings, advice, check) as spark, JobProgress() as progress:
            yield spark, progress


@dataclass(frozen=True)
class ClusterOptions(Client):
    """The cluster that has the topics."""

    def address(self) -> ClusterAddress:
        from stratalog.pipelines.cluster import ClusterAddress

        config = self.config({"default.api.timeout.ms": TIMEOUT_MS})
        settings = {name: str(value) for name, value in config.items() if name != "bootstrap.servers"}
        return ClusterAddress(self.bootstrap_server, settings)


@dataclass(frozen=True)
class ReadClusterOptions(ClusterOptions):
    """The cluster whose topics are read."""

    log_dirs: Annotated[
        str | None,
        option(
            "--log-dirs",
            "DIR[,DIR]",
            "The brokers' data directories, as Spark sees them: read the files instead of asking the brokers.",
        ),
    ] = None

    def address(self) -> ClusterAddress:
        return replace(super().address(), log_dirs=tuple(filter(None, (self.log_dirs or "").split(","))))


def check_topics(cluster: ClusterAddress, topics: Sequence[str]) -> None:
    """Raise if the broker is not reachable, or lacks one of the topics."""
    with cluster.admin() as admin:
        outcomes = admin.describe_topics(dict.fromkeys(topics))
    report_errors(outcomes.errors.values(), can_create=False)


def check_broker(cluster: ClusterAddress) -> None:
    """Raise if the broker is not reachable."""
    with cluster.admin() as admin:
        admin.describe_cluster()


def check_tables(cluster: ClusterAddress, sql: str) -> None:
    """Raise if the broker is not reachable, or a query names a table that is not a topic."""
    from stratalog.cli.sql_text import tables_of
    from stratalog.pipelines.query import unknown_topic

    with cluster.admin() as admin:
        topics = sorted(admin.list_topics(include_internal=True))
    for name in tables_of(sql):
        if name not in topics:
            raise unknown_topic(name, topics)


def check_source(path: str, master: str) -> None:
    """Raise if a file of this machine does not exist. Only Spark can check files elsewhere."""
    is_local = master.startswith("local") and "HADOOP_CONF_DIR" not in os.environ
    plain = path.removeprefix("file://").removeprefix("file:")
    if not is_local or "://" in plain or set(plain) & set("{[\\"):  # these mean something else in Java's patterns
        return
    if not Path(plain).exists() and next(glob.iglob(plain), None) is None:  # noqa: PTH207 - Path.glob takes no absolute pattern
        raise CommandError(f"--from is {path}: there is no such file or folder, or nothing matches; check the path")


@contextmanager
def spark_session(
    master: str, settings: Mapping[str, str], advice: str, check: Callable[[], None]
) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the end. `advice` is added to the message about an interrupt; `check` raises for
    problems that are known before the start. If this process has a session already, it is used and not stopped."""
    from stratalog.spark.session import settings_for

    _check_master(master)
    existed = _is_running()
    with tempfile.TemporaryFile() as spark_log, _scratch_settings(is_needed=not existed) as own:
        if not existed:
            _check_installed()
            settings_for(master, settings)
            check()
        with nullcontext() if existed else _announce_start():
            session = _start(master, own | dict(settings), spark_log)
        try:
            yield session
        except KeyboardInterrupt:
            raise KeyboardInterrupt(advice) from None
        except Exception as error:
            raise _as_command_error(error) from error
        finally:
            if not existed:
                session.stop()


def prepare() -> None:
    """Make Spark start faster on this machine.

    Writes an archive of Spark's classes (about 180 MB) to the cache directory, which takes half a minute or more.
    Afterwards, Spark starts and runs its first query in about three quarters of the time. Run it again after an upgrade
    of Java or PySpark, because an archive of other versions is not used. The file may be deleted.

    \b
    Examples:
      stratalog spark prepare
    """
    from stratalog.cli.output import Output
    from stratalog.cli.wording import format_size
    from stratalog.spark import class_archive

    _check_installed()
    archive = class_archive.create()
    Output().line(f"wrote {archive} ({format_size(archive.stat().st_size)}); Spark uses it from now on")


@contextmanager
def _scratch_settings(*, is_needed: bool) -> Iterator[dict[str, str]]:
    """Yield settings that keep Spark from creating a folder for tables in the working directory."""
    if not is_needed:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="stratalog-spark-", ignore_cleanup_errors=True) as folder:
        yield {"spark.sql.warehouse.dir": str(Path(folder, "warehouse"))}


def _check_master(master: str) -> None:
    """Raise if Spark can't parse the URL. Spark itself takes seconds to say so, in a dozen lines of Java."""
    if _MASTER.fullmatch(master) is None:
        known = "local, local[4], local[*], spark://HOST:PORT, yarn or k8s://URL"
        raise CommandError(f"--master is {master!r}; it must be one of Spark's: {known}")


def _check_installed() -> None:
    """Raise SparkMissingError or JavaNotFoundError, before the start is announced."""
    from stratalog.spark.java import find_java_home
    from stratalog.spark.session import check_pyspark

    check_pyspark()
    find_java_home()


@contextmanager
def _announce_start() -> Iterator[None]:
    """Say that Spark is starting, which takes seconds. On a terminal, the line is removed at the end."""
    is_terminal = sys.stderr.isatty()
    sys.stderr.write("starting Spark …" if is_terminal else "starting Spark …\n")
    sys.stderr.flush()
    try:
        yield
    finally:
        if is_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def _is_running() -> bool:
    pyspark = sys.modules.get("pyspark.sql")
    return pyspark is not None and pyspark.SparkSession.getActiveSession() is not None


def _start(master: str, settings: Mapping[str, str], spark_log: IO[bytes]) -> SparkSession:
    from stratalog.spark.session import SparkStartError, session

    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    # If an interrupt comes while py4j waits for Java, it logs a traceback, as if that were a bug.
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
    defaults = {"spark.sql.session.timeZone": "UTC"}
    try:
        with _redirect_stderr(spark_log):
            return session(master, "stratalog", **(defaults | dict(settings)))
    except SparkStartError as error:
        complain(f"{error} (--master {master})")
        spark_log.seek(0)
        lines = spark_log.read().decode(errors="replace").splitlines()
        # Our message is above Java's lines, where it is easier to find than after them.
        for line in [line for line in lines if not line.startswith("stratalog: ")][-_LAST_LINES:]:
            print(line, file=sys.stderr)  # noqa: T201 - Java's own lines
        raise typer.Exit(BAD_INPUT) from error


@contextmanager
def _redirect_stderr(file: IO[bytes]) -> Iterator[None]:
    """Redirect the descriptor itself, which the JVM inherits and keeps."""
    sys.stderr.flush()
    original = os.dup(2)
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)


def explain_job_error(error: Exception) -> str:
    """Return the error of a job as one line."""
    from stratalog.cli.advice import explain

    command_error = _as_command_error(error)
    if isinstance(command_error, StratalogError):
        return explain(command_error)
    return str(command_error) or type(command_error).__name__


def _as_command_error(error: Exception) -> Exception:
    """Return an error of Spark as a CommandError, and other errors as they are."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from stratalog.pipelines.spark_errors import first_line

    return CommandError(first_line(error)) if isinstance(error, PySparkException | Py4JError) else error
