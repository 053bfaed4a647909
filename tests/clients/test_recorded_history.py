"""A history of concurrent transactions under kills, recorded from real clients, must have no findings."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.broker.process import BrokerProcess
from tests.clients.admin import create_topic
from tests.clients.history_recorder import Follower, Writer, write_last
from tests.clients.interface import Place
from tests.clients.transaction_history import History, Outcome, check
from tests.clients.waiting import wait_until

KILLS = 4
PLACES = [Place("history", partition) for partition in range(4)]
WRITERS = ("confluent-kafka", "aiokafka", "stratalog")  # kafka-python leaves sockets open, which would fail other tests
READERS = ("confluent-kafka", "stratalog")
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "transaction.state.log.num.partitions": 2,
    "log.segment.bytes": 16 * 1024,  # so that aborted transactions are in several segments
}


def test_no_write_is_lost_duplicated_torn_or_visible_too_early(tmp_path: Path) -> None:
    chance = random.Random(5)
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker:
        create_topic(broker.address, PLACES[0].topic, len(PLACES))
        followers = [Follower(name, broker.address, PLACES) for name in READERS]
        writers = [Writer(name, broker.address, PLACES, seed) for seed, name in enumerate(WRITERS)]
        for _ in range(KILLS):
            await_commits(writers)
            time.sleep(chance.uniform(0, 0.3))  # the kill comes at a random moment
            broker.kill()
            broker.start()
        await_commits(writers)
        for writer in writers:
            writer.stop()
        last = write_last(broker.address, PLACES)
        wait_until(lambda: all(follower.has_seen(last.writes) for follower in followers), "reading to the end")
        readers = [follower.stop(reached_end=True) for follower in followers]
        assert broker.errors() == []
    transactions = [one for writer in writers for one in writer.transactions]
    assert {Outcome.COMMITTED, Outcome.ABORTED} <= {one.outcome for one in transactions}
    assert check(History([*transactions, last], readers)) == []


def await_commits(writers: list[Writer]) -> None:
    """Wait until each writer has committed another transaction."""
    before = [writer.committed for writer in writers]

    def all_did() -> bool:
        return all(writer.committed > so_many for writer, so_many in zip(writers, before, strict=True))

    wait_until(all_did, "a commit of each writer")
