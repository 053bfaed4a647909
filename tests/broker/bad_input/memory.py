"""What a process takes of memory, from /proc."""

from __future__ import annotations

from pathlib import Path

MB = 1024 * 1024


def resident(pid: int) -> int:
    """Bytes of RAM in use now."""
    return _status(pid, "VmRSS")


def peak(pid: int) -> int:
    """The most it had since reset_peak, or since its start."""
    return _status(pid, "VmHWM")


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
