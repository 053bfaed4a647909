"""Both sides of the comparison of clusters: three of our brokers with ZooKeeper, and three nodes of Apache Kafka.

Both have the same settings where the settings have the same names. Clients are the same for both.
"""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import KafkaException, NewTopic
from tests.compat.fetch_kafka import KAFKA_VERSION
from tests.compat.kafka_cluster import KafkaCluster, KafkaNode

from bench.broker_kafka import JVM_OPTIONS
from bench.broker_kafka import SETTINGS as KAFKA_DEFAULTS
from bench.broker_processes import cpu_of
from stratalog.lab.broker_child import BrokerChild
from stratalog.lab.cluster import LabCluster

T = TypeVar("T")

BROKERS = (1, 2, 3)
WAIT_SECONDS = 300.0
POLL_SECONDS = 0.02
COMMON: Mapping[str, str] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "log.retention.check.interval.ms": "31536000000",
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",  # the measurements choose the leaders themselves
}


class PartitionView(NamedTuple):
    """A partition as the cluster describes it."""

    leader: int
    isr: int


class CpuSeconds(NamedTuple):
    """CPU time by broker, and that of ZooKeeper."""

    brokers: Mapping[int, float]
    coordinator: float

    @property
    def all_brokers(self) -> float:
        return sum(self.brokers.values())

    def __sub__(self, earlier: CpuSeconds) -> CpuSeconds:
        """Return what was used since. A broker that was started since counts from its start."""
        used = {node_id: seconds - earlier.brokers.get(node_id, 0.0) for node_id, seconds in self.brokers.items()}
        return CpuSeconds(used, self.coordinator - earlier.coordinator)


class Side(ABC):
    """A running cluster of three brokers."""

    name: str

    def __init__(self) -> None:
        self._admin: AdminClient | None = None

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str: ...

    @abstractmethod
    def address(self, node_id: int) -> str: ...

    @abstractmethod
    def pid(self, node_id: int) -> int: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def start_broker(self, node_id: int) -> None: ...

    @abstractmethod
    def kill_broker(self, node_id: int) -> None: ...

    @abstractmethod
    def restart(self) -> None:
        """Stop all brokers cleanly at the same time, and start them. The coordinator keeps running."""

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def is_running(self, node_id: int) -> bool: ...

    def coordinator_cpu(self) -> float:
        return 0.0

    def cpu(self) -> CpuSeconds:
        running = [node_id for node_id in BROKERS if self.is_running(node_id)]
        return CpuSeconds({node_id: sum(cpu_of(self.pid(node_id))) for node_id in running}, self.coordinator_cpu())

    # Topics

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        return self._admin

    def create_topics(
        self, names: list[str], partitions: int, *, replicas: int = 3, assignment: list[list[int]] | None = None
    ) -> None:
        """Create the topics, and return when each partition has its leader and its replicas in sync."""
        if assignment is None:
            new = [NewTopic(name, num_partitions=partitions, replication_factor=replicas) for name in names]
        else:
            replicas = len(assignment[0])
            new = [NewTopic(name, num_partitions=partitions, replica_assignment=assignment) for name in names]
        for future in self.admin.create_topics(new, operation_timeout=60, request_timeout=WAIT_SECONDS).values():
            future.result(WAIT_SECONDS)
        self.await_partitions(
            names,
            lambda views: len(views) == partitions * len(names) and all(each.isr == replicas for each in views),
        )

    def delete_topics(self, names: list[str]) -> None:
        for future in self.admin.delete_topics(names, operation_timeout=60, request_timeout=WAIT_SECONDS).values():
            future.result(WAIT_SECONDS)

    def partitions(self, names: list[str]) -> list[PartitionView]:
        """Return the partitions of topics, in order."""
        known = self.admin.list_topics(timeout=30).topics
        return [
            PartitionView(partition.leader, len(partition.isrs))
            for name in names
            if name in known
            for _, partition in sorted(known[name].partitions.items())
        ]

    def await_partitions(self, names: list[str], condition: Callable[[list[PartitionView]], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                partitions = self.partitions(names)
            except KafkaException:  # the broker that was asked is down
                partitions = []
            if partitions and all(each.leader >= 0 for each in partitions) and condition(partitions):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: the partitions did not get ready: {partitions[:20]} ...")
            time.sleep(POLL_SECONDS)

    def await_in_sync(self, names: list[str], replicas: int = 3) -> None:
        self.await_partitions(names, lambda views: all(each.isr == replicas for each in views))


class OurSide(Side):
    name = "Stratalog"

    def __init__(self, directory: Path, settings: Mapping[str, str], session_ms: int) -> None:
        super().__init__()
        own = {**COMMON, "zookeeper.session.timeout.ms": session_ms, **settings}
        self.cluster = LabCluster(directory, len(BROKERS), own)

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    def address(self, node_id: int) -> str:
        return self.cluster.broker(node_id).bootstrap_servers

    def pid(self, node_id: int) -> int:
        return self.cluster.broker(node_id).pid

    def is_running(self, node_id: int) -> bool:
        return self.cluster.broker(node_id).is_running

    def coordinator_cpu(self) -> float:
        return _cpu_of_child(self.cluster.zookeeper)

    def start(self) -> None:
        self.cluster.start()

    def start_broker(self, node_id: int) -> None:
        self.cluster.broker(node_id).start()

    def kill_broker(self, node_id: int) -> None:
        self.cluster.broker(node_id).kill()

    def restart(self) -> None:
        _side_by_side(lambda broker: broker.stop(signal.SIGTERM, WAIT_SECONDS), self.cluster.brokers.values())
        self.cluster.start_brokers(BROKERS)

    def kill(self) -> None:
        self.cluster.kill()


class KafkaSide(Side):
    name = f"Kafka {KAFKA_VERSION}"

    def __init__(self, directory: Path, settings: Mapping[str, str], session_ms: int) -> None:
        super().__init__()
        # Kafka's defaults are 9000 and 2000.
        sessions = {
            "broker.session.timeout.ms": str(session_ms),
            "broker.heartbeat.interval.ms": str(session_ms * 2 // 9),
        }
        self.cluster = KafkaCluster(
            directory, len(BROKERS), {**KAFKA_DEFAULTS, **COMMON, **sessions, **settings}, JVM_OPTIONS
        )

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    def address(self, node_id: int) -> str:
        return self.cluster.node(node_id).bootstrap

    def pid(self, node_id: int) -> int:
        return self.cluster.node(node_id).pid

    def is_running(self, node_id: int) -> bool:
        return self.cluster.node(node_id).is_running

    def start(self) -> None:
        self.cluster.start()

    def start_broker(self, node_id: int) -> None:
        self.cluster.node(node_id).start()

    def kill_broker(self, node_id: int) -> None:
        self.cluster.node(node_id).kill()

    def restart(self) -> None:
        _side_by_side(KafkaNode.stop, self.cluster.nodes.values())
        self.cluster.start_nodes(BROKERS)

    def kill(self) -> None:
        self.cluster.kill()


def _side_by_side(call: Callable[[T], object], items: Iterable[T]) -> None:
    with ThreadPoolExecutor(len(BROKERS)) as threads:
        list(threads.map(call, items))


def _cpu_of_child(child: BrokerChild) -> float:
    assert child.process is not None
    return sum(cpu_of(child.process.pid))


SideType = type[OurSide] | type[KafkaSide]
SIDES: tuple[SideType, SideType] = (OurSide, KafkaSide)


@contextmanager
def running(
    side: SideType, directory: Path, settings: Mapping[str, str] | None = None, session_ms: int = 9_000
) -> Iterator[Side]:
    """Run a new cluster in a directory."""
    cluster = side(directory / side.__name__, settings or {}, session_ms)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
