from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.storage.leader_epochs import LeaderEpochs

HISTORY = [(0, 0), (2, 10), (5, 10 + 15)]


def test_new_log_has_no_epoch() -> None:
    epochs = LeaderEpochs()
    assert (epochs.entries, epochs.latest, epochs.epoch_of(0), epochs.end_offset(3, 7)) == ([], None, None, None)


@pytest.mark.parametrize(
    ("epoch", "start", "changes", "entries"),
    [
        (5, 30, False, HISTORY),  # the same epoch continues
        (5, 25, False, HISTORY),
        (6, 40, True, [*HISTORY, (6, 40)]),
        (6, 25, True, [(0, 0), (2, 10), (6, 25)]),  # the last epoch has no records
        (6, 10, True, [(0, 0), (6, 10)]),
        (5, 20, True, [(0, 0), (2, 10), (5, 20)]),  # an earlier start replaces the entry
        (3, 40, True, [(0, 0), (2, 10), (3, 40)]),
        (-1, 40, False, HISTORY),
        (7, -1, False, HISTORY),
    ],
)
def test_newest_writer_is_right(epoch: int, start: int, changes: bool, entries: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(HISTORY)
    assert epochs.assign(epoch, start) is changes
    assert epochs.entries == entries


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (9, 0), (10, 2), (24, 2), (25, 5), (10**9, 5)])
def test_epoch_of_an_offset(offset: int, epoch: int) -> None:
    assert LeaderEpochs(HISTORY).epoch_of(offset) == epoch


def test_offset_before_the_first_epoch_has_none() -> None:
    assert LeaderEpochs([(3, 10)]).epoch_of(9) is None


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(-1, None), (0, (0, 10)), (1, (0, 10)), (2, (2, 25)), (4, (2, 25)), (5, (5, 99)), (9, (5, 99))],
)
def test_end_of_an_epoch_is_the_start_of_the_next(epoch: int, answer: tuple[int, int] | None) -> None:
    assert LeaderEpochs(HISTORY).end_offset(epoch, log_end_offset=99) == answer


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (1, 1), (10, 1), (11, 2), (25, 2), (26, 3)])
def test_truncated_end_forgets_epochs_that_begin_there_or_later(offset: int, left: int) -> None:
    epochs = LeaderEpochs(HISTORY)
    assert epochs.truncate_end(offset) is (left < 3)
    assert epochs.entries == HISTORY[:left]


@pytest.mark.parametrize(
    ("offset", "changes", "entries"),
    [
        (0, False, HISTORY),
        (5, True, [(0, 5), (2, 10), (5, 25)]),
        (10, True, [(2, 10), (5, 25)]),
        (12, True, [(2, 12), (5, 25)]),
        (25, True, [(5, 25)]),
        (99, True, [(5, 99)]),
    ],
)
def test_advanced_start_moves_the_epoch_that_covers_it(
    offset: int, changes: bool, entries: list[tuple[int, int]]
) -> None:
    epochs = LeaderEpochs(HISTORY)
    assert epochs.truncate_start(offset) is changes
    assert epochs.entries == entries


def test_start_before_the_first_epoch_changes_nothing() -> None:
    epochs = LeaderEpochs([(3, 10)])
    assert epochs.truncate_start(5) is False
    assert epochs.entries == [(3, 10)]


steps = st.tuples(st.sampled_from(["assign", "end", "start"]), st.integers(0, 8), st.integers(0, 40))


@given(steps=st.lists(steps, max_size=25))
def test_epochs_and_offsets_always_rise(steps: list[tuple[str, int, int]]) -> None:
    epochs = LeaderEpochs()
    for step, epoch, offset in steps:
        before = epochs.entries
        if step == "assign":
            changed = epochs.assign(epoch, offset)
            assert epochs.epoch_of(offset) == epoch or not changed
        elif step == "end":
            changed = epochs.truncate_end(offset)
            assert all(start < offset for _, start in epochs.entries)
        else:
            covering = epochs.epoch_of(offset)
            changed = epochs.truncate_start(offset)
            assert epochs.epoch_of(offset) == covering
        assert changed is (epochs.entries != before)
        for column in zip(*epochs.entries, strict=True):
            assert list(column) == sorted(set(column))
