"""What Java says on stderr while Spark starts is for those whose Spark did not start; what it says later is for all.

Java, Ivy and Spark greet with warnings about modules, tables of jars and log levels, some before any setting of theirs
can keep them quiet. So they are given a pipe for stderr, which is read by a thread for as long as they live.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR = 2
_MOST_KEPT = 256 * 1024
_PATIENCE_SECONDS = 5.0
_STARTED, _FAILED = b"\x00stratalog: started\n", b"\x00stratalog: failed\n"
_IS_ERROR = b" ERROR "  # as log4j2.properties has it


@contextmanager
def quiet_start() -> Iterator[None]:
    """Around what starts the JVM. Where that fails, all that was said is written to stderr."""
    sys.stderr.flush()
    reading, writing = os.pipe()
    shown = os.dup(_STDERR)
    os.dup2(writing, _STDERR)
    os.close(writing)
    relay = _Relay(reading, shown)
    try:
        yield
    except BaseException:
        relay.start_is_over(_FAILED)
        raise
    else:
        relay.start_is_over(_STARTED)
    finally:
        sys.stderr.flush()
        os.dup2(shown, _STDERR)


class _Relay:
    """Keeps back what is said before one of the marks comes through the pipe; what comes later goes on as it comes."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._is_over = threading.Event()
        threading.Thread(target=self._run, name="stratalog-stderr", daemon=True).start()

    def start_is_over(self, mark: bytes) -> None:
        """While stderr is still the pipe. Returns when what is to be shown of the start is shown."""
        os.write(_STDERR, mark)
        self._is_over.wait(_PATIENCE_SECONDS)

    def _run(self) -> None:
        kept = b""
        while piece := os.read(self._reading, 65_536):
            if self._is_over.is_set():
                self._write(piece)
                continue
            kept = (kept + piece)[-_MOST_KEPT:]
            for mark in (_STARTED, _FAILED):
                before, found, behind = kept.partition(mark)
                if found:
                    lines = before.splitlines(keepends=True)
                    self._write(b"".join(line for line in lines if mark == _FAILED or _IS_ERROR in line) + behind)
                    self._is_over.set()
        os.close(self._reading)
        os.close(self._writing)

    def _write(self, piece: bytes) -> None:
        try:
            os.write(self._writing, piece)
        except OSError:
            pass  # nobody reads it any more
