"""Clients that claim to be replicas, rubbish in ZooKeeper, and brokers that belong elsewhere: refused, and nothing is
lost."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from stratalog.lab.cluster import LabCluster
from stratalog.lab.serve_process import BrokerStartError, ServeProcess
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.fetch import WantedPartition, encode_fetch_request
from tests.broker.bad_input.client import RawClient
from tests.cluster.conftest import SETTINGS
from tests.cluster.traffic import (
    Traffic,
    check,
    create_topic,
    describe,
    leaders,
    wait_for_isr,
    wait_for_successors,
    wait_until,
)

pytestmark = pytest.mark.slow

PARTITIONS = 2
FAR = 10**15  # an offset that no log reaches
_REPLICA_ID = struct.Struct(">i")  # the first field of Fetch below version 15
REFUSES = "broker 3 can't register in its cluster again: znode /cluster/id"
REGISTERED = "is registered with broker epoch"
RUBBISH = b"\x00\xff rubbish"


@pytest.fixture
def kazoo(linked_cluster: LabCluster) -> Iterator[KazooClient]:
    client = KazooClient(linked_cluster.zookeeper.address)
    client.start(timeout=30)
    yield client
    client.stop()
    client.close()


def fetch_error(
    client: RawClient, topic: bytes, node_id: int, broker_epoch: int | None, leader_epoch: int, offset: int
) -> ErrorCode:
    """Fetch partition 0 as a replica, and return its error. Without a broker epoch, use a version that has none."""
    version = 17 if broker_epoch is not None else 14
    body = encode_fetch_request(
        version,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        read_committed=False,
        session_id=0,
        session_epoch=-1,
        topics={topic: [(0, WantedPartition(offset, leader_epoch, 1 << 20, -1, 0))]},
        forgotten={},
        replica=None if broker_epoch is None else (node_id, broker_epoch),
    )
    if broker_epoch is None:
        _REPLICA_ID.pack_into(body, 0, node_id)
    response = client.request_with(ApiKey.FETCH, version, bytes(body))
    assert response.error_code == ErrorCode.none
    (topic_response,) = response.responses
    (partition,) = topic_response.partitions
    return ErrorCode(partition.error_code)


def test_client_that_claims_to_be_a_replica_is_believed(linked_cluster: LabCluster, kazoo: KazooClient) -> None:
    cluster = linked_cluster
    create_topic(cluster, "claimed", PARTITIONS)
    topic_id = topic_id_of(cluster, "claimed")
    first = cluster.broker(leaders(cluster, "claimed")[0])
    first.stop()
    first.start()
    wait_for_isr(cluster, "claimed", 3)
    with Traffic(cluster, "claimed", PARTITIONS) as traffic:
        traffic.wait_for_more()
        seen = describe(cluster, "claimed")[0]
        leader, follower = seen.leader, next(node for node in seen.isr if node != seen.leader)
        registered = kazoo.get(f"/brokers/ids/{follower}")[1].czxid
        with RawClient(cluster.broker(leader).port) as client:
            for node_id in (follower, leader, 99):
                for broker_epoch in (None, -1, 0, registered - 1, registered + 1, 2**62):
                    error = fetch_error(client, topic_id, node_id, broker_epoch, seen.leader_epoch, 0)
                    assert error == ErrorCode.unknown_leader_epoch, (node_id, broker_epoch)
            for broker_epoch in (None, registered + 1):
                error = fetch_error(client, topic_id, follower, broker_epoch, seen.leader_epoch, FAR)
                assert error in (ErrorCode.offset_out_of_range, ErrorCode.unknown_leader_epoch)
            assert (
                fetch_error(client, topic_id, follower, registered, seen.leader_epoch - 1, 0)
                == ErrorCode.fenced_leader_epoch
            )
            assert (
                fetch_error(client, topic_id, follower, registered, seen.leader_epoch + 1, 0)
                == ErrorCode.unknown_leader_epoch
            )
            assert (
                fetch_error(client, uuid.uuid4().bytes, follower, registered, seen.leader_epoch, 0)
                == ErrorCode.unknown_topic_id
            )
        traffic.wait_for_more()
        assert describe(cluster, "claimed")[0] == seen, "the real followers still follow"
        warnings = [line for line in cluster.broker(leader).logs.splitlines() if "claims to be replica 99" in line]
        assert len(warnings) == 1
    check(cluster, traffic)


def test_rubbish_in_zookeeper_loses_nothing(linked_cluster: LabCluster, kazoo: KazooClient) -> None:
    cluster = linked_cluster
    create_topic(cluster, "buried", PARTITIONS)
    topic_id = uuid.UUID(bytes=topic_id_of(cluster, "buried"))
    states = [f"/partitions/{topic_id}/{partition}" for partition in range(PARTITIONS)]
    paths = ["/controller", "/controller_epoch", "/topics/buried", *states, "/producer_ids", "/cluster/id"]
    strange = ["/changes/rubbish", "/brokers/ids/rubbish", "/brokers/ids/77", "/topics/no topic", "/config/brokers/x"]
    strange += ["/partitions/rubbish", f"/partitions/{topic_id}/rubbish", f"/partitions/{topic_id}/12345"]
    with Traffic(cluster, "buried", PARTITIONS) as traffic:
        traffic.wait_for_more()
        contents = {path: kazoo.get(path)[0] for path in paths}
        for content in (RUBBISH, b'{"version":2}'):
            for path in paths:
                kazoo.set(path, content)
            for path in strange:
                kazoo.set(path, content) if kazoo.exists(path) else kazoo.create(path, content)
            for entry in (content, b"", b"{}", b"[" * 100_000, b'{"version":1,"changes":[{"kind":"x"}]}'):
                kazoo.create("/changes/c-", entry, sequence=True)
            traffic.wait_for_more()
        for path in strange:
            kazoo.delete(path)
        for path, content in contents.items():
            kazoo.set(path, content)
        for node_id in cluster.brokers:  # each leads something, so new leaders are elected from what was restored
            cluster.broker(node_id).kill()
            wait_for_successors(cluster, "buried", node_id)
            traffic.wait_for_more()
            cluster.broker(node_id).start()
            wait_for_isr(cluster, "buried", 3)
        traffic.wait_for_more()
    check(cluster, traffic)
    for node_id, broker in cluster.brokers.items():
        once = f"znode {states[0]}: the content is not JSON"
        assert broker.logs.count(once) == 1, f"broker {node_id} does not report it once"
        assert "unexpected error" not in broker.logs
        assert "Traceback" not in broker.logs


def test_isr_can_change_again_after_rubbish_in_its_znode(linked_cluster: LabCluster, kazoo: KazooClient) -> None:
    cluster = linked_cluster
    create_topic(cluster, "stuck", PARTITIONS, assignment=[[1, 2, 3], [2, 1, 3]])
    topic_id = uuid.UUID(bytes=topic_id_of(cluster, "stuck"))
    states = [f"/partitions/{topic_id}/{partition}" for partition in range(PARTITIONS)]
    with Traffic(cluster, "stuck", PARTITIONS) as traffic:
        traffic.wait_for_more()
        contents = {path: kazoo.get(path)[0] for path in states}
        for path in states:
            kazoo.set(path, RUBBISH)
        cluster.broker(3).kill()
        for partition, leader in enumerate((1, 2)):
            wait_until(
                lambda: f"(stuck-{partition}): replicas [3] lag" in cluster.broker(leader).logs,  # noqa: B023
                lambda: f"broker {leader} should notice that broker 3 is away",  # noqa: B023
            )
        for path, content in contents.items():
            kazoo.set(path, content)
        traffic.wait_for_more()
        cluster.broker(3).start()
        wait_for_isr(cluster, "stuck", 3)
    check(cluster, traffic)


def test_broker_whose_registration_is_rubbish_registers_again(linked_cluster: LabCluster, kazoo: KazooClient) -> None:
    cluster = linked_cluster
    create_topic(cluster, "unregistered", PARTITIONS)
    with Traffic(cluster, "unregistered", PARTITIONS) as traffic:
        traffic.wait_for_more()
        for path in ("/brokers/ids/1", "/brokers/ids/2", "/brokers/registrations/2", "/brokers/registrations/3"):
            owner = cluster.broker(int(path[-1]))
            registrations = owner.logs.count(REGISTERED)
            kazoo.set(path, RUBBISH)
            kazoo.create("/brokers/ids/rubbish")  # brokers read the registrations when one comes or goes
            kazoo.delete("/brokers/ids/rubbish")
            wait_until(
                lambda: owner.logs.count(REGISTERED) > registrations,  # noqa: B023
                lambda: f"the owner of {path} should register again",  # noqa: B023
            )
            traffic.wait_for_more()
            wait_for_isr(cluster, "unregistered", 3)
        cluster_id = kazoo.get("/cluster/id")[0]
        kazoo.set("/cluster/id", RUBBISH)  # no broker registers without it, but those that are registered go on
        kazoo.delete("/brokers/ids/3")
        wait_until(lambda: REFUSES in cluster.broker(3).logs, lambda: "broker 3 should not be able to register")
        wait_for_successors(cluster, "unregistered", 3)
        traffic.wait_for_more()
        kazoo.set("/cluster/id", cluster_id)
        wait_for_isr(cluster, "unregistered", 3)
        traffic.wait_for_more()
        assert cluster.broker(3).logs.count(REFUSES) == 1
    check(cluster, traffic)


def test_brokers_that_do_not_belong_to_the_cluster_join_it(
    linked_cluster: LabCluster, kazoo: KazooClient, tmp_path: Path
) -> None:
    cluster = linked_cluster
    create_topic(cluster, "ours", PARTITIONS)
    with Traffic(cluster, "ours", PARTITIONS) as traffic:
        traffic.wait_for_more()

        settings = {**SETTINGS, "zookeeper.connect": cluster.zookeeper.address, "node.id": 2}
        second = ServeProcess(tmp_path / "second", settings, dies_with_thread=True)
        with pytest.raises(BrokerStartError, match=r"node\.id 2 is in use"):
            second.start()

        elsewhere = ServeProcess(
            tmp_path / "elsewhere",
            {**settings, "zookeeper.connect": cluster.zookeeper.address + "/other", "node.id": 4},
            dies_with_thread=True,
        )
        elsewhere.start().stop()
        elsewhere.settings["zookeeper.connect"] = cluster.zookeeper.address
        with pytest.raises(BrokerStartError, match="the broker's data belongs to cluster"):
            elsewhere.start()

        kazoo.set("/other/cluster/id", b'{"version":2,"name":"of the future"}')
        elsewhere.settings["zookeeper.connect"] = cluster.zookeeper.address + "/other"
        with pytest.raises(BrokerStartError, match=r"format version 2.*upgrade the broker"):
            elsewhere.start()

        traffic.wait_for_more()
        assert len(describe(cluster, "ours")[0].isr) == 3
    check(cluster, traffic)


def topic_id_of(cluster: LabCluster, topic: str) -> bytes:
    with RawClient(cluster.broker(1).port) as client:
        request = {"topics": [{"name": topic}], "response_partition_limit": 1}
        (described,) = client.request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request).topics
    topic_id: uuid.UUID = described.topic_id
    return topic_id.bytes
