"""Single requests to single brokers of a cluster, and what their answers must have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from stratalog.lab.cluster import LabCluster
from stratalog.protocol.api_keys import ApiKey
from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from tests.broker.bad_input.client import RawClient

SECONDS = 60.0
TIMEOUT_MS = 30_000


def ask(cluster: LabCluster, broker: int, key: ApiKey, version: int | None = None, /, **fields: Any) -> Any:
    """Send a request to one broker, and return its response."""
    client = RawClient(cluster.broker(broker).port, seconds=SECONDS)
    try:
        return client.request(key, fields, version)
    finally:
        client.close()


def wait_until(holds: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Return the first value that is true."""
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < deadline, f"{holds} did not come true within {seconds:g} s"
        time.sleep(0.05)
    return value


def create(cluster: LabCluster, topic: str, *assignment: Sequence[int], **settings: str) -> None:
    """Create a topic with these replicas, and wait until every broker knows its leaders."""
    new = {
        "name": topic,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [
            {"partition_index": index, "broker_ids": list(replicas)} for index, replicas in enumerate(assignment)
        ],
        "configs": [{"name": name.replace("_", "."), "value": value} for name, value in settings.items()],
    }
    answer = ask(cluster, 1, ApiKey.CREATE_TOPICS, topics=[new], timeout=TIMEOUT_MS)
    [created] = answer.topics
    assert created.error_code.name == "none", created
    for index, replicas in enumerate(assignment):
        wait_until(lambda index=index, replicas=replicas: is_led(cluster, topic, index, replicas))  # type: ignore[misc]


def is_led(cluster: LabCluster, topic: str, index: int, replicas: Sequence[int]) -> bool:
    """Return whether the preferred leader serves the partition, and all replicas are in sync."""
    offsets = list_offset(cluster, replicas[0], topic, -1, index)
    return offsets.error_code.name == "none" and set(describe(cluster, topic, index).isr_nodes) == set(replicas)


def describe(cluster: LabCluster, topic: str, index: int = 0, broker: int = 1) -> Any:
    """Return the partition as a broker describes it."""
    answer = ask(
        cluster, broker, ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": topic}], response_partition_limit=9
    )
    return answer.topics[0].partitions[index]


def topic_id(cluster: LabCluster, topic: str) -> Any:
    answer = ask(cluster, 1, ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": topic}], response_partition_limit=9)
    return answer.topics[0].topic_id


def list_offset(cluster: LabCluster, broker: int, topic: str, timestamp: int, index: int = 0) -> Any:
    partition = {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": -1}
    topics = [{"name": topic, "partitions": [partition]}]
    answer = ask(cluster, broker, ApiKey.LIST_OFFSETS, replica_id=-1, isolation_level=0, topics=topics)
    return answer.topics[0].partitions[0]


def produce(
    cluster: LabCluster, broker: int, topic: str, *values: bytes, acks: int = -1, version: int = 12, index: int = 0
) -> Any:
    """Return the response to records for one partition."""
    batch = bytes(build_batch([Record(timestamp=1, value=value) for value in values]))
    data = {"topic_data": [{"name": topic, "partition_data": [{"index": index, "records": batch}]}]}
    return ask(cluster, broker, ApiKey.PRODUCE, version, transactional_id=None, acks=acks, timeout=TIMEOUT_MS, **data)


def fetch(cluster: LabCluster, broker: int, topic: str, offset: int = 0, version: int = 18, **fields: Any) -> Any:
    """Return the response to a fetch of one partition. `fields` are those of the partition and of the request."""
    partition = {
        "partition": fields.pop("index", 0),
        "current_leader_epoch": fields.pop("leader_epoch", -1),
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1_000_000,
    }
    request = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 10_000_000,
        "session_epoch": -1,
        "topics": [{"topic": topic, "topic_id": topic_id(cluster, topic), "partitions": [partition]}],
        **fields,
    }
    return ask(cluster, broker, ApiKey.FETCH, version, **request)


def controller_of(cluster: LabCluster, of: int) -> int:
    """Return the node id of the controller as a broker knows it, -1 for none."""
    return int(ask(cluster, of, ApiKey.DESCRIBE_CLUSTER, endpoint_type=1).controller_id)
