"""A producer that never stops, and the history of its acknowledgements: the measure of what a cluster may not lose."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stratalog.lab.cluster import LabCluster
from stratalog.protocol.api_keys import ApiKey
from tests.broker.bad_input.client import ClosedByBrokerError, RawClient

_SECONDS = 60.0
_ASK_SECONDS = 5.0

HANGING = {"socket.timeout.ms": 4000}
"""Settings of a client that soon gives up on a broker that does not answer."""


class Acknowledged(NamedTuple):
    """A record that the cluster has acknowledged."""

    partition: int
    offset: int
    value: bytes


class Traffic:
    """Sends numbered records with acks=all to all partitions of a topic, in a thread, while the `with` block runs."""

    def __init__(self, cluster: LabCluster, topic: str, partitions: int, **settings: Any) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: list[Acknowledged] = []
        self.errors: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": 120_000,
                "topic.metadata.refresh.interval.ms": 5_000,
                "log_level": 0,
                "error_cb": lambda _: None,
                **settings,
            }
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send, name="traffic")
        self._progress = threading.Condition()

    def _send(self) -> None:
        number = 0
        while not self._stopping.is_set():
            for partition in range(self.partitions):
                value = b"%d" % number
                self._produce(value, partition)
            number += 1
            self._producer.poll(0.002)

    def _produce(self, value: bytes, partition: int) -> None:
        while True:
            try:
                self._producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
            except BufferError:  # nothing was acknowledged for a long time
                self._producer.poll(0.1)
            else:
                return

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        with self._progress:
            if error is not None:
                self.errors.append(str(error))
            else:
                value, partition, offset = message.value(), message.partition(), message.offset()
                assert value is not None and partition is not None and offset is not None
                self.acknowledged.append(Acknowledged(partition, offset, value))
            self._progress.notify_all()

    def wait_for_more(self, count: int = 200, seconds: float = _SECONDS) -> None:
        """Wait until every partition has acknowledged `count` records more than now."""
        with self._progress:
            start = len(self.acknowledged)
            deadline = time.monotonic() + seconds
            while True:
                new: dict[int, int] = defaultdict(int)
                for each in self.acknowledged[start:]:
                    new[each.partition] += 1
                if len(new) == self.partitions and min(new.values()) >= count:
                    return
                if not self._progress.wait(deadline - time.monotonic()):
                    raise AssertionError(f"only {dict(new)} records were acknowledged within {seconds:g} s")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        left = self._producer.flush(_SECONDS if kind is None else 0)
        assert kind is not None or left == 0, f"{left} records got no answer"

    def check(self, *, ignoring: bytes | None = None) -> None:
        """Read everything, and compare it with the history: nothing is lost, doubled, or out of order. Records with the
        value `ignoring` may be there: others than this client wrote them."""
        read = read_all(self.cluster.bootstrap_servers, self.topic, self.partitions)
        for partition in range(self.partitions):
            records = read[partition]
            numbers = [int(value) for value in records.values() if value != ignoring]
            assert numbers == sorted(numbers), f"partition {partition} is out of order"
            assert len(set(numbers)) == len(numbers), f"partition {partition} has a record twice"
            for each in self.acknowledged:
                if each.partition == partition:
                    assert records.get(each.offset) == each.value, f"{each} was acknowledged, and is not there"


def read_all(bootstrap_servers: str, topic: str, partitions: int) -> dict[int, dict[int, bytes]]:
    """Return the values of all records by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            "error_cb": lambda _: None,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        read: dict[int, dict[int, bytes]] = {partition: {} for partition in range(partitions)}
        open_partitions = set(read)
        deadline = time.monotonic() + _SECONDS
        while open_partitions:
            assert time.monotonic() < deadline, f"partitions {open_partitions} could not be read to their ends"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error, partition = message.error(), message.partition()
            assert partition is not None
            if error is None:
                value, offset = message.value(), message.offset()
                assert value is not None and offset is not None
                read[partition][offset] = value
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(partition)
        return read
    finally:
        consumer.close()


def create_topic(
    cluster: LabCluster,
    topic: str,
    partitions: int = 1,
    replicas: int = 3,
    *,
    assignment: list[list[int]] | None = None,
    in_sync: int | None = None,
    **settings: str,
) -> None:
    """Create a topic, and wait until all of its partitions have leaders, and full ISRs or `in_sync` replicas in
    them. With an assignment, `replicas` is not used."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    placed: dict[str, Any] = {"replication_factor": replicas} if assignment is None else {}
    if assignment is not None:
        placed["replica_assignment"] = assignment
    new = NewTopic(topic, num_partitions=partitions, config=dotted, **placed)
    admin.create_topics([new], request_timeout=30)[topic].result(30)
    wait_for_isr(cluster, topic, in_sync or replicas)


def delete_topic(cluster: LabCluster, topic: str) -> None:
    """Delete a topic, and wait until every broker that runs has forgotten it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.delete_topics([topic], request_timeout=30)[topic].result(30)
    for node_id in cluster.brokers:
        wait_until(
            lambda: not describe(cluster, topic, [node_id]),  # noqa: B023 - called in this round only
            lambda: f"broker {node_id} still knows {topic}",  # noqa: B023
        )


def wait_until(condition: Callable[[], bool], failure: Callable[[], str], seconds: float = _SECONDS) -> None:
    """Wait until the condition holds. `failure` describes the state if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds:g} s: {failure()}"
        time.sleep(0.05)


class SeenPartition(NamedTuple):
    """A partition as a broker describes it."""

    leader: int  # or -1
    isr: list[int]
    leader_epoch: int


def leaders(cluster: LabCluster, topic: str, of: Collection[int] | None = None) -> dict[int, int]:
    """Return the leader of each partition, or -1."""
    return {partition: seen.leader for partition, seen in describe(cluster, topic, of).items()}


def describe(cluster: LabCluster, topic: str, of: Collection[int] | None = None) -> dict[int, SeenPartition]:
    """Return the partitions of a topic as one of the brokers `of` describes them, by default any that runs. The broker
    is asked at its own port, so it answers though its links are cut. Return nothing if the topic is unknown."""
    for node_id, broker in cluster.brokers.items():
        if not broker.is_running or broker.is_paused or (of is not None and node_id not in of):
            continue
        try:
            with RawClient(broker.port, seconds=_ASK_SECONDS) as client:
                request = {"topics": [{"name": topic}], "response_partition_limit": 2000}
                (described,) = client.request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request).topics
        except (OSError, ClosedByBrokerError):
            continue
        return {
            each.partition_index: SeenPartition(each.leader_id, sorted(each.isr_nodes), each.leader_epoch)
            for each in described.partitions
        }
    return {}


def wait_for_isr(
    cluster: LabCluster,
    topic: str,
    size: int,
    seconds: float = _SECONDS,
    *,
    of: Collection[int] | None = None,
    at_least: bool = False,
) -> None:
    """Wait until every partition of the topic has a leader and so many replicas in sync, or more with `at_least`."""
    state: dict[int, SeenPartition] = {}

    def is_complete() -> bool:
        nonlocal state
        state = describe(cluster, topic, of)
        sizes = [len(seen.isr) for seen in state.values() if seen.leader >= 0]
        return bool(state) and len(sizes) == len(state) and (min(sizes) >= size if at_least else set(sizes) == {size})

    wait_until(is_complete, lambda: f"{size} replicas should be in sync: {state}", seconds)


def wait_for_equal_replicas(cluster: LabCluster, topic: str, partitions: int, seconds: float = _SECONDS) -> None:
    """Wait until all brokers have the same bytes in their replicas of the topic, after the last write."""

    def sizes(partition: int) -> list[int]:
        return [len(replica(broker.data_dir, topic, partition)) for broker in cluster.brokers.values()]

    def are_equal(partition: int) -> bool:
        first, *others = (replica(broker.data_dir, topic, partition) for broker in cluster.brokers.values())
        return bool(first) and all(other == first for other in others)

    for partition in range(partitions):
        wait_until(
            lambda: are_equal(partition),  # noqa: B023 - called in this round only
            lambda: f"the replicas of {topic}-{partition} differ: {sizes(partition)} bytes",  # noqa: B023
            seconds,
        )


def check(cluster: LabCluster, traffic: Traffic) -> None:
    """Check that no record failed, was lost or doubled, and that the replicas become equal."""
    assert traffic.errors == []
    traffic.check()
    wait_for_equal_replicas(cluster, traffic.topic, traffic.partitions)


def wait_for_successors(cluster: LabCluster, topic: str, victim: int) -> None:
    """Wait until the other brokers know leaders of all partitions that are not `victim`."""
    others = [node_id for node_id in cluster.brokers if node_id != victim]
    for observer in others:
        wait_until(
            lambda: not {-1, victim} & set(leaders(cluster, topic, [observer]).values() or [-1]),  # noqa: B023
            lambda: f"broker {observer} sees {describe(cluster, topic, [observer])}, without broker {victim}",  # noqa: B023
        )


def replica(data_dir: Path, topic: str, partition: int) -> bytes:
    """Return the bytes of all segments of a replica."""
    return b"".join(segments(data_dir, topic, partition).values())


def segments(data_dir: Path, topic: str, partition: int) -> dict[str, bytes]:
    """Return the contents of a replica's segments by file name."""
    files = sorted((data_dir / f"{topic}-{partition}").glob("*.log"))
    return {file.name: file.read_bytes() for file in files}
