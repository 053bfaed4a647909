"""Admin calls that prepare scenarios about other subjects."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.clients.interface import Place

SECONDS = 60.0


def admin_client(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": 0})


def create_topic(address: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    admin = admin_client(address)  # must live until its futures are done
    admin.create_topics([topic])[name].result(SECONDS)


def grow_topic(address: str, name: str, partitions: int) -> None:
    admin = admin_client(address)
    admin.create_partitions([NewPartitions(name, partitions)])[name].result(SECONDS)


def delete_topic(address: str, name: str) -> None:
    admin = admin_client(address)
    admin.delete_topics([name])[name].result(SECONDS)


def delete_records(address: str, place: Place, before: int) -> None:
    partition = TopicPartition(*place, before)
    admin = admin_client(address)
    admin.delete_records([partition])[partition].result(SECONDS)
