"""The limit on open segments, also after a segment could not be released."""

from __future__ import annotations

from stratalog.storage.open_segments import OpenSegments


class Opened:
    def __init__(self, pool: OpenSegments) -> None:
        self.pool = pool
        self.is_open = True
        self.is_busy = False

    def release(self) -> None:
        if self.is_busy:
            self.pool.still_open(self)
        else:
            self.is_open = False


def test_the_oldest_is_released_first() -> None:
    pool = OpenSegments(2)
    segments = [Opened(pool) for _ in range(4)]
    for segment in segments:
        pool.opened(segment)
    assert [segment.is_open for segment in segments] == [False, False, True, True]


def test_limit_holds_again_when_busy_segments_are_idle() -> None:
    pool = OpenSegments(2)
    segments = [Opened(pool) for _ in range(10)]
    for segment in segments[:6]:
        segment.is_busy = True
    for segment in segments[:6]:
        pool.opened(segment)
    for segment in segments:
        segment.is_busy = False
    for segment in segments[6:]:
        pool.opened(segment)
    assert sum(segment.is_open for segment in segments) == 2
