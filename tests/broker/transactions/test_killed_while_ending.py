"""kill -9 of a real broker at each step of the end of a transaction: its next start completes the transaction, once."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from stratalog.broker.transactions.state import ProducerIdAndEpoch
from tests.broker.transactions.dying_broker import DyingBroker
from tests.compat.transaction_sides import Side

SETTINGS = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
# PrepareCommit or PrepareAbort; markers in t-0, u-0 and the group's partition of __consumer_offsets; the completion.
STEPS = range(5)
NEW, OLD = 5, 4  # versions of EndTxn: the producer gets the next epoch with each end, or keeps its epoch


@pytest.mark.parametrize(("version", "commit"), [(NEW, True), (NEW, False), (OLD, True)])
def test_end_is_complete_after_a_kill_at_any_of_its_steps(tmp_path: Path, version: int, commit: bool) -> None:
    broker = DyingBroker(tmp_path / "data", SETTINGS)
    who = ProducerIdAndEpoch(-1, -1)
    for step in STEPS:
        broker.dies_at = step
        with broker, closing(Side(broker.address)) as side:
            if step == 0:
                side.begin_story("killed")
                who = side.init("t")
            else:
                side.go_on("killed")
                who = check_complete(side, who, step, version=version, commit=commit)
            write(side, who, step, version)
            with pytest.raises((AssertionError, OSError), match=r"closed|reset"):  # the connection is
                side.end("t", who, commit=commit, version=version)
            assert broker.wait_for_end() == -signal.SIGKILL
    broker.dies_at = None
    with broker, closing(Side(broker.address)) as side:
        side.go_on("killed")
        check_complete(side, who, len(STEPS), version=version, commit=commit)
    assert broker.errors() == []


def write(side: Side, who: ProducerIdAndEpoch, number: int, version: int) -> None:
    """Write one record to each of two topics, and commit an offset."""
    before = len(side.seen)
    if version == OLD:
        side.add("t", who, "t", 0)
        side.add("t", who, "u", 0)
        side.add_offsets("t", who, "g")
    for name in ("t", "u"):
        sequence, produce_version = (0, 12) if version == NEW else (number, 9)
        side.produce("t", who, name, b"%d" % number, sequence=sequence, version=produce_version)
    side.commit_offset("t", who, "g", "t", number + 1, 5 if version == NEW else 3)
    assert all(one.answer in (("none",), (["none"],)) for one in side.seen[before:]), side.seen[before:]


def check_complete(
    side: Side, who: ProducerIdAndEpoch, ended: int, *, version: int, commit: bool
) -> ProducerIdAndEpoch:
    """Assert that so many transactions have ended, each once. Return the producer, from a retry of its last end."""
    side.look("t", "t", "u")
    state, *partitions = [one.answer for one in side.seen[-5:]]
    assert state[:2] == ("none", "CompleteCommit" if commit else "CompleteAbort")
    for producers, (high_watermark, stable, aborted, batches) in zip(partitions[::2], partitions[1::2], strict=True):
        assert [open_since for _, _, open_since in producers] == [-1]
        assert high_watermark == stable
        assert len(aborted) == (0 if commit else ended)
        assert [batch[-1] for batch in batches if isinstance(batch[-1], list)] == [[b"%d" % n] for n in range(ended)]
        # A broker that has not completed an end writes all its markers again.
        assert {batch[-1] for batch in batches if isinstance(batch[-1], str)} == {"COMMIT" if commit else "ABORT"}
    assert side.committed_offset("g", "t") == (ended if commit else -1)
    after = side.end("t", who, commit=commit, version=version)
    assert side.seen[-1].answer[0] == "none"
    assert after == (ProducerIdAndEpoch(who.producer_id, who.epoch + 1) if version == NEW else who)
    return after
