"""The ranges of a file whose checksums were checked since it was opened.

Every byte is checked once, before it is first served. Most readers are sequential, so the ranges merge into one or two.
Random readers leave many. Above a limit, all ranges are forgotten, and then the bytes are checked again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_MAX_RANGES = 1024


class CheckedRanges:
    """Threads: one thread at a time calls `add` and `cut`. Any thread may call `end_of`, because the two lists are
    replaced together."""

    def __init__(self) -> None:
        self._ranges: tuple[list[int], list[int]] = ([], [])

    def end_of(self, position: int) -> int:
        """Return the end of the checked range that contains `position`, or `position` if it was not checked."""
        starts, ends = self._ranges
        slot = bisect_right(starts, position) - 1
        return max(position, ends[slot]) if slot >= 0 else position

    def add(self, start: int, end: int) -> None:
        starts, ends = self._ranges
        first = bisect_left(ends, start)
        last = bisect_right(starts, end)
        if first < last:
            start = min(start, starts[first])
            end = max(end, ends[last - 1])
        elif len(starts) >= _MAX_RANGES:
            self._ranges = ([start], [end])
            return
        self._ranges = ([*starts[:first], start, *starts[last:]], [*ends[:first], end, *ends[last:]])

    def cut(self, position: int) -> None:
        """Forget everything from `position` on, because the log was truncated there."""
        starts, ends = self._ranges
        kept = bisect_left(starts, position)
        self._ranges = (starts[:kept], [min(end, position) for end in ends[:kept]])
