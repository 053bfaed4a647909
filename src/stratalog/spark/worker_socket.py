"""Avoids a delay of 40 ms per task, longer than a small task takes.

Spark's JVM sends a task to its Python worker in pieces. By Nagle's algorithm it sends the next piece when the previous
one is acknowledged, and Linux delays the acknowledgement while the worker sends nothing. Unix sockets
(spark.python.unix.domain.socket.enabled) have no such delay, but with them PySpark 4.3 prints an error whenever it
stops an idle worker.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from pyspark import TaskContext

_OPEN_FILES = Path("/proc/self/fd")


def acknowledge() -> None:
    """Acknowledge immediately what has been received. Call in a task that has not been received completely. Outside of
    a task, and on systems without the socket option, the call has no effect."""
    if TaskContext.get() is None or not hasattr(socket, "TCP_QUICKACK"):
        return
    with contextlib.suppress(OSError):
        for path in _OPEN_FILES.iterdir():
            with contextlib.suppress(OSError):  # the descriptor that listed this directory is closed
                _acknowledge(int(path.name))


def _acknowledge(fd: int) -> None:
    """Acknowledge on any TCP connection of this process. The option is harmless on others, and does not last."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return
    connection = socket.socket(fileno=fd)
    try:
        if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    finally:
        connection.detach()
