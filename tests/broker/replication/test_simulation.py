"""Thousands of lives of a simulated cluster: see simulation.py for what must hold in each."""

from __future__ import annotations

import pytest

from tests.broker.replication.simulation import FAULTS, Simulation, first_violation
from tests.campaigns import quick_and_full

SEEDS = 300


@pytest.mark.parametrize("seeds", quick_and_full(SEEDS, 3000))
def test_a_rule_of_replication_is_broken(seeds: int) -> None:
    assert first_violation(range(seeds)) is None, "replay it: python -m tests.broker.replication.simulation SEED"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_passes_unseen(fault: str) -> None:
    assert first_violation(range(SEEDS), (fault,)) is not None


def test_runs_do_nothing_worth_checking() -> None:
    acknowledged = elections = 0
    for seed in range(50):
        simulation = Simulation(seed)
        simulation.run()
        acknowledged += len(simulation.acknowledged)
        elections += simulation.zookeeper.state.leader_epoch
    assert acknowledged > 5 * 50
    assert elections > 2 * 50


def test_a_seed_has_two_lives() -> None:
    lives: list[list[str]] = []
    for _ in range(2):
        notes: list[str] = []
        Simulation(7, log=notes.append).run()
        lives.append(notes)
    assert lives[0] == lives[1]
