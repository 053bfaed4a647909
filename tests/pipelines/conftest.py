"""Topics with records, and the address of their broker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from stratalog.client import Admin, Producer
from stratalog.pipelines.cluster import ClusterAddress
from stratalog.testing import BrokerProcess

START_MS = 1_767_225_600_000 - 2 * 3_600_000  # two hours before 2026
HOUR_MS = 3_600_000

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"

FilledTopic = Callable[..., str]


@pytest.fixture
def cluster(stratalog_broker: BrokerProcess) -> ClusterAddress:
    return ClusterAddress(stratalog_broker.bootstrap_servers)


@pytest.fixture
def filled_topic(cluster: ClusterAddress, request: pytest.FixtureRequest) -> Iterator[FilledTopic]:
    """Creates a topic, or adds to the named one: records key-0, key-1, ..., one per hour, to the partitions in turn."""
    created: list[str] = []

    def fill(count: int, partitions: int = 1, name: str = "") -> str:
        topic = name or f"{request.node.name[:80].translate({91: '-', 93: None})}.{len(created)}"
        with Admin(cluster.bootstrap_servers) as admin:
            if topic not in admin.list_topics():
                admin.create_topic(topic, partitions, config={"retention.ms": -1})  # the records are old
                created.append(topic)
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(count):
                producer.send(
                    topic,
                    b"value-%d" % number,
                    key=b"key-%d" % (number % 10),
                    partition=number % partitions,
                    timestamp=START_MS + number * HOUR_MS,
                    headers=[("number", b"%d" % number)],
                )
        return topic

    yield fill
    with Admin(cluster.bootstrap_servers) as admin:
        admin.delete_topics(created).check()


@pytest.fixture(autouse=True)
def _push_down_is_restored() -> Iterator[None]:
    """Restores the setting after commands and snippets that change it in the shared session."""
    active = sys.modules["pyspark.sql"].SparkSession.getActiveSession() if "pyspark.sql" in sys.modules else None
    before = None if active is None else active.conf.get(PUSH_DOWN)
    yield
    if active is not None and before is not None:
        active.conf.set(PUSH_DOWN, before)
