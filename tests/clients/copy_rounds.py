"""Kills a copier, its broker, or both at random moments. The copier's output must have each input exactly once.

`make test` has a few rounds with each client, `make faults` has many.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.broker.process import BrokerProcess
from tests.client.read_committed import expect_committed, read_values
from tests.clients.admin import create_topic
from tests.clients.confluent import ConfluentClient
from tests.clients.copier import ABORTED, SOURCE, TARGETS, Copier
from tests.clients.interface import Message

INPUTS_A_ROUND = 40
KILLED = (("broker", "copier"), ("copier",), ("broker", "copier"), ("broker",))  # in turn
LONGEST_LIFE_SECONDS = 0.2  # once it copies
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 2,
}


def copy_under_kills(
    directory: Path, client_name: str, kills: int, seed: int, tick: Callable[[], None] = lambda: None
) -> None:
    """Raise AssertionError if the output differs from the input."""
    chance = random.Random(seed)
    inputs: list[bytes] = []
    directory.mkdir(parents=True, exist_ok=True)
    with BrokerProcess(directory / "data", SETTINGS) as broker:
        create_topic(broker.address, SOURCE.topic)
        create_topic(broker.address, TARGETS[0].topic, len(TARGETS))
        with Copier(client_name, broker.address, seed) as copier:
            for number in range(kills):
                feed(broker.address, inputs)
                copier.wait_for_more()
                time.sleep(chance.uniform(0, LONGEST_LIFE_SECONDS))  # the kill comes at a random moment
                doomed = KILLED[number % len(KILLED)]
                for kill in chance.sample(doomed, len(doomed)):
                    broker.kill() if kill == "broker" else copier.kill()
                if "broker" in doomed:
                    broker.start()
                copier.start()
                tick()
            feed(broker.address, inputs)
            expect_committed(broker.address, TARGETS[0].topic, inputs, len(TARGETS))
        everything = read_values(broker.address, TARGETS[0].topic, len(TARGETS), "read_uncommitted")
        assert any(value.startswith(ABORTED) for value in everything), "nothing was aborted: this run shows nothing"
        assert broker.errors() == []


def feed(address: str, inputs: list[bytes]) -> None:
    """Send some more inputs."""
    more = [b"%d" % number for number in range(len(inputs), len(inputs) + INPUTS_A_ROUND)]
    with ConfluentClient().producer(address, idempotent=True) as producer:
        producer.send(SOURCE.topic, [Message(value) for value in more])
    inputs += more
