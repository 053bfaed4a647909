from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.replication.truncation import diverging_epoch, truncation_offset
from stratalog.storage.leader_epochs import LeaderEpochs

Log = list[tuple[int, int]]  # epoch and value


def epochs_of(log: Log) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for offset, (epoch, _) in enumerate(log):
        epochs.learn(epoch, offset)
    return epochs


def copy(leader: Log, follower: Log) -> tuple[Log, int]:
    """Return the follower's log when it has become the leader's, and how often it truncated."""
    follower = list(follower)
    rounds = 0
    while follower != leader:
        last = follower[-1][0] if follower else -1
        diverging = diverging_epoch(epochs_of(leader), len(leader), last, len(follower)) if follower else None
        if diverging is None:
            assert leader[: len(follower)] == follower, "the follower would append to a log that diverges"
            follower = leader[: len(follower) + 2]
            continue
        end = truncation_offset(epochs_of(follower), len(follower), diverging)
        assert end < len(follower), "a diverging follower keeps everything"
        del follower[end:]
        rounds += 1
    return follower, rounds


def test_the_end_of_a_dead_leader_stays() -> None:
    leader = [(0, 1), (0, 2), (2, 3)]
    assert copy(leader, [(0, 1), (0, 2), (1, 7), (1, 8)])[0] == leader


def test_a_follower_with_only_newer_epochs_keeps_them() -> None:
    assert copy([(1, 1), (3, 2)], [(2, 5), (2, 6)])[0] == [(1, 1), (3, 2)]


def test_a_follower_with_only_older_epochs_keeps_them() -> None:
    assert copy([(2, 1), (2, 2)], [(0, 9)])[0] == [(2, 1), (2, 2)]


def test_an_empty_leader_leaves_the_followers_records() -> None:
    assert copy([], [(0, 1)])[0] == []


def test_agreeing_logs_are_truncated() -> None:
    log = [(0, 1), (1, 2)]
    assert copy(log, log[:1]) == (log, 0)
    assert diverging_epoch(epochs_of(log), 2, 1, 2) is None


@st.composite
def histories(draw: st.DrawFn) -> tuple[Log, Log]:
    """Two logs as elections make them: in each epoch one replica leads; it appends, and the other may copy some."""
    logs: tuple[Log, Log] = ([], [])
    for epoch in range(draw(st.integers(1, 5))):
        leader, other = draw(st.permutations(logs))
        if draw(st.booleans()):  # the other one becomes a follower in this epoch
            other[:] = copy(leader, other)[0]
        leader += [(epoch, 100 * epoch + number) for number in range(draw(st.integers(0, 3)))]
        if other == leader[: len(other)]:
            other += leader[len(other) :][: draw(st.integers(0, 3))]
    return logs


@given(histories())
def test_a_follower_ends_with_another_log_than_its_leader(logs: tuple[Log, Log]) -> None:
    leader, follower = logs
    common = 0
    while common < min(len(leader), len(follower)) and leader[common] == follower[common]:
        common += 1
    copied, rounds = copy(leader, follower)
    assert copied == leader
    assert rounds <= len({epoch for epoch, _ in follower}) + 1
