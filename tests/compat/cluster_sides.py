"""Three of our brokers and three nodes of Apache Kafka, with the same requests for single brokers of both."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stratalog.lab.cluster import QUICK_FAILOVER, LabCluster
from stratalog.protocol.api_keys import ApiKey
from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from tests.compat.kafka_cluster import KafkaCluster
from tests.compat.test_admin_answers import Wire

SECONDS = 60.0
TIMEOUT_MS = 30_000
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "1",
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "log.retention.check.interval.ms": "31536000000",
}


class ClusterSide(ABC):
    """A running cluster of brokers 1, 2 and 3."""

    def __init__(self) -> None:
        self._ids: dict[str, Any] = {}

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str: ...

    @abstractmethod
    def address(self, broker: int) -> str: ...

    @abstractmethod
    def stop(self, broker: int) -> None: ...

    @abstractmethod
    def start(self, broker: int) -> None: ...

    @abstractmethod
    def kill_all(self) -> None: ...

    def ask(self, broker: int, key: ApiKey, version: int, /, **fields: Any) -> Any:
        """Send a request to one broker, and return its response."""
        wire = Wire(self.address(broker))
        try:
            return wire.ask(key, version, fields)
        finally:
            wire.close()

    def create(self, topic: str, *assignment: Sequence[int], **settings: str) -> None:
        """Create a topic with these replicas, and wait until their leaders serve them."""
        error = self.creation_error(topic, assignment=assignment, settings=settings)
        assert error == "none", error
        for index, replicas in enumerate(assignment):
            self.wait_until(lambda index=index, replicas=replicas: self.is_led(topic, index, replicas))  # type: ignore[misc]

    def creation_error(
        self,
        topic: str,
        *,
        factor: int = -1,
        partitions: int = -1,
        assignment: Sequence[Sequence[int]] = (),
        settings: dict[str, str] | None = None,
    ) -> str:
        new = {
            "name": topic,
            "num_partitions": partitions,
            "replication_factor": factor,
            "assignments": [
                {"partition_index": index, "broker_ids": list(replicas)} for index, replicas in enumerate(assignment)
            ],
            "configs": [{"name": name.replace("_", "."), "value": value} for name, value in (settings or {}).items()],
        }
        answer = self.ask(1, ApiKey.CREATE_TOPICS, 7, topics=[new], timeout=TIMEOUT_MS, validate_only=False)
        name: str = answer.topics[0].error_code.name
        return name

    def is_led(self, topic: str, index: int, replicas: Sequence[int]) -> bool:
        """Return whether the preferred leader serves the partition, and all replicas are in sync."""
        if self.list_offset(replicas[0], topic, index=index) != "none":
            return False
        return set(self.described(topic, index).isr_nodes) == set(replicas)

    def described(self, topic: str, index: int = 0, broker: int = 1) -> Any:
        """Return the partition as a broker describes it."""
        requested = {"topics": [{"name": topic}], "response_partition_limit": 100, "cursor": None}
        [answer] = self.ask(broker, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, **requested).topics
        self._ids[topic] = answer.topic_id
        return next(partition for partition in answer.partitions if partition.partition_index == index)

    def list_offset(self, broker: int, topic: str, *, index: int = 0, leader_epoch: int = -1) -> str:
        partition = {"partition_index": index, "timestamp": -1, "current_leader_epoch": leader_epoch}
        topics = [{"name": topic, "partitions": [partition]}]
        answer = self.ask(broker, ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        name: str = answer.topics[0].partitions[0].error_code.name
        return name

    def produce(self, broker: int, topic: str, *, acks: int = -1, version: int = 12) -> Any:
        """Produce a record to partition 0, and return the response of the partition."""
        batch = bytes(build_batch([Record(timestamp=1, value=b"value")]))
        data = {"topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]}
        answer = self.ask(broker, ApiKey.PRODUCE, version, transactional_id=None, acks=acks, timeout=TIMEOUT_MS, **data)
        return answer.responses[0].partition_responses[0], getattr(answer, "node_endpoints", ())

    def fetch(
        self,
        broker: int,
        topic: str,
        *,
        version: int = 17,
        leader_epoch: int = -1,
        offset: int = 0,
        last_epoch: int = -1,
        replica: int = -1,
    ) -> Any:
        """Fetch partition 0, and return the response of the partition."""
        if topic not in self._ids:
            self.described(topic)
        partition = {
            "partition": 0,
            "current_leader_epoch": leader_epoch,
            "fetch_offset": offset,
            "last_fetched_epoch": last_epoch,
            "log_start_offset": -1,
            "partition_max_bytes": 1_000_000,
        }
        requested = {"topic": topic, "topic_id": self._ids[topic], "partitions": [partition]}
        answer = self.ask(
            broker,
            ApiKey.FETCH,
            version,
            replica_id=replica,
            max_wait=0,
            min_bytes=1,
            max_bytes=10_000_000,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[requested],
            forgotten_topics_data=[],
            rack_id="",
        )
        return answer.responses[0].partitions[0], getattr(answer, "node_endpoints", ())

    def epoch_end(self, broker: int, topic: str, *, leader_epoch: int, current_epoch: int = -1) -> tuple[str, int, int]:
        query = {"partition": 0, "current_leader_epoch": current_epoch, "leader_epoch": leader_epoch}
        topics = [{"topic": topic, "partitions": [query]}]
        answer = self.ask(broker, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=topics)
        partition = answer.topics[0].partitions[0]
        return partition.error_code.name, partition.leader_epoch, partition.end_offset

    def elect(self, topic: str, kind: int = 0) -> str:
        requested = [{"topic": topic, "partitions": [0]}]
        answer = self.ask(
            1, ApiKey.ELECT_LEADERS, 2, election_type=kind, topic_partitions=requested, timeout=TIMEOUT_MS
        )
        name: str = answer.replica_election_results[0].partition_result[0].error_code.name
        return name

    def reassign(self, topic: str, replicas: list[int] | None) -> str:
        topics = [{"name": topic, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
        answer = self.ask(1, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=TIMEOUT_MS, topics=topics)
        if answer.error_code.name != "none":
            return f"all: {answer.error_code.name}"
        name: str = answer.responses[0].partitions[0].error_code.name
        return name

    def wait_until(self, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"{holds} did not come true within {SECONDS:g} s"
            time.sleep(0.05)


class OurCluster(ClusterSide):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.cluster = LabCluster(directory, settings={**SETTINGS, **QUICK_FAILOVER})

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    def address(self, broker: int) -> str:
        return self.cluster.broker(broker).bootstrap_servers

    def stop(self, broker: int) -> None:
        self.cluster.broker(broker).kill()

    def start(self, broker: int) -> None:
        self.cluster.broker(broker).start()

    def kill_all(self) -> None:
        self.cluster.kill()


class KafkaSide(ClusterSide):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        sessions = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
        self.cluster = KafkaCluster(directory, settings={**SETTINGS, **sessions})

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    def address(self, broker: int) -> str:
        return self.cluster.node(broker).bootstrap

    def stop(self, broker: int) -> None:
        self.cluster.node(broker).kill()

    def start(self, broker: int) -> None:
        self.cluster.node(broker).start()

    def kill_all(self) -> None:
        self.cluster.kill()
