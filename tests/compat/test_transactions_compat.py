"""Requests of transactions to Apache Kafka and to our broker, which must respond and store transactions alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stratalog.broker.transactions.records import transaction_record
from stratalog.broker.transactions.state import HIGHEST_EPOCH, ProducerIdAndEpoch, Transaction, TransactionState
from stratalog.records import build_batch
from stratalog.storage import LogDirectory
from tests.broker.process import BrokerProcess
from tests.compat.kafka_server import KafkaServer
from tests.compat.transaction_sides import Side

pytestmark = pytest.mark.compat

SETTINGS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
}
LAST = HIGHEST_EPOCH - 1  # of a client: the highest is for fencing it
OLD_ID = 77
USED_UP = ("used-up-v4", "used-up-v5", "used-up-abort", "used-up-claimed", "used-up-fenced", "fenced-last")
SEQUENCE_MAX = 2**31 - 1

Story = Callable[[Side], None]
STORIES: dict[str, Story] = {}


def story(tell: Story) -> Story:
    STORIES[tell.__name__] = tell
    return tell


def use_up_epochs(data_dir: Path) -> None:
    """Set the producer epoch as after 32,766 transactions, which would take too long."""
    with LogDirectory.open(data_dir, background=False) as directory:
        for number, name in enumerate(USED_UP):
            used = Transaction(
                name, OLD_ID + number, LAST, 60_000, TransactionState.EMPTY, updated_ms=1_700_000_000_000
            )
            directory.log("__transaction_state", 0).append(build_batch([transaction_record(used)]))


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    directory = tmp_path_factory.mktemp("brokers")
    with KafkaServer(directory / "kafka", SETTINGS) as kafka, BrokerProcess(directory / "ours", SETTINGS) as ours:
        for address in (kafka.bootstrap, ours.address):
            side = Side(address)
            side.make_ready()
            side.close()
        for broker in (kafka, ours):
            broker.stop()
            use_up_epochs(broker.data_dir)
            broker.start()
        both = Side(kafka.bootstrap), Side(ours.address)
        for side in both:
            side.make_ready()
        yield both
        for side in both:
            side.close()
        assert ours.errors() == []


@story
def ends_of_older_clients(side: Side) -> None:
    who = side.init("t")
    for version in (0, 4):
        side.end("t", who, commit=True, version=version)
        side.end("t", who, commit=False, version=version)
    for commit in (True, False):
        side.add("t", who, "t", 0)
        side.end("t", who, commit=commit, version=4)
        for version in (1, 4):
            side.end("t", who, commit=commit, version=version)
            side.end("t", who, commit=not commit, version=version)
        side.look("t", "t")
    for other in (
        ProducerIdAndEpoch(who.producer_id, 3),
        ProducerIdAndEpoch(who.producer_id, -1),
        ProducerIdAndEpoch(who.producer_id + 999, 0),
    ):
        for version in (1, 2, 4):
            side.end("t", other, commit=True, version=version)
    side.end("unknown", who, commit=True, version=4)
    side.end("", who, commit=True, version=4)
    side.look("t", "t")


@story
def ends_of_newer_clients(side: Side) -> None:
    old = side.init("t")
    side.end("t", old, commit=True)
    who = side.end("t", old, commit=False)
    side.look("t", "t")
    side.end("t", old, commit=False)
    side.end("t", old, commit=True)
    for commit in (True, False):
        side.produce("t", who, "t", b"v")
        after = side.end("t", who, commit=commit)
        side.look("t", "t")
        side.end("t", who, commit=commit)
        side.end("t", who, commit=not commit)
        side.end("t", after, commit=True)
        who = after
    for other in (
        ProducerIdAndEpoch(who.producer_id, who.epoch + 1),
        ProducerIdAndEpoch(who.producer_id, 0),
        ProducerIdAndEpoch(9_999, 0),
    ):
        side.end("t", other, commit=True)
        side.end("t", other, commit=False)
    side.end("unknown", who, commit=True)
    side.end("", who, commit=True)
    side.look("t", "t")


@story
def older_and_newer_ends_in_turn(side: Side) -> None:
    who = side.init("t")
    side.add("t", who, "t", 0)
    side.produce("t", who, "t", b"a", version=9)
    side.end("t", who, commit=True, version=3)
    side.end("t", who, commit=True, version=5)
    side.produce("t", who, "t", b"b", sequence=1)
    after = side.end("t", who, commit=True, version=5)
    side.end("t", who, commit=True, version=3)
    side.end("t", after, commit=True, version=3)
    side.end("t", after, commit=False, version=3)
    side.look("t", "t")


@story
def producers_that_go_on(side: Side) -> None:
    """Send InitProducerId with the former producer id and epoch (KIP-360), and with older ones."""
    first = side.init("t")
    second = side.init("t", first)
    side.init("t", first)
    third = side.init("t", second)
    for claimed in (
        first,
        ProducerIdAndEpoch(third.producer_id, 9),
        ProducerIdAndEpoch(third.producer_id + 999, third.epoch),
    ):
        side.init("t", claimed)
        side.init("t", claimed, version=3)
    for half in (ProducerIdAndEpoch(third.producer_id, -1), ProducerIdAndEpoch(-1, 0)):
        side.init("t", half)
    side.produce("t", third, "t", b"v")
    side.init_once("t")
    side.look("t", "t")
    side.init("t", third)
    fourth = side.init("t")
    side.produce("t", fourth, "t", b"w")
    side.init("t", fourth)
    side.look("t", "t")


@story
def ids_and_timeouts(side: Side) -> None:
    for timeout_ms in (0, -1, 900_000, 900_001, 2**31 - 1, 1):
        side.init("t", timeout_ms=timeout_ms)
    side.init("")
    side.init(None)
    side.init(None, ProducerIdAndEpoch(5, 5))
    side.init("new", ProducerIdAndEpoch(5, 5))
    for version in range(6):
        side.init("t", version=version)
    side.look("t")
    side.look("unknown")
    side.look("")


@story
def transaction_that_takes_too_long(side: Side) -> None:
    who = side.init("t", timeout_ms=1)
    side.produce("t", who, "t", b"v")
    side.await_state("t", "CompleteAbort")
    side.look("t", "t")
    side.end("t", who, commit=True)
    side.end("t", who, commit=False)
    side.end("t", who, commit=True, version=4)
    side.add("t", who, "t", 0)
    side.produce("t", who, "t", b"v", sequence=1)
    side.produce("t", who, "t", b"v", sequence=1, version=11)
    side.init("t", who)
    side.look("t", "t")


@story
def partitions(side: Side) -> None:
    who = side.init("t")
    for version in range(6):
        side.add("t", who, "t", 0, 1, version=version)
        side.add("t", who, "t", 0, 7, version=version)
        side.add("t", who, "nope", 0, version=version)
        side.add("t", ProducerIdAndEpoch(who.producer_id, 9), "t", 0, version=version)
        side.add("t", ProducerIdAndEpoch(who.producer_id + 999, 0), "t", 0, version=version)
        side.add("unknown", who, "t", 0, version=version)
        side.add("", who, "t", 0, version=version)
    for version in (4, 5):
        side.add("t", who, "t", 0, version=version, verify=True)
        side.add("t", who, "u", 0, version=version, verify=True)
    side.look("t", "t")
    side.end("t", who, commit=False, version=4)
    side.add("t", who, "t", 0, version=5, verify=True)
    side.look("t", "t")


@story
def batches_of_older_clients(side: Side) -> None:
    who = side.init("t")
    for version in (3, 9, 10, 11):
        side.produce("t", who, "t", b"not added", version=version)
    side.add("t", who, "t", 0)
    side.produce("t", who, "t", b"a", version=9)
    side.produce("t", who, "t", b"a", version=9)
    side.produce("t", who, "t", b"gap", sequence=3, version=9)
    side.produce("t", who, "t", b"beside", sequence=1, version=9, transactional=False)
    side.produce(None, who, "t", b"no id", sequence=1, version=9)
    side.produce("unknown", who, "t", b"other id", sequence=1, version=9)
    side.produce("t", ProducerIdAndEpoch(who.producer_id, 4), "t", b"epoch to come", version=9)
    side.produce("t", ProducerIdAndEpoch(9_999, 0), "t", b"another's", version=9)
    side.look("t", "t")
    side.end("t", who, commit=True, version=4)
    for version in (9, 11):
        side.produce("t", who, "t", b"late", sequence=1, version=version)
    side.look("t", "t")
    newer = side.init("t")
    for version in (9, 11):
        side.produce("t", who, "t", b"fenced", sequence=1, version=version)
    side.add("t", newer, "t", 0)
    side.produce("t", newer, "t", b"gap", sequence=1, version=9)
    side.produce("t", newer, "t", b"b", version=9)
    side.end("t", newer, commit=False, version=4)
    side.look("t", "t")


@story
def batches_of_newer_clients(side: Side) -> None:
    who = side.init("t")
    side.produce(None, who, "t", b"no id")
    side.produce("unknown", who, "t", b"other id")
    side.produce("t", ProducerIdAndEpoch(9_999, 0), "t", b"another's")
    side.produce("t", who, "t", b"gap", sequence=5)
    side.look("t", "t")
    side.produce("t", who, "t", b"a")
    side.produce("t", who, "t", b"a")
    side.produce("t", who, "t", b"beside", sequence=1, transactional=False)
    side.produce(None, who, "t", b"beside", sequence=1, transactional=False)
    side.produce(None, who, "t", b"no id", sequence=1)
    side.produce("t", ProducerIdAndEpoch(who.producer_id, 4), "t", b"epoch to come")
    side.look("t", "t")
    after = side.end("t", who, commit=True)
    side.produce("t", who, "t", b"late", sequence=1)
    side.produce("t", after, "t", b"gap", sequence=1)
    side.produce("t", after, "u", b"beside", transactional=False)
    side.produce("t", after, "t", b"b")
    side.look("t", "t")
    side.end("t", after, commit=False)
    side.look("t", "t", "u")


@story
def sequences_that_wrap(side: Side) -> None:
    who = side.init("t")
    side.add("t", who, "t", 0)
    side.produce("t", who, "t", b"a", sequence=SEQUENCE_MAX - 1, version=9, count=2)
    side.produce("t", who, "t", b"gap", sequence=1, version=9)
    side.produce("t", who, "t", b"b", sequence=0, version=9, count=2)
    side.produce("t", who, "t", b"b", sequence=0, version=9, count=2)
    side.produce("t", who, "t", b"c", sequence=SEQUENCE_MAX, version=9)
    side.look("t", "t")
    side.end("t", who, commit=True, version=4)
    side.add("t", who, "t", 0)
    side.produce("t", who, "t", b"d", sequence=2, version=9)
    side.end("t", who, commit=True, version=4)
    side.add("t", who, "u", 0)
    side.produce("t", who, "u", b"over the end", sequence=SEQUENCE_MAX - 1, version=9, count=4)
    side.produce("t", who, "u", b"behind it", sequence=2, version=9)
    side.end("t", who, commit=True, version=4)
    side.look("t", "t", "u")


@story
def epochs_that_are_used_up(side: Side) -> None:
    used = [ProducerIdAndEpoch(OLD_ID + number, LAST) for number in range(len(USED_UP))]
    for number, commit in ((1, True), (2, False)):
        name, old = USED_UP[number], used[number]
        side.produce(name, old, "t", b"last")
        new = side.end(name, old, commit=commit)
        side.end(name, old, commit=commit)
        side.end(name, old, commit=not commit)
        side.look(name, "t")
        side.produce(name, old, "t", b"late", sequence=1)
        side.produce(name, new, "t", b"first")
        side.end(name, new, commit=True)
        side.look(name, "t")
    name, old = USED_UP[0], used[0]
    side.add(name, old, "t", 0)
    side.produce(name, old, "t", b"last", version=9)
    side.end(name, old, commit=True, version=4)
    side.end(name, old, commit=True, version=4)
    side.look(name, "t")
    side.init(name)
    side.end(name, old, commit=True, version=4)
    side.look(name, "t")
    name, old = USED_UP[3], used[3]
    side.init(name, old)
    side.init(name, old)
    side.look(name)
    name, old = USED_UP[4], used[4]
    side.produce(name, old, "t", b"open")
    side.init(name)
    side.produce(name, old, "t", b"fenced", sequence=1)
    side.look(name, "t")
    name, old = USED_UP[5], used[5]
    side.end(name, old, commit=True)
    side.end(name, old, commit=False)
    side.look(name, "t")


@story
def offsets(side: Side) -> None:
    who = side.init("t")
    for version in (0, 2, 3, 4):
        side.commit_offset("t", who, "g", "t", 5, version)
    side.add_offsets("t", ProducerIdAndEpoch(who.producer_id, 7), "g", version=1)
    side.add_offsets("t", ProducerIdAndEpoch(who.producer_id, 7), "g")
    side.add_offsets("unknown", who, "g")
    side.add_offsets("", who, "g")
    side.add_offsets("t", who, "g")
    side.commit_offset("t", who, "g", "t", 5)
    side.commit_offset("t", who, "g", "nope", 5)
    side.commit_offset("t", who, "g", "t", 5, generation_id=4)
    side.commit_offset("t", who, "g", "t", 5, member_id="m", generation_id=0)
    side.commit_offset("t", ProducerIdAndEpoch(who.producer_id, 7), "g", "t", 5)
    side.commit_offset("t", who, "other", "t", 5, 3)
    side.look("t")
    side.end("t", who, commit=True, version=4)
    side.commit_offset("t", who, "g", "t", 6, 4)
    side.commit_offset("t", who, "g", "t", 6, 5)
    side.commit_offset("t", ProducerIdAndEpoch(who.producer_id, 7), "g", "t", 6, 5)
    side.commit_offset("unknown", who, "g", "t", 6, 5)
    side.end("t", who, commit=False)
    side.commit_offset("t", who, "g", "t", 6, 5)
    side.look("t")


@story
def markers_by_hand(side: Side) -> None:
    side.init("t")
    who = side.init("t")
    side.produce("t", who, "t", b"a")
    side.write_marker(ProducerIdAndEpoch(who.producer_id, who.epoch - 1), "t", commit=False)
    side.write_marker(who, "nope", commit=False)
    side.look("t", "t")
    side.write_marker(who, "t", commit=False, coordinator_epoch=5)
    side.write_marker(who, "t", commit=False, coordinator_epoch=4)
    side.write_marker(who, "t", commit=True, coordinator_epoch=5)
    side.look("t", "t")


@pytest.mark.parametrize("name", STORIES)
def test_both_brokers_respond_and_store_transactions_alike(sides: tuple[Side, Side], name: str) -> None:
    kafka, ours = sides
    for side in sides:
        side.begin_story(name)
        STORIES[name](side)
    assert len(ours.seen) == len(kafka.seen) > 5
    differences = [
        f"\n{theirs.what}:\n  Kafka {theirs.answer}\n  ours  {mine.answer}"
        for theirs, mine in zip(kafka.seen, ours.seen, strict=True)
        if theirs != mine
    ]
    assert not differences, "".join(differences)
