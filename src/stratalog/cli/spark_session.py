"""Spark for a command: quiet, stopped at the end, and its errors one line.

Whatever Java and the workers write to stderr goes to a file, which is shown where Spark does not start.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

import typer

from stratalog.cli.program import BAD_INPUT, CommandError, complain, spoken
from stratalog.errors import StratalogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LAST_LINES = 15
_MASTER = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[.+\]|spark://[^\s/]+:\d+.*|yarn|k8s://\S+")


@contextmanager
def spark_session(
    master: str, settings: Mapping[str, str], advice: str, check: Callable[[], None]
) -> Iterator[SparkSession]:
    """`advice`: what an interrupt is answered with. `check` raises for what need not wait for Spark's start. A session
    that is there already, in a process that runs commands beside other things, is used, and not stopped."""
    from stratalog.spark.session import settings_for

    check_master(master)
    was_there = _is_there()
    with tempfile.TemporaryFile() as said, _scratch(is_needed=not was_there) as own:
        if not was_there:
            check_installed()
            settings_for(master, settings)
            check()
        with nullcontext() if was_there else _announced():
            session = _start(master, own | dict(settings), said)
        try:
            yield session
        except KeyboardInterrupt:
            raise KeyboardInterrupt(advice) from None
        except Exception as error:
            raise _plain(error) from error
        finally:
            if not was_there:
                session.stop()


@contextmanager
def _scratch(*, is_needed: bool) -> Iterator[dict[str, str]]:
    """Settings that keep out of the user's directory what Spark would make there: a folder for tables of its own."""
    if not is_needed:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="stratalog-spark-", ignore_cleanup_errors=True) as folder:
        yield {"spark.sql.warehouse.dir": str(Path(folder, "warehouse"))}


def check_master(master: str) -> None:
    """Spark itself takes seconds to say that it can't parse one, and a dozen lines of Java's."""
    if _MASTER.fullmatch(master) is None:
        known = "local, local[4], local[*], spark://HOST:PORT, yarn or k8s://URL"
        raise CommandError(f"--master is {master!r}; it must be one of Spark's: {known}")


def check_installed() -> None:
    """Before anything is said of starting: raises SparkMissingError, JavaNotFoundError."""
    from stratalog.spark.java import find_java_home
    from stratalog.spark.session import check_pyspark

    check_pyspark()
    find_java_home()


@contextmanager
def _announced() -> Iterator[None]:
    """That Spark starts, which takes seconds: at a terminal while it does, elsewhere as a line that stays."""
    is_terminal = sys.stderr.isatty()
    sys.stderr.write("starting Spark …" if is_terminal else "starting Spark …\n")
    sys.stderr.flush()
    try:
        yield
    finally:
        if is_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def _is_there() -> bool:
    pyspark = sys.modules.get("pyspark.sql")
    return pyspark is not None and pyspark.SparkSession.getActiveSession() is not None


def _start(master: str, settings: Mapping[str, str], said: IO[bytes]) -> SparkSession:
    from stratalog.spark.session import SparkStartError, session

    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    # What py4j logs when an interrupt comes while it waits for Java: a traceback, as if it were a fault.
    logging.getLogger().addFilter(_is_not_of_py4j)
    defaults = {"spark.sql.session.timeZone": "UTC"}
    try:
        with _stderr_to(said):
            return session(master, "stratalog", **(defaults | dict(settings)))
    except SparkStartError as error:
        complain(f"{error} (--master {master})")
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
        # The cause is above, and not behind Java's words, where nobody finds it.
        for line in [line for line in lines if not line.startswith("stratalog: ")][-_LAST_LINES:]:
            print(line, file=sys.stderr)  # noqa: T201 - Java's own words, where there are no others
        raise typer.Exit(BAD_INPUT) from error


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


@contextmanager
def _stderr_to(file: IO[bytes]) -> Iterator[None]:
    """The descriptor itself: the JVM inherits it, and keeps it."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def explained_error(error: Exception) -> str:
    """An error of a job as one line."""
    plain = _plain(error)
    if isinstance(plain, StratalogError):
        return spoken(plain)
    return str(plain) or type(plain).__name__


def _plain(error: Exception) -> Exception:
    """An error of Spark's as one of the command's; others as they are."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from stratalog.pipelines.spark_errors import first_line

    return CommandError(first_line(error)) if isinstance(error, PySparkException | Py4JError) else error
