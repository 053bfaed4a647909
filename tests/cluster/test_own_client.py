"""Stratalog's own clients with default settings, while the leaders of a cluster die, move and restart."""

from __future__ import annotations

import time

import pytest

from stratalog.client import Admin, Consumer, Producer, TopicPartition
from stratalog.client.admin import NewTopic
from stratalog.lab.cluster import LabCluster
from tests.cluster.own_traffic import OwnTraffic
from tests.cluster.traffic import create_topic, leaders, wait_for_isr

PARTITIONS = 3
LONGER_THAN_THE_SESSION = 5.0  # seconds


def test_own_clients_lose_a_record_or_see_an_error_when_leaders_die_and_move(cluster: LabCluster) -> None:
    create_topic(cluster, "orders", PARTITIONS)
    with OwnTraffic(cluster, "orders", PARTITIONS) as traffic:
        traffic.wait_for_more()
        victim = leaders(cluster, "orders")[0]
        cluster.broker(victim).kill()
        traffic.wait_for_more()
        assert victim not in leaders(cluster, "orders").values()
        cluster.broker(victim).start()
        wait_for_isr(cluster, "orders", 3)
        for broker in cluster.brokers.values():
            broker.stop()
            traffic.wait_for_more()
            broker.start()
            wait_for_isr(cluster, "orders", 3)
        traffic.wait_for_more()
    traffic.check()


def test_own_clients_fail_when_too_few_replicas_are_left_or_a_leader_is_paused(cluster: LabCluster) -> None:
    create_topic(cluster, "orders", PARTITIONS)
    with OwnTraffic(cluster, "orders", PARTITIONS) as traffic:
        traffic.wait_for_more()
        leader = leaders(cluster, "orders")[0]
        others = [node_id for node_id in cluster.brokers if node_id != leader]
        for node_id in others:
            cluster.broker(node_id).kill()
        time.sleep(LONGER_THAN_THE_SESSION)  # one replica is left, and no write can be acknowledged
        cluster.start_brokers(others)
        traffic.wait_for_more()
        wait_for_isr(cluster, "orders", 3)
        paused = leaders(cluster, "orders")[0]
        cluster.broker(paused).pause()
        time.sleep(LONGER_THAN_THE_SESSION)
        cluster.broker(paused).resume()
        traffic.wait_for_more()
        wait_for_isr(cluster, "orders", 3)
    traffic.check()


@pytest.mark.slow
def test_consumer_reads_on_after_records_that_an_unclean_election_has_lost(cluster: LabCluster) -> None:
    """The new leader has other records where the consumer has read already: it goes back to the last common offset."""
    settings = {"min.insync.replicas": 1, "unclean.leader.election.enable": True}
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("orders", config=settings, assignments=[[1, 2]])]).check()
        wait_for_isr(cluster, "orders", 2)
        with (
            Producer(cluster.bootstrap_servers) as producer,
            Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([TopicPartition("orders", 0)])
            send(producer, b"kept", 50)
            cluster.broker(2).kill()
            wait_for_isr(cluster, "orders", 1)
            send(producer, b"lost", 50)
            assert read(consumer, 100) == [b"kept"] * 50 + [b"lost"] * 50
            cluster.broker(1).kill()
            cluster.broker(2).start()
            send(producer, b"new", 10)
            assert read(consumer, 10) == [b"new"] * 10
            assert consumer.position(TopicPartition("orders", 0)) == 60


def send(producer: Producer, value: bytes, count: int) -> None:
    for delivery in [producer.send("orders", value, partition=0) for _ in range(count)]:
        delivery.result()


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    deadline = time.monotonic() + 60
    while len(values) < count:
        assert time.monotonic() < deadline, f"only {len(values)} records arrived"
        values += [record.value for records in consumer.poll(timeout=1).values() for record in records]
    return values
