"""Spark's JVM sends a task to its Python worker in pieces, and by Nagle's algorithm holds the next one back until the
one before was acknowledged. A worker that has nothing to say yet leaves that to Linux, which takes its time: 40 ms,
more than a small task takes. Unix sockets (spark.python.unix.domain.socket.enabled) know no such thing, but with them
PySpark 4.3 prints an error whenever it ends a worker that was idle."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from pyspark import TaskContext

_OPEN_FILES = Path("/proc/self/fd")


def acknowledge() -> None:
    """Call in a task, where more of it is still to come: what has come is acknowledged now. Nothing happens outside of
    a task, or where there is no such option."""
    if TaskContext.get() is None or not hasattr(socket, "TCP_QUICKACK"):
        return
    with contextlib.suppress(OSError):
        for path in _OPEN_FILES.iterdir():
            with contextlib.suppress(OSError):  # one that was open to list these
                _acknowledge(int(path.name))


def _acknowledge(fd: int) -> None:
    """On any connection that this process has: it does no harm to others, and holds for a moment only."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return
    connection = socket.socket(fileno=fd)
    try:
        if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    finally:
        connection.detach()
