"""An archive of Spark's classes, which its Java maps into memory instead of unpacking and checking each class anew.

Without it most of what Spark needs to start, and for its first query, is loading some fifteen thousand classes. Java
calls it class-data sharing. `create` makes the archive once, with a session of its own; every session that
`stratalog.spark.session` starts uses it where it is there. Java itself checks that it fits: one of another Java, or of
jars that have changed, is passed over.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

from stratalog.errors import StratalogError
from stratalog.spark.java import cache_directory, find_java_home

WRITTEN_TO = "STRATALOG_CLASS_ARCHIVE"  # in the environment of the process that makes one
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"  # an archive that does not fit is no news
_LAST_LINES = 15


class ClassArchiveError(StratalogError):
    """This Java made no archive. The message says what it said."""


def archive_path(java_home: Path) -> Path:
    """Where the archive for this Java and this PySpark is, or would be."""
    pyspark = importlib.util.find_spec("pyspark")
    jars = Path(pyspark.origin).parent / "jars" if pyspark is not None and pyspark.origin else Path()
    made_for = f"{java_home.resolve()} {jars.resolve()} {_changed(jars)}"
    return cache_directory() / f"spark-{sha256(made_for.encode()).hexdigest()[:16]}.jsa"


def java_options(java_home: Path, given: str = "") -> str:
    """Java's options that use the archive; none where there is no archive, or where the caller has `given` others."""
    being_made = os.environ.get(WRITTEN_TO)
    if being_made:
        return f"{_QUIET} -XX:ArchiveClassesAtExit={being_made}"
    if "-Xshare" in given or "SharedArchiveFile" in given or "ArchiveClassesAtExit" in given:
        return ""
    archive = archive_path(java_home)
    # A path with a blank can't be said: Spark splits the options at blanks.
    if not archive.is_file() or " " in str(archive):
        return ""
    return f"{_QUIET} -Xshare:auto -XX:SharedArchiveFile={archive}"


def create() -> Path:
    """Make the archive, or make it anew: runs a small Spark session in a process of its own, for half a minute or so.
    Raises ClassArchiveError, and what `find_java_home` does."""
    archive = archive_path(find_java_home())
    with tempfile.TemporaryDirectory(prefix="class-archive-", dir=archive.parent) as directory:
        made = Path(directory) / "spark.jsa"
        ran = subprocess.run(
            [sys.executable, "-m", "stratalog.spark.class_archive_session"],
            env=os.environ | {WRITTEN_TO: str(made)},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode or not made.is_file():
            said = "\n".join((ran.stdout + ran.stderr).splitlines()[-_LAST_LINES:])
            raise ClassArchiveError(f"Java made no archive of Spark's classes; jobs run as before, without it\n{said}")
        made.replace(archive)
    return archive


def _changed(jars: Path) -> int:
    try:
        return jars.stat().st_mtime_ns
    except OSError:
        return 0
