from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.storage import checked_ranges
from stratalog.storage.checked_ranges import CheckedRanges

SPACE = 60


def end_in(checked: set[int], position: int) -> int:
    while position in checked:
        position += 1
    return position


steps = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "cut"]), st.integers(0, SPACE), st.integers(1, 12)), max_size=30
)


@given(steps=steps)
def test_checked_bytes_are_exactly_those_added_and_not_truncated(steps: list[tuple[str, int, int]]) -> None:
    ranges = CheckedRanges()
    model: set[int] = set()
    for step, position, length in steps:
        if step == "add":
            ranges.add(position, position + length)
            model |= set(range(position, position + length))
        else:
            ranges.cut(position)
            model = {at for at in model if at < position}
        for at in range(SPACE + 14):
            assert ranges.end_of(at) == end_in(model, at)


def test_new_ranges_are_empty() -> None:
    assert CheckedRanges().end_of(0) == 0
    assert CheckedRanges().end_of(7) == 7


def test_neighbouring_ranges_are_merged() -> None:
    ranges = CheckedRanges()
    ranges.add(0, 10)
    ranges.add(20, 30)
    assert ranges.end_of(0) == 10
    ranges.add(10, 20)
    assert ranges.end_of(0) == 30


def test_too_many_ranges_are_forgotten() -> None:
    ranges = CheckedRanges()
    for position in range(0, 10 * checked_ranges._MAX_RANGES, 10):
        ranges.add(position, position + 1)
    last = 10 * checked_ranges._MAX_RANGES
    ranges.add(last, last + 1)
    assert ranges.end_of(0) == 0
    assert ranges.end_of(last) == last + 1
