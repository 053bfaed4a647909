"""What a power cut leaves of transactions: with every log flushed at each append, all that kill -9 leaves; without, of
each no more than was decided, and nothing that holds up readers for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.transactions.power_cuts import IDS, Group, PowerCutsOfTransactions, Row, World

IMAGES = 15


def check_goes_on(world: World) -> None:
    """Nothing is open for ever, and every id can be used."""
    world.let_time_pass()
    for partition in world.orders():
        assert partition.last_stable_offset == partition.high_watermark, f"{partition} is held up"
    before = world.visible()
    rows = [(0, b"new"), (1, b"new"), (1, b"newer")]
    members = [world.begin(transactional_id) for transactional_id in IDS]
    for member in members:
        world.write(member, rows)
        assert world.two_phase.prepare(member, 1000) is None
    world.finish(members, commit=True)
    assert sorted(world.visible()) == sorted([*before, *rows * len(IDS)])


@pytest.mark.parametrize("seed", range(4))
def test_flushed_transactions_are_whole_after_a_power_cut(scratch: Path, seed: int) -> None:
    def check(world: World, groups: list[Group]) -> None:
        visible = seen_once(world)
        for group in groups:
            rows = group.all_rows
            if group.state == "committed":
                assert rows <= visible, group
            elif group.state == "deciding":
                assert rows <= visible or not rows & visible, group
            else:
                assert not rows & visible, group
        check_goes_on(world)

    PowerCutsOfTransactions(scratch, seed, IMAGES, flushes=True).run(check)


@pytest.mark.parametrize("seed", range(10, 16))
def test_unflushed_transactions_lose_rows_and_show_none_that_were_not_committed(scratch: Path, seed: int) -> None:
    def check(world: World, groups: list[Group]) -> None:
        visible = seen_once(world)
        for group in groups:
            if group.state in ("undecided", "aborted"):
                assert not group.all_rows & visible, group
        check_goes_on(world)

    PowerCutsOfTransactions(scratch, seed, IMAGES, flushes=False).run(check)


def seen_once(world: World) -> set[Row]:
    world.let_time_pass()
    found = world.visible()
    assert len(set(found)) == len(found)
    return set(found)
