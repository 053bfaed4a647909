"""Which stretches of a file have had their checksums checked since it was opened.

Every byte is checked once before it is first served; after that only this is asked. Readers are mostly sequential,
so the stretches merge into one or two. Random readers leave many: past a bound all are forgotten, which costs
checking again and nothing else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_MAX_RANGES = 1024


class CheckedRanges:
    """Threads: `add` from one at a time, `end_of` from any: the two lists are replaced as one."""

    def __init__(self) -> None:
        self._ranges: tuple[list[int], list[int]] = ([], [])

    def end_of(self, position: int) -> int:
        """How far the bytes from `position` on are known to be good; `position` itself where they are not."""
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
        """Forget everything from `position` on: the log was truncated there."""
        starts, ends = self._ranges
        kept = bisect_left(starts, position)
        self._ranges = (starts[:kept], [min(end, position) for end in ends[:kept]])
