"""What a job on Spark needs that can be seen at once: checked before the seconds that Spark takes to start."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.cli.cluster_options import end_with
from stratalog.cli.program import CommandError

if TYPE_CHECKING:
    from stratalog.pipelines.cluster import ClusterAddress


def check_topics(cluster: ClusterAddress, topics: Sequence[str]) -> None:
    """Raise where the broker is not reachable, or does not have one of the topics."""
    with cluster.admin() as admin:
        outcomes = admin.describe_topics(dict.fromkeys(topics))
    end_with(outcomes.errors.values(), can_make=False)


def check_broker(cluster: ClusterAddress) -> None:
    with cluster.admin() as admin:
        admin.describe_cluster()


def check_tables(cluster: ClusterAddress, sql: str) -> None:
    """Raise where the broker is not reachable, or a query names a table that is none of its topics."""
    from stratalog.cli.sql_tables import tables_of
    from stratalog.pipelines.query import unknown_topic

    with cluster.admin() as admin:
        topics = sorted(admin.list_topics(include_internal=True))
    for name in tables_of(sql):
        if name not in topics:
            raise unknown_topic(name, topics)


def check_source(path: str, master: str) -> None:
    """Raise where files of this machine are named that are not there. Elsewhere only Spark can look."""
    is_local = master.startswith("local") and "HADOOP_CONF_DIR" not in os.environ
    plain = path.removeprefix("file://").removeprefix("file:")
    if not is_local or "://" in plain or set(plain) & set("{[\\"):  # those mean other things to Java
        return
    if not Path(plain).exists() and next(glob.iglob(plain), None) is None:  # noqa: PTH207 - a Path's glob takes none from the root
        raise CommandError(f"--from is {path}: there is no such file or folder, or nothing matches; check the path")
