"""Hides what Java, Ivy and Spark write to stderr while Spark starts, unless the start fails.

They print warnings about modules, tables of jars and log levels, some before any setting can silence them. So the JVM
gets a pipe as its stderr, and a thread reads the pipe as long as the JVM lives. Later output passes through.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STDERR = 2
_MOST_KEPT = 256 * 1024
_TIMEOUT_SECONDS = 5.0
_STARTED, _FAILED = b"\x00stratalog: started\n", b"\x00stratalog: failed\n"
_IS_ERROR = b" ERROR "  # the layout of log4j2.properties


@contextmanager
def quiet_start(explain: Callable[[Exception, str], str] | None = None) -> Iterator[None]:
    """Hide stderr inside the block, which starts the JVM. If the block fails, write all hidden output to stderr, after
    the line that `explain` makes of the error and that output."""
    sys.stderr.flush()
    reading, writing = os.pipe()
    shown = os.dup(_STDERR)
    os.dup2(writing, _STDERR)
    os.close(writing)
    relay = _Relay(reading, shown)
    try:
        yield
    except BaseException as error:
        output = relay.end_start(_FAILED)
        if explain is not None and isinstance(error, Exception):
            relay.write(f"stratalog: {explain(error, output.decode(errors='replace'))}\n".encode())
        relay.write(output)
        raise
    else:
        relay.end_start(_STARTED)
    finally:
        sys.stderr.flush()
        os.dup2(shown, _STDERR)


class _Relay:
    """Keeps the output before one of the marks, and passes on all later output."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._has_ended = threading.Event()
        self._output = b""
        threading.Thread(target=self._run, name="stratalog-stderr", daemon=True).start()

    def end_start(self, mark: bytes) -> bytes:
        """Write the mark while stderr is still the pipe, and return the kept output. After a successful start, its
        error lines are shown."""
        os.write(_STDERR, mark)
        self._has_ended.wait(_TIMEOUT_SECONDS)
        return self._output

    def _run(self) -> None:
        kept = b""
        while piece := os.read(self._reading, 65_536):
            if self._has_ended.is_set():
                self.write(piece)
                continue
            kept = (kept + piece)[-_MOST_KEPT:]
            for mark in (_STARTED, _FAILED):
                before, separator, after = kept.partition(mark)
                if separator:
                    self._output = before
                    if mark == _STARTED:
                        self.write(b"".join(line for line in before.splitlines(keepends=True) if _IS_ERROR in line))
                    self.write(after)
                    self._has_ended.set()
        os.close(self._reading)
        os.close(self._writing)

    def write(self, piece: bytes) -> None:
        try:
            os.write(self._writing, piece)
        except OSError:
            pass  # the reader of stderr has gone
