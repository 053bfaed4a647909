"""One line to a process, one line back. From any thread, one exchange at a time."""

from __future__ import annotations

import select
import subprocess
import threading


class CommandLine:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Its stdin and stdout are pipes without buffers."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._lock = threading.Lock()

    def exchange(self, line: str, seconds: float) -> str:
        """What it says; nothing if it has ended, or says nothing for so long."""
        with self._lock:
            try:
                self._stdin.write(line.encode() + b"\n")
            except (BrokenPipeError, ValueError):
                return ""
            readable = select.poll()  # select.select() can't have descriptors past 1023
            readable.register(self._stdout, select.POLLIN)
            if not readable.poll(seconds * 1000):
                return ""
            return self._stdout.readline().decode()
