from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.broker.controller.decisions import elect
from stratalog.broker.controller.reassignment import (
    ReassignmentError,
    begin,
    cancel,
    finish,
    original_replicas,
    target_replicas,
)
from stratalog.broker.metadata.partition_state import PartitionState

BEFORE = PartitionState((0, 1, 2), 0, 5, (0, 1, 2), leader_broker_epoch=10)


def test_replicas_go_before_the_new_ones_have_caught_up() -> None:
    moving = begin(BEFORE, (3, 4, 0))
    assert (moving.replicas, moving.adding, moving.removing) == ((3, 4, 0, 1, 2), (3, 4), (1, 2))
    assert (moving.isr, moving.leader) == ((0, 1, 2), 0)
    assert (target_replicas(moving), set(original_replicas(moving))) == ((3, 4, 0), {0, 1, 2})
    assert finish(replace(moving, isr=(0, 1, 2, 3))) == replace(moving, isr=(0, 1, 2, 3))
    done = finish(replace(moving, isr=(0, 1, 2, 3, 4)))
    assert (done.replicas, done.isr, done.leader, done.is_reassigning) == ((3, 4, 0), (0, 3, 4), 0, False)


def test_a_leader_that_is_moved_away_goes_on_leading() -> None:
    moving = begin(BEFORE, (1, 2, 3))
    done = elect(finish(replace(moving, isr=(0, 1, 2, 3))), {1: 11, 2: 12, 3: 13})
    assert (done.leader, done.leader_epoch, done.isr) == (1, 7, (1, 2, 3))


def test_a_cancelled_reassignment_leaves_added_replicas() -> None:
    moving = replace(begin(BEFORE, (3, 4, 0)), isr=(0, 1, 2, 3))
    back = cancel(moving)
    assert (set(back.replicas), back.isr, back.is_reassigning) == ({0, 1, 2}, (0, 1, 2), False)
    assert (back.leader, back.leader_epoch) == (0, 6), "old fetches of broker 3 must not count"
    assert begin(moving, original_replicas(moving)) == back


def test_a_new_target_keeps_replicas_of_the_old_one() -> None:
    moving = begin(begin(BEFORE, (3, 4, 0)), (5, 0, 1))
    assert (moving.replicas, moving.adding, moving.removing) == ((5, 0, 1, 2), (5,), (2,))


def test_a_change_that_leaves_no_replica_in_sync_is_made() -> None:
    moving = replace(begin(BEFORE, (3, 4, 5)), isr=(3,), leader=3)
    with pytest.raises(ReassignmentError, match="none of the replicas that would remain is in sync"):
        cancel(moving)


def test_a_smaller_replication_factor_is_not_reached() -> None:
    done = finish(begin(BEFORE, (0,)))
    assert (done.replicas, done.isr, done.leader) == ((0,), (0,), 0)
