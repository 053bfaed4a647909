"""stratalog spark prepare: what makes later sessions start faster, done once."""

from __future__ import annotations

import typer

PREPARE_HELP = """Make Spark start faster on this machine.

Writes an archive of Spark's classes (about 180 MB) to the cache directory, which takes half a minute or more. From
then on Spark starts and runs its first query in about three quarters of the time. Run it again after an upgrade of
Java or PySpark: an archive that does not fit is not used. The file may be deleted.

\b
Examples:
  stratalog spark prepare
"""


def add_to(app: typer.Typer) -> None:
    app.command("prepare", help=PREPARE_HELP, short_help="Make Spark start faster, once for all.")(prepare)


def prepare() -> None:
    from stratalog.cli import wording
    from stratalog.cli.output import Output
    from stratalog.cli.spark_session import check_installed
    from stratalog.spark import class_archive

    check_installed()
    archive = class_archive.create()
    Output().line(
        f"{archive} is written ({wording.size(archive.stat().st_size)}); sessions of Spark use it from now on"
    )
