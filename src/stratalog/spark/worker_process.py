"""Makes PySpark's worker processes fast: garbage collection becomes cheap, and data arrives without a delay.

Workers collect garbage after each task and each plan, and visit every object of every module. With pandas, Arrow and
the protocol's schemas that takes some 50 ms, much longer than reading a small micro-batch.

Spark's JVM sends a task to its Python worker in pieces. By Nagle's algorithm it sends the next piece when the previous
one is acknowledged, and Linux delays the acknowledgement by 40 ms while the worker sends nothing. Unix sockets
(spark.python.unix.domain.socket.enabled) have no such delay, but with them PySpark 4.3 prints an error whenever it
stops an idle worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
import sys
from pathlib import Path

from pyspark import TaskContext

_OPEN_FILES = Path("/proc/self/fd")
_frozen = False


def freeze_modules() -> None:
    """Exclude all existing objects from later collections of this process. Call when a task or plan has imported what
    it needs. Only the first call has an effect, and only in PySpark's own processes; it collects existing garbage
    first.
    """
    global _frozen
    if not _frozen and _is_pyspark():
        _frozen = True
        gc.collect()
        gc.freeze()


def _is_pyspark() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return TaskContext.get() is not None or (main is not None and main.name.startswith("pyspark."))


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
