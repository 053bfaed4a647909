"""A group whose members join and leave: no record is lost, and none is read again after it was committed."""

from __future__ import annotations

import random
import threading
from typing import Any

import confluent_kafka
import pytest

from tests.campaigns import slow
from tests.client.conftest import NewTopic
from tests.client.groups.members import MemberThread, wait_until, wait_until_shared

PARTITIONS = 10
MOST_MEMBERS = 5
REBALANCES = 30
WAYS: dict[str, dict[str, Any]] = {
    "range": {"partition_assignment_strategy": "range"},
    "roundrobin": {"partition_assignment_strategy": "roundrobin"},
    "sticky": {"partition_assignment_strategy": "sticky"},
    "cooperative-sticky": {"partition_assignment_strategy": "cooperative-sticky"},
    "KIP-848": {"group_protocol": "consumer"},
}


class Load:
    """Sends records in a thread of its own until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._topic = topic
        self._stopping = threading.Event()
        self.sent: set[tuple[int, int]] = set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.005):
            for _ in range(10):
                self._producer.produce(
                    self._topic, b"value", partition=number % PARTITIONS, on_delivery=self._delivered
                )
                number += 1
            self._producer.poll(0)

    def _delivered(self, error: object, message: Any) -> None:
        assert error is None
        self.sent.add((message.partition(), message.offset()))

    def stop(self) -> set[tuple[int, int]]:
        self._stopping.set()
        self._thread.join()
        self._producer.flush()
        return self.sent


@pytest.mark.any_broker
@pytest.mark.parametrize("way", [way if way in ("range", "KIP-848") else slow(way) for way in WAYS])
def test_nothing_is_lost_or_read_twice_while_members_come_and_go(
    way: str, bootstrap: str, name: str, new_topic: NewTopic
) -> None:
    topic = new_topic(PARTITIONS)
    load = Load(bootstrap, topic)
    choose = random.Random(way)
    members = [MemberThread(bootstrap, name, [topic], **WAYS[way])]
    gone: list[MemberThread] = []
    try:
        wait_until_shared(members, PARTITIONS)
        for _ in range(REBALANCES):
            if len(members) == 1 or (len(members) < MOST_MEMBERS and choose.random() < 0.55):
                members.append(MemberThread(bootstrap, name, [topic], **WAYS[way]))
            else:
                gone.append(members.pop(choose.randrange(len(members))))
                gone[-1].stop()
            wait_until_shared(members, PARTITIONS)
        sent = load.stop()

        def got() -> list[tuple[int, int]]:
            return [position for member in [*members, *gone] for position in member.got]

        wait_until(lambda: set(got()) >= sent, lambda: f"{len(sent - set(got()))} of {len(sent)} records were not read")
    finally:
        load.stop()
        for member in members:
            member.stop()
    assert sorted(got()) == sorted(sent)
