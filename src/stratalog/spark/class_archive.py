"""An archive of Spark's classes (class-data sharing), which Java maps into memory instead of loading each class.

Without it, loading some fifteen thousand classes takes most of the time of Spark's start and of its first query.
`create` makes the archive once, with a session of its own. Every session that `stratalog.spark.session` starts uses
it if it exists. Java itself checks that it fits, and ignores an archive of another Java or of changed jars.
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

WRITTEN_TO = "STRATALOG_CLASS_ARCHIVE"  # set for the process that writes the archive
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"  # without a warning about an archive that does not fit
_LAST_LINES = 15


class ClassArchiveError(StratalogError):
    """Java created no archive. The message contains its output."""


def archive_path(java_home: Path) -> Path:
    """Return the path of the archive for this Java and this PySpark, whether it exists or not."""
    pyspark = importlib.util.find_spec("pyspark")
    jars = Path(pyspark.origin).parent / "jars" if pyspark is not None and pyspark.origin else Path()
    key = f"{java_home.resolve()} {jars.resolve()} {_modified_ns(jars)}"
    return cache_directory() / f"spark-{sha256(key.encode()).hexdigest()[:16]}.jsa"


def java_options(java_home: Path, existing: str = "") -> str:
    """Return the Java options that use the archive: empty without an archive, or if `existing` options name another."""
    target = os.environ.get(WRITTEN_TO)
    if target:
        return f"{_QUIET} -XX:ArchiveClassesAtExit={target}"
    if "-Xshare" in existing or "SharedArchiveFile" in existing or "ArchiveClassesAtExit" in existing:
        return ""
    archive = archive_path(java_home)
    # Spark splits the options at blanks, so the path can't contain one.
    if not archive.is_file() or " " in str(archive):
        return ""
    return f"{_QUIET} -Xshare:auto -XX:SharedArchiveFile={archive}"


def create() -> Path:
    """Create the archive, or replace it. Runs a small Spark session in a separate process, which takes half a minute.
    Raises ClassArchiveError and JavaNotFoundError."""
    archive = archive_path(find_java_home())
    with tempfile.TemporaryDirectory(prefix="class-archive-", dir=archive.parent) as directory:
        created = Path(directory) / "spark.jsa"
        completed = subprocess.run(
            [sys.executable, "-m", "stratalog.spark.class_archive_session"],
            env=os.environ | {WRITTEN_TO: str(created)},
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode or not created.is_file():
            output = "\n".join((completed.stdout + completed.stderr).splitlines()[-_LAST_LINES:])
            raise ClassArchiveError(f"Java created no archive of Spark's classes; jobs run without it\n{output}")
        created.replace(archive)
    return archive


def _modified_ns(jars: Path) -> int:
    try:
        return jars.stat().st_mtime_ns
    except OSError:
        return 0
