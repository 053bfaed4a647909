"""KIP-848 groups compared with Apache Kafka's: the same heartbeats get the same responses, Kafka's dumper reads our
records, and our coordinator continues a group of Kafka."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.groups.consumer_group import ConsumerGroup
from stratalog.broker.groups.consumer_records import MemberState
from stratalog.protocol.api_keys import ApiKey
from stratalog.records import build_batch
from stratalog.storage import LogDirectory
from tests.broker.groups.consumer_world import FakeHost, FakeTopics, World
from tests.broker.process import BrokerProcess
from tests.compat.jvm import run_tool_or_fail
from tests.compat.kafka import KafkaServer
from tests.compat.log_dump import DUMP_LOG_SEGMENTS
from tests.compat.test_admin_answers import Wire, creation, growth, topic

pytestmark = pytest.mark.compat

HEARTBEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT
DESCRIBE = ApiKey.CONSUMER_GROUP_DESCRIBE
DUMPED = re.compile(r"^\| offset: \d+ .* key: (\{.*\}) payload: (.*)$", re.MULTILINE)


class Broker:
    """Kafka's broker or ours. Partitions have the names of their topics, because topic ids differ between brokers."""

    def __init__(self, address: str) -> None:
        self.wire = Wire(address)
        self.names: dict[uuid.UUID, str] = {}

    def make_ready(self) -> None:
        """Wait until the coordinator is loaded. Kafka creates __consumer_offsets at the first FindCoordinator."""
        probe = beat("nobody", "m0", 1)
        for _ in range(600):
            self.wire.ask(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["nobody"]})
            if self.heartbeat(**probe)["error"] == "group_id_not_found":
                return
            time.sleep(0.05)
        raise AssertionError(f"no coordinator: {self.heartbeat(**probe)}")

    def create(self, **partition_counts: int) -> None:
        topics = [topic(name, partitions=count) for name, count in partition_counts.items()]
        for _ in range(100):
            answer = self.wire.ask(ApiKey.CREATE_TOPICS, 7, creation(*topics))
            if answer.topics[0].error_code is not ErrorCode.invalid_replication_factor:
                break
            time.sleep(0.1)  # on a slow machine, Kafka's broker loses its session
        assert [made.error_code for made in answer.topics] == [ErrorCode.none] * len(topics)
        self.names |= {made.topic_id: made.name for made in answer.topics}
        self.await_partitions(**partition_counts)

    def await_partitions(self, **partition_counts: int) -> None:
        """Wait until groups see these partitions: Kafka's coordinator sees new topics a little later."""
        expected = {name: list(range(count)) for name, count in partition_counts.items()}
        for attempt in range(600):
            group_id = f"probe-{attempt}-{'-'.join(expected)}"
            assigned = self.heartbeat(**joining(group_id, "m0", *partition_counts))["assignment"]
            if assigned == expected:
                return
            time.sleep(0.05)
        raise AssertionError(f"groups do not see {expected}, but {assigned}")

    def heartbeat(self, version: int = 1, owned: dict[str, list[int]] | None = None, **fields: Any) -> dict[str, Any]:
        ids = {name: topic_id for topic_id, name in self.names.items()}
        request = {"rebalance_timeout": -1, "instance_id": None, "rack_id": None, "server_assignor": None} | fields
        request["topic_partitions"] = (
            None
            if owned is None
            else [{"topic_id": ids[name], "partitions": partitions} for name, partitions in owned.items()]
        )
        answer = self.wire.ask(HEARTBEAT, version, request)
        return {
            "error": answer.error_code.name,
            "message": answer.error_message,
            "member": answer.member_id,
            "epoch": answer.member_epoch,
            "interval": answer.heartbeat_interval,
            "assignment": None if answer.assignment is None else self._named(answer.assignment),
        }

    def describe(self, group_id: str) -> Any:
        request = {"group_ids": [group_id], "include_authorized_operations": True}
        (group,) = self.wire.ask(DESCRIBE, 1, request).groups
        return {
            "error": group.error_code.name,
            "message": group.error_message,
            "state": group.group_state,
            "epochs": (group.group_epoch, group.assignment_epoch),
            "assignor": group.assignor_name,
            "operations": group.authorized_operations,
            "members": {
                member.member_id: (
                    member.instance_id,
                    member.rack_id,
                    member.member_epoch,
                    member.client_id,
                    member.client_host,
                    sorted(member.subscribed_topic_names),
                    member.subscribed_topic_regex,
                    self._named(member.assignment),
                    self._named(member.target_assignment),
                    member.member_type,
                )
                for member in group.members
            },
        }

    def await_described(self, group_id: str, error: str) -> str:
        """Wait until DescribeGroups returns this error: Kafka describes committed state, and responds to a classic join
        before it commits."""
        deadline = time.monotonic() + 30
        while (described := str(self.describe(group_id)["error"])) != error and time.monotonic() < deadline:
            time.sleep(0.01)
        return described

    def await_patterns(self) -> None:
        """Wait until the patterns of all earlier heartbeats are resolved. Kafka resolves them in one thread, in order,
        so they are when a later pattern is."""
        joined = self.heartbeat(**joining("last-pattern", "m0", subscribed_topic_regex=".*"))
        deadline = time.monotonic() + 30
        while not self.describe("last-pattern")["members"]["m0"][8]:
            assert time.monotonic() < deadline, "the pattern '.*' matches no topic"
            time.sleep(0.05)
            self.heartbeat(**beat("last-pattern", "m0", joined["epoch"], owned={}))

    def _named(self, assignment: Any) -> dict[str, list[int]]:
        return {
            self.names.get(each.topic_id, "of Kafka's own"): sorted(each.partitions)
            for each in assignment.topic_partitions
        }


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    directory = tmp_path_factory.mktemp("brokers")
    settings = {"auto.create.topics.enable": "false", "offsets.topic.num.partitions": "1"}
    with KafkaServer(directory / "kafka", settings) as kafka, BrokerProcess(directory / "ours", settings) as ours:
        both = Broker(kafka.bootstrap), Broker(ours.address)
        for broker in both:
            broker.make_ready()
            broker.create(a=4, b=4, single=1)
        yield both
        for broker in both:
            broker.wire.close()


def joining(group: str, member: str, *names: str, **fields: Any) -> dict[str, Any]:
    defaults = {"member_epoch": 0, "rebalance_timeout": 60_000, "subscribed_topic_names": names, "owned": {}}
    return {"group_id": group, "member_id": member, **defaults, **fields}


def beat(group: str, member: str, epoch: int, **fields: Any) -> dict[str, Any]:
    return {"group_id": group, "member_id": member, "member_epoch": epoch, **fields}


# Each is a story of one group: requests in order. Assignors that give the first of several equal shares to another
# member than Kafka's (which goes by hash) would differ, so shares are even, or one member's.
STORIES: dict[str, list[dict[str, Any]]] = {
    "two members share": [
        joining("share", "m0", "a", server_assignor="range"),
        joining("share", "m1", "a"),
        beat("share", "m0", 1, owned={"a": [0, 1, 2, 3]}),
        beat("share", "m1", 2),
        beat("share", "m0", 1),
        beat("share", "m0", 1, owned={"a": [0, 1]}),
        beat("share", "m1", 2, owned={}),
        beat("share", "m1", 2, owned={"a": [2, 3]}),
        beat("share", "m0", 2),
        beat("share", "m0", -1),
        beat("share", "m1", 2),
        beat("share", "m1", 3),
        beat("share", "m0", 2),
    ],
    "co-partitioned": [
        joining("co", "m0", "a", "b", server_assignor="range"),
        joining("co", "m1", "a", "b", server_assignor="range"),
        beat("co", "m0", 1, owned={"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}),
        beat("co", "m0", 1, owned={"a": [0, 1], "b": [0, 1]}),
        beat("co", "m1", 2),
    ],
    "epochs": [
        joining("epochs", "m0", "single"),
        beat("epochs", "m0", 2),
        beat("epochs", "m0", 1, owned={"single": [0]}),
        beat("epochs", "m9", 1),
        beat("epochs", "m9", -1),
        beat("epochs", "m0", 1, subscribed_topic_names=["single", "a"]),
        beat("epochs", "m0", 1, owned={"single": [0]}),
        beat("epochs", "m0", 1),
        beat("none", "m0", 1),
        beat("none", "m0", -1),
    ],
    "static": [
        joining("static", "m0", "a", instance_id="i"),
        joining("static", "m1", "a", instance_id="i"),
        beat("static", "m0", 1, instance_id="i"),
        beat("static", "m0", 1, instance_id="j"),
        beat("static", "m0", -2, instance_id="i"),
        beat("static", "m0", 1, instance_id="i", owned={}),
        joining("static", "m1", "a", instance_id="i"),
        beat("static", "m0", 1, instance_id="i"),
        beat("static", "m0", -2, instance_id="i"),
        beat("static", "m1", 1, instance_id="i", owned={"a": [0, 1, 2, 3]}),
        beat("static", "m1", -1, instance_id="i"),
        beat("static", "m1", 1, instance_id="i"),
    ],
    "subscriptions": [
        joining("subs", "m0", "a", "single"),
        beat("subs", "m0", 1, owned={"a": [0, 1, 2, 3], "single": [0]}, subscribed_topic_names=["a"]),
        beat("subs", "m0", 1, owned={"a": [0, 1, 2, 3], "single": [0]}),
        beat("subs", "m0", 1, owned={"a": [0, 1, 2, 3]}),
        beat("subs", "m0", 2, subscribed_topic_names=[]),
        beat("subs", "m0", 2, owned={}),
        joining("subs", "m1", "none"),
        joining("subs", "m2", subscribed_topic_names=()),
    ],
    "a full request": [
        joining("full", "m0", "single"),
        joining("full", "m0", "single", member_epoch=1, owned={"single": [0]}),
        joining("full", "m0", "single", member_epoch=1, owned={"single": [0]}, rack_id="r"),
    ],
    "refusals": [
        joining("bad", "", "a"),
        joining("bad", " ", "a"),
        joining("", "m0", "a"),
        joining("bad", "m0", "a", instance_id=""),
        joining("bad", "m0", "a", rack_id=""),
        joining("bad", "m0", "a", rebalance_timeout=-1),
        joining("bad", "m0", "a", owned=None),
        joining("bad", "m0", "a", owned={"a": [0]}),
        joining("bad", "m0", subscribed_topic_names=None),
        joining("bad", "m0", "a", server_assignor="sticky"),
        joining("bad", "m0", "a", subscribed_topic_regex="a", server_assignor=""),
        beat("bad", "m0", -2),
        beat("bad", "m0", -3),
        beat("bad", "m0", -1),
        joining("bad", "m0", "a", member_epoch=7),
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_the_same_heartbeats_get_the_same_responses(brokers: tuple[Broker, Broker], story: str) -> None:
    kafka, ours = brokers
    groups = set()
    for step, request in enumerate(STORIES[story]):
        groups.add(request["group_id"])
        assert ours.heartbeat(**request) == kafka.heartbeat(**request), f"step {step}: {request}"
    for group_id in sorted(groups):
        assert ours.describe(group_id) == kafka.describe(group_id)


@pytest.mark.parametrize(
    ("version", "member", "epoch"),
    [(9, "m0", 1), (9, "m0", 0), (9, "m0", 2), (9, "m9", 1), (9, "", -1), (8, "m0", 1), (2, "", -1)],
)
def test_the_same_members_may_commit_and_fetch(
    brokers: tuple[Broker, Broker], version: int, member: str, epoch: int
) -> None:
    partition = {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
        "commit_timestamp": -1,
    }
    commit = {
        "group_id": "commits",
        "generation_id_or_member_epoch": epoch,
        "member_id": member,
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [{"name": "single", "partitions": [partition]}],
    }
    asked = {"name": "single", "partition_indexes": [0]}
    groups = [{"group_id": "commits", "member_id": member or None, "member_epoch": epoch, "topics": [asked]}]
    answers = []
    for broker in brokers:
        broker.heartbeat(**joining("commits", "m0", "single"))
        committed = broker.wire.ask(ApiKey.OFFSET_COMMIT, version, commit)
        fetched = broker.wire.ask(ApiKey.OFFSET_FETCH, 9, {"groups": groups, "require_stable": False})
        answers.append((committed.topics[0].partitions[0].error_code, fetched.groups[0].error_code))
        broker.heartbeat(**beat("commits", "m0", -1))
    assert answers[0] == answers[1]


def test_an_empty_group_is_converted_alike(brokers: tuple[Broker, Broker]) -> None:
    """A commit creates a classic group, a KIP-848 member joins and leaves, and a classic member finds an empty
    group."""
    partition = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    commit = {
        "group_id": "kinds",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "single", "partitions": [partition]}],
    }
    join = {
        "group_id": "kinds",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "group_instance_id": "i",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": bytes.fromhex("0000 00000001 0001 61 00000000")}],
    }
    answers = []
    for broker in brokers:
        seen: list[Any] = [broker.wire.ask(ApiKey.OFFSET_COMMIT, 9, commit).topics[0].partitions[0].error_code]
        seen.append(broker.heartbeat(**joining("kinds", "m0", "single")))
        seen.append(broker.describe("kinds")["epochs"])
        seen.append(broker.heartbeat(**beat("kinds", "m0", -1)))
        seen.append(broker.describe("kinds")["state"])
        joined = broker.wire.ask(ApiKey.JOIN_GROUP, 9, join)
        seen.append((joined.error_code, joined.generation_id))
        seen.append(broker.await_described("kinds", "group_id_not_found"))
        seen.append(broker.heartbeat(**beat("kinds", "m0", 1)))
        seen.append(broker.heartbeat(**beat("kinds", "m0", -1)))
        answers.append(seen)
    assert answers[0] == answers[1]


def test_a_running_group_is_converted_alike(brokers: tuple[Broker, Broker]) -> None:
    """A KIP-848 member joins a group with a classic member, gets its partitions, and leaves."""
    sides = [running_group_that_changes(broker) for broker in brokers]
    assert sides[0] == sides[1]


def running_group_that_changes(broker: Broker) -> list[Any]:
    group, metadata = {"group_id": "rolling"}, bytes.fromhex("0001 00000001 0005 726f6c6c73 ffffffff 00000000")
    broker.create(rolls=4)
    join = group | {
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": "",
        "group_instance_id": "static",  # an old version, in which a new member needs no member id
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    everything = bytes.fromhex("0001 00000001 0005 726f6c6c73 00000004 00000000 00000001 00000002 00000003 ffffffff")
    member_id = broker.wire.ask(ApiKey.JOIN_GROUP, 9, join).member_id
    join["member_id"] = member_id
    member = group | {"member_id": member_id, "group_instance_id": "static"}
    sync = member | {"protocol_type": "consumer", "protocol_name": "range"}
    seen: list[Any] = []

    def heartbeat(generation: int) -> None:
        seen.append(broker.wire.ask(ApiKey.HEARTBEAT, 4, member | {"generation_id": generation}).error_code.name)

    def rejoin() -> None:
        answer = broker.wire.ask(ApiKey.JOIN_GROUP, 9, join)
        seen.append((answer.error_code.name, answer.generation_id, answer.protocol_name, answer.leader == member_id))

    def resync(generation: int, shares: Any = ()) -> None:
        answer = broker.wire.ask(ApiKey.SYNC_GROUP, 5, sync | {"generation_id": generation, "assignments": shares})
        seen.append((answer.error_code.name, answer.assignment.hex()))

    def commit(generation: int) -> None:
        partition = {
            "partition_index": 0,
            "committed_offset": 5,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        request = member | {"generation_id_or_member_epoch": generation}
        request |= {"topics": [{"name": "rolls", "partitions": [partition]}]}
        answer = broker.wire.ask(ApiKey.OFFSET_COMMIT, 8, request)
        seen.append(answer.topics[0].partitions[0].error_code.name)

    def new_member(epoch: int, **fields: Any) -> None:
        answer = broker.heartbeat(**beat("rolling", "new", epoch, **fields))
        seen.append((answer["error"], answer["epoch"], answer["assignment"]))

    resync(1, [{"member_id": member_id, "assignment": everything}])
    heartbeat(1)
    joined = broker.heartbeat(**joining("rolling", "new", "rolls"))
    seen.append((joined["error"], joined["epoch"], joined["assignment"]))
    described = broker.describe("rolling")
    seen.append((described["state"], described["epochs"], described["members"][member_id][1:]))
    heartbeat(1)
    commit(1)
    resync(1)  # it has to rejoin first
    rejoin()
    heartbeat(1)
    resync(2)
    heartbeat(2)
    commit(1)
    commit(2)
    new_member(2)
    new_member(-1)
    seen.append(broker.await_described("rolling", "group_id_not_found"))
    heartbeat(2)
    commit(2)
    resync(2)
    rejoin()
    resync(3, [{"member_id": member_id, "assignment": everything}])
    heartbeat(3)
    return seen


PATTERNS = [
    *("orders", "orders.*", "ord", r"orders\.eu", "orders[.]eu", r"\Qorders.eu\E", "^orders$", "$orders", "orders^"),
    *("(?i)ORDERS", "(?i:O)RDERS", "(?-i)orders", "(?sUm)o.*", "(?x)o", "(?i", "(?:o", "(?P<n>o).*", "(?<n>o).*"),
    *("(?P<n>o)(?P<n>r).*", "(?P<1>o).*", "(?P<>o)", "(?=o)o", "(?!o)o", "(?<=o)o", "(?<!o)o", "(?>o)", "(?#c)o"),
    *(
        "[[:upper:]].*",
        "[[:^upper:]]+",
        "[[:nope:]]",
        "[a-z.]+",
        "[z-a]",
        "[]o]rders",
        "[^]o]",
        "[o-]rders",
        "[o",
        "[]",
    ),
    *(r"\d+", r"\D+", r"\w+", r"\W", r"[\d]+", r"[\w.]+", r"\s", r"\bo.*", r"\Bo.*", r"orders\b.*", r"\Aorders\z"),
    *(
        r"orders\Z",
        r"\Gorders",
        r"(o)\1",
        r"\pL+",
        r"\p{L}+",
        r"\P{L}+",
        r"\p{^L}+",
        r"[\pN]",
        r"\p{Lu}+",
        r"(?i)\p{Lu}+",
        r"\p{Nope}",
        r"\1",
        r"\01",
        r"\p{Greek}",
        r"\x6frders",
        r"\x{6f}rders",
        r"\xzz",
    ),
    *(r"\157rders", r"\orders", r"\-", r"\_", r"\a", r"\C", "\\", "o{6}", "o{0,1}rders", "o{,2}", "o{2,1}", "o{1001}"),
    *(
        "o{1000}",
        "(o{100}){100}",
        "o**",
        "o*+",
        "o*?rders",
        "o??rders",
        "o+*",
        "*o",
        "+",
        "?",
        "o|*",
        "(*)",
        "()",
        "(|o)rders",
    ),
    *(
        "o|",
        "||",
        ")",
        "(",
        "(()",
        "a)(b",
        "(a|ab)(c|bcd)(d*)",
        ".*.*.*.*eu",
        "",
        " ",
        ".",
        "-",
        "a-b",
        "^",
        "^*",
        "$*",
        "(^)*o.*",
    ),
    *(
        "(o)rders|payments",
        "x*",
        "(?i)(?-i)O.*",
        "o.*(?i)S",
        "[[:word:]]+",
        "[[:alpha:][:digit:]]+",
        "ö",
        "[^ö]+",
        "[a-ö.]+",
    ),
]


def test_patterns_match_the_same_topics(brokers: tuple[Broker, Broker]) -> None:
    found: list[dict[str, Any]] = []
    for broker in brokers:
        broker.create(**{"orders": 1, "orders.eu": 1, "ORDERS": 1, "payments_1": 1, "7": 1, "a-b": 1})
        joined = {
            pattern: broker.heartbeat(**joining(f"re-{number}", "m0", subscribed_topic_regex=pattern))
            for number, pattern in enumerate(PATTERNS)
        }
        broker.await_patterns()
        matched: dict[str, Any] = {}
        for number, pattern in enumerate(PATTERNS):
            if joined[pattern]["error"] == "none":
                broker.heartbeat(**beat(f"re-{number}", "m0", joined[pattern]["epoch"], owned={}))
                matched[pattern] = set(broker.describe(f"re-{number}")["members"]["m0"][8])
            else:
                matched[pattern] = joined[pattern]["error"]
        found.append(matched)
    kafka, ours = found
    differing = {pattern: (ours[pattern], kafka[pattern]) for pattern in PATTERNS if ours[pattern] != kafka[pattern]}
    assert differing == {
        "(o{100}){100}": ("invalid_regular_expression", set()),  # over the limit of this broker
    }


def test_a_growing_topic_is_assigned_alike(brokers: tuple[Broker, Broker]) -> None:
    answers = []
    for broker in brokers:
        broker.create(grows=1)
        broker.heartbeat(**joining("grows", "m0", "grows"))
        broker.wire.ask(ApiKey.CREATE_PARTITIONS, 3, growth(("grows", 3)))
        broker.await_partitions(grows=3)
        answers.append([broker.heartbeat(**beat("grows", "m0", 1)), broker.describe("grows")])
    assert answers[0] == answers[1]


def test_kafkas_dumper_reads_our_records(tmp_path: Path) -> None:
    world = World(FakeTopics(a=2))
    world.join("m0", "a", instance_id="i", rack_id="r", server_assignor="uniform")
    world.join("m1", subscribed_topic_regex="a.*")
    world.resolve()
    world.beat("m0", 1)
    world.leave("m1")
    with LogDirectory.open(tmp_path / "data", background=False) as directory:
        log = directory.log("__consumer_offsets", 0)
        for record in world.host.log:
            log.append(build_batch([record]))
        (segment,) = log.path.glob("*.log")
    output = run_tool_or_fail(DUMP_LOG_SEGMENTS, ["--offsets-decoder", "--files", str(segment)])
    dumped = DUMPED.findall(output.stdout.decode())
    assert len(dumped) == len(world.host.log)
    read = [(json.loads(key), None if value == "<DELETE>" else json.loads(value)) for key, value in dumped]
    by_type: dict[str, list[Any]] = {}
    for key, value in read:
        by_type.setdefault(key["type"], []).append((key["data"], None if value is None else value["data"]))
    topic_id = "AAAAAAAAAAAAAAAAAAAAAQ"
    assert by_type["3"][0] == ({"groupId": "g"}, {"epoch": 1, "metadataHash": by_type["3"][0][1]["metadataHash"]})
    assert by_type["5"][0] == (
        {"groupId": "g", "memberId": "m0"},
        {
            "instanceId": "i",
            "rackId": "r",
            "clientId": "c",
            "clientHost": "/h",
            "subscribedTopicNames": ["a"],
            "subscribedTopicRegex": "",
            "rebalanceTimeoutMs": 300_000,
            "serverAssignor": "uniform",
        },
    )
    assert by_type["6"][0] == ({"groupId": "g"}, {"assignmentEpoch": 1})
    both = [{"topicId": topic_id, "partitions": [0, 1]}]
    assert by_type["7"][0] == ({"groupId": "g", "memberId": "m0"}, {"topicPartitions": both})
    assert by_type["8"][0][1] == {
        "memberEpoch": 1,
        "previousMemberEpoch": 0,
        "state": int(MemberState.STABLE),
        "assignedPartitions": both,
        "partitionsPendingRevocation": [],
    }
    assert by_type["8"][2][1]["partitionsPendingRevocation"] == [{"topicId": topic_id, "partitions": [1]}]
    assert by_type["16"][0] == (
        {"groupId": "g", "regularExpression": "a.*"},
        {"topics": ["a"], "version": 0, "timestamp": world.host.now_ms()},
    )
    assert by_type["16"][1][1] is None


def test_our_coordinator_continues_a_group_of_kafka(tmp_path: Path) -> None:
    with KafkaServer(tmp_path / "kafka") as server:
        kafka = Broker(server.bootstrap)
        kafka.make_ready()
        kafka.create(a=2)
        (topic_id,) = kafka.names
        first = kafka.heartbeat(**joining("g", "m0", "a", instance_id="i"))
        kafka.heartbeat(**joining("g", "m1", "a"))
        told = kafka.heartbeat(**beat("g", "m0", 1, instance_id="i", owned={"a": [0, 1]}))
        described = kafka.describe("g")
        kafka.wire.close()
        server.stop()
    assert (first["epoch"], told["epoch"]) == (1, 1)
    with LogDirectory.open(server.data_dir, background=False) as directory:
        records = [(record.key, record.value) for record in directory.log("__consumer_offsets", 0).records()]
    group = FakeHost([(key, value) for key, value in records if key is not None]).group("g")
    assert isinstance(group, ConsumerGroup)
    assert (group.state_name, group.epoch, group.assignment_epoch) == ("Reconciling", 2, 2)
    assert group.metadata_hash != 0
    (kept,) = group.members["m0"].assigned[topic_id]
    (lost,) = group.members["m0"].pending_revocation[topic_id]
    assert described["members"]["m0"][7] == {"a": [kept]}
    assert group.members["m0"].state is MemberState.UNREVOKED_PARTITIONS
    assert group.members["m1"].state is MemberState.UNRELEASED_PARTITIONS
    assert group.target["m1"] == {topic_id: frozenset((lost,))}
    assert group.static_member("i") == group.members["m0"]
