"""Commands to a process over its stdin and stdout: one line there, one line back."""

from __future__ import annotations

import select
import subprocess
import threading


class CommandLine:
    """A process that answers lines. Any thread may call it; the exchanges take turns."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Stdin and stdout of the process must be unbuffered pipes."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._lock = threading.Lock()

    def exchange(self, line: str, seconds: float) -> str:
        """Send a line and return the reply. Return an empty string if the process has ended or doesn't reply in
        time."""
        with self._lock:
            try:
                self._stdin.write(line.encode() + b"\n")
            except (BrokenPipeError, ValueError):
                return ""
            readable = select.poll()  # select.select() does not support descriptors above 1023
            readable.register(self._stdout, select.POLLIN)
            if not readable.poll(seconds * 1000):
                return ""
            return self._stdout.readline().decode()
