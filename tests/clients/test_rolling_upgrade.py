"""Members of a group change from the classic protocol to KIP-848, and back, one after the other, under load.

Each member commits its processed records when partitions are revoked, as applications do. So every record is read
exactly once if no process crashes, and at least once after kill -9 of the broker.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.broker.process import BrokerProcess
from tests.campaigns import slow
from tests.clients.admin import create_topic
from tests.clients.confluent import QUIET, SECONDS
from tests.clients.conftest import SETTINGS
from tests.clients.interface import HEARTBEAT_MS, SESSION_MS, Place
from tests.clients.produce_load import ProduceLoad
from tests.clients.waiting import STEP_SECONDS, wait_until

PARTITIONS = 4
MEMBERS = 2


class SteadyLoad(ProduceLoad):
    """Send no faster than Python consumers read, so that the test waits for assignments and not for a backlog."""

    def _run(self) -> None:
        while not self._stopping.wait(0.002):
            for partition in range(self.partitions):
                value = b"%d:%d" % (partition, self.sent[partition])
                self._producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
                self.sent[partition] += 1
            self._producer.poll(0)
        self._producer.flush(SECONDS)
        self._producer.close()


class Application:
    """The members of a group, and how often each record was processed."""

    def __init__(self, address: str, topic: str, assignor: str, *, may_fail_to_commit: bool = False) -> None:
        self.address = address
        self.may_fail_to_commit = may_fail_to_commit
        self.topic = topic
        self.assignor = assignor
        self.processed: Counter[tuple[int, int]] = Counter()
        self.members: list[Member] = []
        self.lost = 0  # partitions that members lost without a revocation

    def start(self, protocol: str) -> None:
        self.members.append(Member(self, protocol))

    def replace_oldest(self, protocol: str, *, new_one_first: bool) -> None:
        """Replace members one by one, as a rolling restart does, in either direction."""
        if new_one_first:
            self.start(protocol)
            self.wait_until_shared()
            self._end_oldest()
        else:
            self._end_oldest()
            self.start(protocol)
        self.wait_until_shared()

    def _end_oldest(self) -> None:
        oldest = self.members.pop(0)
        oldest.close()
        self.lost += oldest.lost

    def wait_until_shared(self) -> None:
        everything = {Place(self.topic, number) for number in range(PARTITIONS)}

        def is_shared() -> bool:
            self.check()
            owned = [member.owned for member in self.members]
            return sum(map(len, owned)) == PARTITIONS and set().union(*owned) == everything and all(owned)

        wait_until(is_shared, f"sharing of {self.topic}")

    def wait_until_processed(self, count: int) -> None:
        def is_done() -> bool:
            self.check()
            return len(self.processed) >= count

        wait_until(is_done, f"processing of {count} records; {len(self.processed)} are")

    def check(self) -> None:
        for member in self.members:
            if member.failure is not None:
                raise member.failure

    def close(self) -> None:
        while self.members:
            self._end_oldest()


class Member:
    def __init__(self, application: Application, protocol: str) -> None:
        self.owned: set[Place] = set()
        self.lost = 0
        self.failure: BaseException | None = None
        self._application = application
        self._stopping = threading.Event()
        settings: dict[str, Any] = {
            "bootstrap.servers": application.address,
            "group.id": application.topic,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            **QUIET,
        }
        if protocol == "classic":
            settings["partition.assignment.strategy"] = application.assignor
            settings |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        self._consumer = confluent_kafka.Consumer(settings)
        self._consumer.subscribe([application.topic], on_revoke=self._on_revoke, on_lost=self._on_lost)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                message = self._consumer.poll(STEP_SECONDS)
                self.owned = {Place(one.topic, one.partition) for one in self._consumer.assignment()}
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    raise KafkaException(error)
                self._application.processed[message.partition() or 0, message.offset() or 0] += 1
        except BaseException as error:
            self.failure = error
        finally:
            self._consumer.close()
            self.owned = set()

    def _on_revoke(self, consumer: confluent_kafka.Consumer, _: list[TopicPartition]) -> None:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            had_nothing = error.args[0].code() == KafkaError._NO_OFFSET
            if not had_nothing and not self._application.may_fail_to_commit:
                self.failure = error

    def _on_lost(self, _: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
        self.lost += len(partitions)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure


def ends(address: str, topic: str) -> dict[int, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "ends", **QUIET})
    found = {}
    for number in range(PARTITIONS):
        watermarks = consumer.get_watermark_offsets(TopicPartition(topic, number), SECONDS)
        assert watermarks is not None
        found[number] = watermarks[1]
    consumer.close()
    return found


def roll(
    application: Application,
    load: ProduceLoad,
    between: Callable[[], None] = lambda: None,
    *,
    new_one_first: bool = False,
) -> None:
    """Upgrade from the classic protocol to KIP-848, and downgrade again."""
    for _ in range(MEMBERS):
        application.start("classic")
    application.wait_until_shared()
    for protocol in ("consumer", "classic"):
        for _ in range(MEMBERS):
            load.wait_for_more(1)
            application.replace_oldest(protocol, new_one_first=new_one_first)
            between()
    load.finish()


def expected(address: str, topic: str) -> set[tuple[int, int]]:
    return {(number, offset) for number, end in ends(address, topic).items() for offset in range(end)}


@pytest.mark.parametrize("new_one_first", [False, True], ids=["old one goes first", "new one comes first"])
@pytest.mark.parametrize("assignor", ["range", slow("cooperative-sticky")])
def test_a_rolling_upgrade_and_downgrade_loses_and_duplicates_no_record(
    assignor: str, new_one_first: bool, broker: BrokerProcess, name: str
) -> None:
    create_topic(broker.address, name, PARTITIONS)
    application = Application(broker.address, name, assignor)
    try:
        with SteadyLoad(broker.address, name, PARTITIONS) as load:
            roll(application, load, new_one_first=new_one_first)
        wanted = expected(broker.address, name)
        application.wait_until_processed(len(wanted))
    finally:
        application.close()
    assert application.processed == Counter(wanted)
    assert application.lost == 0
    log = broker.logs
    assert f"group {name}: upgraded to a consumer group" in log
    assert f"group {name}: downgraded to a classic group" in log


@pytest.mark.slow
def test_kills_during_a_rolling_upgrade_and_downgrade_lose_no_record(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker:
        create_topic(broker.address, "rolled", PARTITIONS)
        application = Application(broker.address, "rolled", "range", may_fail_to_commit=True)

        def kill() -> None:
            broker.kill()
            broker.start()

        try:
            with SteadyLoad(broker.address, "rolled", PARTITIONS) as load:
                roll(application, load, kill)
            wanted = expected(broker.address, "rolled")
            application.wait_until_processed(len(wanted))
        finally:
            application.close()
        assert set(application.processed) == wanted
        assert broker.errors() == []
