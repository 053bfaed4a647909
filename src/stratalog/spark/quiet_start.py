"""What Java says on stderr while Spark starts is for those whose Spark did not start; what it says later is for all.

Java, Ivy and Spark greet with warnings about modules, tables of jars and log levels, some before any setting of theirs
can keep them quiet. So they are given a pipe for stderr, which is read by a thread for as long as they live.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STDERR = 2
_MOST_KEPT = 256 * 1024
_PATIENCE_SECONDS = 5.0
_STARTED, _FAILED = b"\x00stratalog: started\n", b"\x00stratalog: failed\n"
_IS_ERROR = b" ERROR "  # as log4j2.properties has it


@contextmanager
def quiet_start(explain: Callable[[Exception, str], str] | None = None) -> Iterator[None]:
    """Around what starts the JVM. Where that fails, all that was said is written to stderr, and before it the line that
    `explain` makes of the error and what was said."""
    sys.stderr.flush()
    reading, writing = os.pipe()
    shown = os.dup(_STDERR)
    os.dup2(writing, _STDERR)
    os.close(writing)
    relay = _Relay(reading, shown)
    try:
        yield
    except BaseException as error:
        said = relay.start_is_over(_FAILED)
        if explain is not None and isinstance(error, Exception):
            relay.write(f"stratalog: {explain(error, said.decode(errors='replace'))}\n".encode())
        relay.write(said)
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
        self._said = b""
        threading.Thread(target=self._run, name="stratalog-stderr", daemon=True).start()

    def start_is_over(self, mark: bytes) -> bytes:
        """While stderr is still the pipe. What was said up to now; of a start that went well, errors are shown."""
        os.write(_STDERR, mark)
        self._is_over.wait(_PATIENCE_SECONDS)
        return self._said

    def _run(self) -> None:
        kept = b""
        while piece := os.read(self._reading, 65_536):
            if self._is_over.is_set():
                self.write(piece)
                continue
            kept = (kept + piece)[-_MOST_KEPT:]
            for mark in (_STARTED, _FAILED):
                before, found, behind = kept.partition(mark)
                if found:
                    self._said = before
                    if mark == _STARTED:
                        self.write(b"".join(line for line in before.splitlines(keepends=True) if _IS_ERROR in line))
                    self.write(behind)
                    self._is_over.set()
        os.close(self._reading)
        os.close(self._writing)

    def write(self, piece: bytes) -> None:
        try:
            os.write(self._writing, piece)
        except OSError:
            pass  # nobody reads it any more
