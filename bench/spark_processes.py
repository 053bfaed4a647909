"""Processes of a Spark program: the program, its JVM, and the Python processes that Spark starts."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Return the process and everything below it."""
    pids = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue  # the thread ended
        for child in children:
            try:
                pids += descendants(int(child))
            except FileNotFoundError:
                continue
    return pids


def cpu_seconds(pid: int) -> float:
    """Return the CPU of a process and of its children that have ended; 0 if it has ended itself."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(fields[at]) for at in (11, 12, 13, 14)) / _TICKS


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU of a process and everything below it, including children that have ended."""
    return sum(cpu_seconds(each) for each in descendants(pid))
