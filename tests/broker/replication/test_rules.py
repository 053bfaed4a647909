from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.replication.rules import Leadership

LAG_MS = 1000
EPOCHS = {1: 11, 2: 12}


def led(
    isr: tuple[int, ...] = (0, 1, 2), *, epoch_start: int = 0, high_watermark: int = 0, min_insync: int = 1
) -> Leadership:
    state = PartitionState((0, 1, 2), 0, 5, isr, leader_broker_epoch=10, min_insync=min_insync)
    return Leadership(0, state, epoch_start=epoch_start, high_watermark=high_watermark, now_ms=0)


def fetch(leadership: Leadership, replica: int, offset: int, end: int, now_ms: int = 0) -> None:
    assert leadership.fetched(replica, offset, EPOCHS[replica], end, now_ms)


def advance(leadership: Leadership, end: int, now_ms: int = 0) -> int:
    return leadership.advance(end, now_ms, LAG_MS)


def newer(leadership: Leadership, isr: tuple[int, ...]) -> PartitionState:
    state = leadership.state
    return PartitionState(state.replicas, 0, 5, isr, leader_broker_epoch=10, partition_epoch=state.partition_epoch + 1)


def test_records_are_committed_before_every_member_has_them() -> None:
    leadership = led()
    assert advance(leadership, 10) == 0, "no follower has fetched in this epoch"
    fetch(leadership, 1, 7, 10)
    assert advance(leadership, 10) == 0
    fetch(leadership, 2, 4, 10)
    assert advance(leadership, 10) == 4


def test_the_high_watermark_goes_back() -> None:
    leadership = led(high_watermark=6)
    for replica in (1, 2):
        fetch(leadership, replica, 3, 10)
    assert advance(leadership, 10) == 6


def test_a_replica_outside_the_isr_holds_up_commits_for_good() -> None:
    leadership = led((0, 1))
    fetch(leadership, 1, 10, 10, 2 * LAG_MS)
    assert advance(leadership, 10, 2 * LAG_MS) == 10


def test_a_repeated_proposal_names_a_newer_registration() -> None:
    """The first attempt was refused because the follower has registered again; its log may lack what was committed."""
    leadership = led((0, 1))
    fetch(leadership, 1, 10, 10)
    fetch(leadership, 2, 10, 10)
    leadership.proposal(add=[2])
    assert leadership.joining == {2: EPOCHS[2]}
    assert leadership.fetched(2, 5, EPOCHS[2] + 1, 10, 0)
    assert leadership.joining == {2: EPOCHS[2]}


def test_a_follower_that_has_almost_caught_up_never_joins_under_load() -> None:
    leadership = led((0, 1))
    fetch(leadership, 1, 10, 10)
    fetch(leadership, 2, 8, 8)
    assert advance(leadership, 10) == 8, "it waits for the follower that had everything a moment ago"
    assert leadership.can_join(2, EPOCHS[2])
    assert advance(leadership, 10, LAG_MS + 1) == 10


@pytest.mark.parametrize(("isr", "committed"), [((0,), 0), ((0, 1), 10)])
def test_a_small_isr_commits_records(isr: tuple[int, ...], committed: int) -> None:
    leadership = led(isr, min_insync=2)
    if 1 in isr:
        fetch(leadership, 1, 10, 10)
    assert advance(leadership, 10, 2 * LAG_MS) == committed


def test_min_insync_replicas_above_the_number_of_replicas_commits_nothing() -> None:
    state = PartitionState((0,), 0, 5, (0,), min_insync=3)
    leadership = Leadership(0, state, epoch_start=0, high_watermark=0, now_ms=0)
    assert advance(leadership, 10) == 10


def test_a_dead_member_holds_up_commits_after_it_has_left_the_isr() -> None:
    leadership = led()
    for replica in (1, 2):
        fetch(leadership, replica, 8, 8)
    fetch(leadership, 1, 10, 10)
    assert advance(leadership, 10) == 8
    leadership.learned(newer(leadership, (0, 1)))
    assert advance(leadership, 10) == 10
    fetch(leadership, 2, 10, 10)
    assert leadership.can_join(2, EPOCHS[2]), "it lives, and fetches again"


def test_a_member_that_is_being_removed_no_longer_counts() -> None:
    leadership = led()
    fetch(leadership, 1, 10, 10)
    fetch(leadership, 2, 3, 10)
    assert leadership.proposal(remove=[2]) == (0, 1)
    assert advance(leadership, 10, 2 * LAG_MS) == 3
    leadership.learned(newer(leadership, (0, 1)))
    assert advance(leadership, 10, 2 * LAG_MS) == 10


def test_a_member_that_is_being_added_does_not_count_yet() -> None:
    leadership = led((0, 1))
    for replica, offset in ((1, 10), (2, 10)):
        fetch(leadership, replica, offset, 10)
    advance(leadership, 10)
    assert leadership.proposal(add=[2]) == (0, 1, 2)
    fetch(leadership, 1, 20, 20)
    assert advance(leadership, 20, 2 * LAG_MS) == 10
    leadership.refused(0, leadership.state)
    assert advance(leadership, 20, 2 * LAG_MS) == 20


def test_a_retry_that_is_refused_hides_that_the_first_attempt_counted() -> None:
    leadership = led((0, 1))
    leadership.proposal(add=[2])
    leadership.refused(0, newer(leadership, (0, 1, 2)))
    assert leadership.maximal_isr == {0, 1, 2}
    assert leadership.proposed_isr is None


def test_the_refusal_of_an_old_proposal_ends_the_new_one() -> None:
    leadership = led()
    leadership.proposal(remove=[2])
    leadership.learned(newer(leadership, (0, 1)))
    leadership.proposal(add=[2])
    leadership.refused(0, leadership.state)
    assert leadership.maximal_isr == {0, 1, 2}


@pytest.mark.parametrize(
    ("offset", "registered", "joins"),
    [(10, 12, True), (9, 12, False), (10, 13, False), (10, None, False)],
    ids=["caught up", "before the high watermark", "registered again", "not registered"],
)
def test_a_follower_joins_though_it_must_not(offset: int, registered: int | None, joins: bool) -> None:
    leadership = led((0, 1), high_watermark=10)
    fetch(leadership, 2, offset, 20)
    assert leadership.can_join(2, registered) is joins


def test_a_follower_joins_before_it_has_reached_this_epoch() -> None:
    leadership = led((0, 1), epoch_start=15, high_watermark=10)
    fetch(leadership, 2, 12, 20)
    assert not leadership.can_join(2, EPOCHS[2])
    fetch(leadership, 2, 15, 20)
    assert leadership.can_join(2, EPOCHS[2])


def test_a_fetch_from_before_a_restart_counts() -> None:
    leadership = led()
    assert leadership.fetched(2, 5, 14, 10, 0)
    assert not leadership.fetched(2, 9, 12, 10, 0)
    assert not leadership.fetched(7, 9, 12, 10, 0), "broker 7 is not a replica"
    fetch(leadership, 1, 10, 10)
    assert advance(leadership, 10) == 5


def test_a_follower_that_always_has_what_the_leader_had_is_taken_for_lagging() -> None:
    leadership = led()
    for number in range(10):
        now_ms = number * LAG_MS // 2
        fetch(leadership, 1, 10 * number, 10 * number + 10, now_ms)  # always one fetch behind
        fetch(leadership, 2, 5, 10 * number + 10, now_ms)
    assert leadership.lagging(100, now_ms, LAG_MS) == [2]


def test_a_quiet_follower_that_has_everything_is_taken_for_lagging() -> None:
    leadership = led()
    for replica in (1, 2):
        fetch(leadership, replica, 10, 10)
    assert leadership.lagging(10, 10 * LAG_MS, LAG_MS) == []
    assert leadership.lagging(11, 10 * LAG_MS, LAG_MS) == [1, 2]


def test_an_added_replica_is_not_followed() -> None:
    leadership = led()
    state = PartitionState((0, 1, 3), 0, 5, (0, 1), leader_broker_epoch=10, partition_epoch=1)
    leadership.learned(state)
    assert leadership.follower(2) is None
    assert leadership.fetched(3, 4, 13, 10, 0)


fetches = st.tuples(st.sampled_from([1, 2]), st.integers(0, 30))
changes = st.sampled_from(["shrink", "grow", "learn", "refuse"])


@given(st.lists(st.one_of(fetches, changes), max_size=40))
def test_a_record_is_committed_that_a_possible_isr_lacks(steps: list[tuple[int, int] | str]) -> None:
    """Whatever ZooKeeper makes of the proposals, each member of the ISR that it may have has the committed records."""
    leadership, end = led(), 30
    ends = {1: 0, 2: 0}
    for step in steps:
        if isinstance(step, tuple):
            replica, offset = step[0], max(step[1], ends[step[0]])
            ends[replica] = offset
            fetch(leadership, replica, offset, end)
        elif step == "learn" and leadership.proposed_isr is not None:
            leadership.learned(newer(leadership, leadership.proposed_isr))
        elif step == "refuse":
            leadership.refused(leadership.state.partition_epoch, leadership.state)
        elif leadership.proposed_isr is None:
            joining = [replica for replica in (1, 2) if leadership.can_join(replica, EPOCHS[replica])]
            if step == "grow" and joining:
                leadership.proposal(add=joining)
            elif step == "shrink" and len(leadership.state.isr) > 1:
                leadership.proposal(remove=[leadership.state.isr[-1]])
        before = leadership.high_watermark
        high_watermark = advance(leadership, end, 2 * LAG_MS)
        assert high_watermark >= before
        for isr in (leadership.state.isr, leadership.proposed_isr or ()):
            assert all(ends[replica] >= high_watermark for replica in isr if replica != 0)
