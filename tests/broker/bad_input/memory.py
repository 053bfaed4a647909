"""The memory of a process, from /proc."""

from __future__ import annotations

from pathlib import Path

MB = 1024 * 1024


def resident(pid: int) -> int:
    """Return the bytes of RAM that are in use now."""
    return _status(pid, "VmRSS")


class PeakMemory:
    """Limits the peak of a process's resident memory, in slow runs only: the peak also depends on the allocator and on
    what ran before."""

    def __init__(self, pid: int, resident_before: int, *, is_checked: bool) -> None:
        self._pid = pid
        self._before = resident_before
        self.is_checked = is_checked

    def reset(self) -> None:
        """Forget earlier peaks."""
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")

    def check(self, most_growth: int) -> None:
        """Fail if the peak since reset() is `most_growth` bytes or more above the memory before the attacks."""
        if self.is_checked:
            grown = _status(self._pid, "VmHWM") - self._before
            assert grown < most_growth, f"peak memory grew by {grown // MB} MB, more than {most_growth // MB} MB"


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
