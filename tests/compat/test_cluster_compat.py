"""A cluster of three brokers: the same requests to Apache Kafka and to ours, which must respond alike, and Kafka's own
tools against ours."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stratalog.protocol.api_keys import ApiKey
from tests.compat.cluster_sides import ClusterSide, KafkaSide, OurCluster
from tests.compat.jvm import SILENT, ToolOutput, java_command, run_tool, run_tool_or_fail
from tests.compat.log_dump import dump_log_segments, segment_files

pytestmark = pytest.mark.compat

TOOLS = "org.apache.kafka.tools."
PREFERRED, UNCLEAN = 0, 1
GONE = 3  # the broker that is killed in the second part of the story

Answer = Callable[[ClusterSide], Any]


def leader_named(answer: tuple[Any, Any], side: ClusterSide, topic: str) -> Any:
    """Return an error and the leader that the response names, without what differs between two clusters."""
    partition, endpoints = answer
    current = getattr(partition, "current_leader", None)
    if current is None:  # a version without it
        return partition.error_code.name
    epoch = side.described(topic).leader_epoch
    names_epoch = "this epoch" if current.leader_epoch == epoch else current.leader_epoch
    known = [node.node_id for node in endpoints if f"{node.host}:{node.port}" == side.address(node.node_id)]
    return partition.error_code.name, current.leader_id, names_epoch, known


def produced(broker: int, topic: str, acks: int = -1) -> Answer:
    return lambda side: leader_named(side.produce(broker, topic, acks=acks), side, topic)


def fetched(broker: int, topic: str, *, version: int = 17, newer: int | None = None) -> Answer:
    """`newer`: how much newer than the current one the client's leader epoch is; None for no leader epoch."""

    def answer(side: ClusterSide) -> Any:
        epoch = -1 if newer is None else side.described(topic).leader_epoch + newer
        return leader_named(side.fetch(broker, topic, version=version, leader_epoch=epoch), side, topic)

    return answer


def listed(broker: int, topic: str, newer: int | None = None) -> Answer:
    def answer(side: ClusterSide) -> Any:
        epoch = -1 if newer is None else side.described(topic).leader_epoch + newer
        return side.list_offset(broker, topic, leader_epoch=epoch)

    return answer


def epoch_end(broker: int, topic: str, newer: int | None = None) -> Answer:
    def answer(side: ClusterSide) -> Any:
        epoch = -1 if newer is None else side.described(topic).leader_epoch + newer
        error, _, _ = side.epoch_end(broker, topic, leader_epoch=0, current_epoch=epoch)
        return error

    return answer


def created(**fields: Any) -> Answer:
    return lambda side: side.creation_error("refused", **fields)


def elected(topic: str, kind: int = PREFERRED) -> Answer:
    return lambda side: side.elect(topic, kind)


def reassigned(topic: str, replicas: list[int] | None) -> Answer:
    return lambda side: side.reassign(topic, replicas)


def state(topic: str) -> Answer:
    def answer(side: ClusterSide) -> Any:
        partition = side.described(topic)
        return (
            partition.error_code.name,
            partition.leader_id,
            list(partition.replica_nodes),
            sorted(partition.isr_nodes),
            sorted(partition.eligible_leader_replicas or ()),
            sorted(partition.offline_replicas),
        )

    return answer


ALL_UP: dict[str, Answer] = {
    "a factor above the number of brokers": created(factor=4, partitions=1),
    "a factor of 0": created(factor=0, partitions=1),
    "an assignment to an unknown broker": created(assignment=[[1, 9]]),
    "an assignment with a broker twice": created(assignment=[[1, 1]]),
    "assignments with different factors": created(assignment=[[1, 2], [3]]),
    "an assignment without replicas": created(assignment=[[]]),
    "min.insync.replicas 0": created(factor=3, partitions=1, settings={"min_insync_replicas": "0"}),
    "produce to the leader": produced(1, "led"),
    "produce to a follower": produced(2, "led"),
    "produce to a follower, acks 1": produced(2, "led", acks=1),
    "produce to a broker without a replica": produced(3, "pair"),
    "acks 2": produced(1, "led", acks=2),
    "fetch from the leader": fetched(1, "led"),
    "fetch from a broker without a replica": fetched(3, "pair"),
    "fetch from a follower, before KIP-392": fetched(2, "led", version=10),
    "fetch from a follower": fetched(2, "led"),
    "fetch from a follower with this leader epoch": fetched(2, "led", newer=0),
    "fetch with an older leader epoch": fetched(2, "moved", newer=-1),
    "fetch with a newer leader epoch": fetched(1, "led", newer=1),
    "fetch with this leader epoch": fetched(1, "led", newer=0),
    "ListOffsets of a follower": listed(2, "led"),
    "ListOffsets of a broker without a replica": listed(3, "pair"),
    "ListOffsets with an older leader epoch": listed(2, "moved", newer=-1),
    "ListOffsets with a newer leader epoch": listed(1, "led", newer=1),
    "OffsetForLeaderEpoch of a follower": epoch_end(2, "led"),
    "OffsetForLeaderEpoch with an older leader epoch": epoch_end(2, "moved", newer=-1),
    "OffsetForLeaderEpoch with a newer leader epoch": epoch_end(1, "led", newer=1),
    "election that is not needed": elected("led"),
    "unclean election that is not needed": elected("led", UNCLEAN),
    "election of an unknown topic": elected("missing"),
    "reassignment to an unknown broker": reassigned("led", [1, 9]),
    "reassignment to a broker twice": reassigned("led", [1, 1]),
    "reassignment to no broker": reassigned("led", []),
    "reassignment of an unknown topic": reassigned("missing", [1]),
    "cancellation without a reassignment": reassigned("led", None),
    "the state of a partition": state("led"),
}
ONE_DOWN: dict[str, Answer] = {
    "the state of a partition whose follower is down": state("led"),
    "the state of a partition whose leader is down": state("preferred"),
    "the state of a partition whose only broker is down": state("only"),
    "produce with too few replicas in sync": produced(1, "strict"),
    "produce with too few replicas in sync, acks 1": produced(1, "strict", acks=1),
    "produce to a partition with enough replicas": produced(1, "led"),
    "produce to a partition without a leader": produced(1, "only"),
    "fetch of a partition without a leader": fetched(1, "only"),
    "fetch from the new leader": fetched(1, "preferred", newer=0),
    "election of a preferred leader that is down": elected("preferred"),
    "unclean election without a live replica": elected("only", UNCLEAN),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Any, Any]]]:
    """Return Kafka's answers and ours to each request of the story."""
    directory = tmp_path_factory.mktemp("clusters")
    sides: list[ClusterSide] = [KafkaSide(directory / "kafka"), OurCluster(directory / "ours")]
    try:
        with ThreadPoolExecutor(len(sides)) as pool:
            responses = list(pool.map(tell_story, sides))
        yield {name: (responses[0][name], responses[1][name]) for name in responses[0]}
    finally:
        for side in sides:
            side.kill_all()


def tell_story(side: ClusterSide) -> dict[str, Any]:
    side.cluster.start()  # type: ignore[attr-defined]
    side.wait_until(lambda: all(knows_all(side, broker) for broker in (1, 2, 3)))
    side.create("led", [1, 2, 3])
    side.create("pair", [1, 2])
    side.create("strict", [1, GONE], min_insync_replicas="2")
    side.create("preferred", [GONE, 1])
    side.create("only", [GONE])
    side.create("moved", [1, 2])
    side.reassign("moved", [2, 1])
    side.elect("moved")
    side.wait_until(lambda: side.list_offset(2, "moved") == "none")
    responses = answers_to(side, ALL_UP)
    side.stop(GONE)
    side.wait_until(lambda: side.described("preferred").leader_id == 1 and side.list_offset(1, "preferred") == "none")
    side.wait_until(lambda: GONE not in side.described("led").isr_nodes)
    return responses | answers_to(side, ONE_DOWN)


def knows_all(side: ClusterSide, broker: int) -> bool:
    fields = {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    return len(side.ask(broker, ApiKey.METADATA, 12, **fields).brokers) == 3


def answers_to(side: ClusterSide, requests: dict[str, Answer]) -> dict[str, Any]:
    responses = {}
    for name, request in requests.items():
        try:
            responses[name] = request(side)
        except Exception as error:  # of this request only; its test raises it
            responses[name] = error
    return responses


@pytest.mark.parametrize("name", [*ALL_UP, *ONE_DOWN])
def test_clusters_respond_differently(answers: dict[str, tuple[Any, Any]], name: str) -> None:
    kafka, ours = answers[name]
    for answer in (kafka, ours):
        if isinstance(answer, Exception):
            raise answer
    assert ours == kafka


# Kafka's tools


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    side = OurCluster(tmp_path_factory.mktemp("cluster"))
    try:
        side.cluster.start()
        yield side
    finally:
        side.kill_all()


def tool(cluster: OurCluster, name: str, *arguments: str, stdin: bytes = b"") -> str:
    server = ["--bootstrap-server", cluster.bootstrap_servers]
    return run_tool_or_fail(TOOLS + name, [*arguments, *server], stdin=stdin).stdout.decode()


def failed_tool(cluster: OurCluster, name: str, *arguments: str) -> ToolOutput:
    output = run_tool(TOOLS + name, [*arguments, "--bootstrap-server", cluster.bootstrap_servers])
    assert output.exit_code != 0
    return output


def topics(cluster: OurCluster, *arguments: str) -> str:
    return tool(cluster, "TopicCommand", *arguments)


def test_topic_command_shows_no_replicas(cluster: OurCluster) -> None:
    created = topics(cluster, "--create", "--topic", "tools", "--partitions", "3", "--replication-factor", "3")
    assert "Created topic tools." in created
    cluster.wait_until(lambda: all(len(cluster.described("tools", index).isr_nodes) == 3 for index in range(3)))
    described = topics(cluster, "--describe", "--topic", "tools")
    assert "PartitionCount: 3\tReplicationFactor: 3" in described
    leaders = {line.split("Leader: ")[1].split()[0] for line in described.splitlines() if "\tPartition: " in line}
    assert leaders == {"1", "2", "3"}
    assert topics(cluster, "--describe", "--under-replicated-partitions").strip() == ""
    refused = failed_tool(cluster, "TopicCommand", "--create", "--topic", "wide", "--replication-factor", "4")
    assert "replication factor is 4; it must be 1 to 3" in refused.stdout.decode() + refused.stderr


def test_cluster_tool_knows_no_brokers(cluster: OurCluster) -> None:
    assert "Cluster ID: " in tool(cluster, "ClusterTool", "cluster-id")
    endpoints = tool(cluster, "ClusterTool", "list-endpoints")
    assert all(str(cluster.cluster.broker(node_id).port) in endpoints for node_id in (1, 2, 3))


def test_reassignment_tool_moves_nothing(cluster: OurCluster, tmp_path: Path) -> None:
    cluster.create("moving", [1, 2], [2, 1])
    produce(cluster, "moving", 200)
    moved, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    moved.write_text(json.dumps({"version": 1, "topics": [{"topic": "moving"}]}))
    command = "reassign.ReassignPartitionsCommand"
    generated = tool(
        cluster, command, "--generate", "--topics-to-move-json-file", str(moved), "--broker-list", "1,3"
    ).splitlines()
    proposed = json.loads(generated[generated.index("Proposed partition reassignment configuration") + 1])
    assert all(set(each["replicas"]) == {1, 3} for each in proposed["partitions"])
    plan.write_text(json.dumps(proposed))
    execution = tool(cluster, command, "--execute", "--reassignment-json-file", str(plan))
    assert "Successfully started partition reassignments for moving-0,moving-1" in execution
    cluster.wait_until(lambda: all(set(cluster.described("moving", i).isr_nodes) == {1, 3} for i in range(2)))
    verified = tool(cluster, command, "--verify", "--reassignment-json-file", str(plan))
    assert "Reassignment of partition moving-0 is completed." in verified
    assert "No partition reassignments found." in tool(cluster, command, "--list")


def test_replica_verification_finds_lag(cluster: OurCluster) -> None:
    cluster.create("compared", [1, 2, 3])
    produce(cluster, "compared", 500)
    arguments = ["--broker-list", cluster.bootstrap_servers, "--topics-include", "compared", "--time", "-2"]
    command = java_command(
        TOOLS + "ReplicaVerificationTool",
        [*arguments, "--report-interval-ms", "300"],
        options=("-Xmx128m", *SILENT),
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            deadline = time.monotonic() + 60
            reports: list[str] = []
            while len(reports) < 3 and time.monotonic() < deadline and (line := process.stdout.readline()):
                if "max lag is" in line:
                    reports.append(line)
        finally:
            process.kill()
    assert len(reports) == 3, "the tool must compare all replicas, round by round"
    assert "max lag is 0 for partition compared-0" in reports[-1]


def test_quorum_tool_finds_a_quorum(cluster: OurCluster) -> None:
    refused = failed_tool(cluster, "MetadataQuorumCommand", "describe", "--status")
    assert refused.stderr or refused.stdout


def test_failover_leaves_torn_logs_and_old_leaders(cluster: OurCluster) -> None:
    cluster.create("failover", [3, 1, 2])
    produce(cluster, "failover", 300)
    cluster.stop(3)
    cluster.wait_until(lambda: cluster.described("failover").leader_id == 1)
    cluster.wait_until(lambda: cluster.list_offset(1, "failover") == "none")
    produce(cluster, "failover", 300)
    under_replicated = topics(cluster, "--describe", "--under-replicated-partitions")
    assert "Topic: failover\tPartition: 0\tLeader: 1\tReplicas: 3,1,2\tIsr: 1,2" in under_replicated
    cluster.start(3)
    cluster.wait_until(lambda: len(cluster.described("failover").isr_nodes) == 3)
    election = tool(
        cluster, "LeaderElectionCommand", "--election-type", "preferred", "--topic", "failover", "--partition", "0"
    )
    assert "Successfully completed leader election (PREFERRED) for partitions failover-0" in election
    assert cluster.described("failover").leader_id == 3
    produce(cluster, "failover", 50)
    cluster.wait_until(lambda: len({log_bytes(cluster, node_id, "failover") for node_id in (1, 2, 3)}) == 1)
    for node_id in (1, 2, 3):
        files = segment_files(cluster.cluster.broker(node_id).data_dir / "failover-0")
        dump = dump_log_segments(files, "--deep-iteration")
        assert dump.complaints == [], f"broker {node_id}"


def produce(cluster: OurCluster, topic: str, count: int) -> None:
    tool(
        cluster,
        "ConsoleProducer",
        "--topic",
        topic,
        "--producer-property",
        "acks=all",
        stdin=b"".join(b"value %d\n" % number for number in range(count)),
    )


def log_bytes(cluster: OurCluster, node_id: int, topic: str) -> bytes:
    directory = cluster.cluster.broker(node_id).data_dir / f"{topic}-0"
    return b"".join(file.read_bytes() for file in sorted(directory.glob("*.log")))
