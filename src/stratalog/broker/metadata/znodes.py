"""The znodes of a cluster: their paths, and the content of each as JSON with a format version. Pure.

Anyone with access to ZooKeeper can write any bytes into a znode. Parsing accepts only content that the rest of the
broker can rely on, and otherwise raises UnreadableZnodeError, which names the znode and the field.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from stratalog.broker.metadata.cluster_view import ClusterTopic, PartitionId
from stratalog.broker.metadata.partition_state import NO_LEADER, PartitionState
from stratalog.errors import StratalogError
from stratalog.storage.names import check_topic

FORMAT = 1
"""The newest format version that this broker reads, and the one that it writes."""

MOST_PARTITIONS = 100_000
"""The most partitions that a topic can have. A larger number in a znode is not valid: brokers would use up their memory
over it."""

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
REGISTRATIONS = "/brokers/registrations"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
TOPICS = "/topics"
PARTITIONS = "/partitions"
CHANGES = "/changes"
CHANGE_PREFIX = f"{CHANGES}/c-"
BROKER_SETTINGS = "/config/brokers"
PRODUCER_IDS = "/producer_ids"
PARENTS = ("/cluster", BROKER_IDS, REGISTRATIONS, TOPICS, PARTITIONS, CHANGES, BROKER_SETTINGS)

_ALL_BROKERS = "default"
_INT_32, _INT_64 = 2**31 - 1, 2**63 - 1


class UnreadableZnodeError(StratalogError):
    """A znode whose content is not valid, or of a newer format version. The message names the znode and the field."""


class BrokerEndpoint(NamedTuple):
    """The content of a broker's ephemeral znode: where it listens. `session_timeout_ms` is how long the znode stays
    after the broker has crashed."""

    host: str
    port: int
    rack: str | None
    session_timeout_ms: int


class BrokerCondition(NamedTuple):
    """The content of a broker's permanent znode, whose version changes with every registration: whether the ends of its
    logs may be lost, and whether it is shutting down."""

    lost_tail: bool
    is_leaving: bool


class ControllerClaim(NamedTuple):
    """The content of the controller's ephemeral znode."""

    node_id: int
    epoch: int


# Paths


def broker_id_path(node_id: int) -> str:
    return f"{BROKER_IDS}/{node_id}"


def registration_path(node_id: int) -> str:
    return f"{REGISTRATIONS}/{node_id}"


def topic_path(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions_path(topic_id: uuid.UUID) -> str:
    return f"{PARTITIONS}/{topic_id}"


def partition_path(id: PartitionId) -> str:
    """Return the path of a partition's state. It has the topic id, not the name: a state that was read before a topic
    was deleted can't be written into a later topic of the same name."""
    return f"{PARTITIONS}/{id.topic_id}/{id.partition}"


def settings_path(node_id: str) -> str:
    """Return the path of settings that were changed while the brokers ran; "" stands for all brokers."""
    return f"{BROKER_SETTINGS}/{node_id or _ALL_BROKERS}"


def settings_node_id(name: str) -> str:
    """Return the node id, as text, of a child of BROKER_SETTINGS."""
    return "" if name == _ALL_BROKERS else name


def change_path(number: int) -> str:
    return f"{CHANGE_PREFIX}{number:010d}"


def change_number(name: str) -> int | None:
    """Return the number of a change entry, given the znode's name or path; None if it is not the name of an entry."""
    prefix, _, digits = name.rpartition("c-")
    return int(digits) if prefix in ("", f"{CHANGES}/") and len(digits) == 10 and digits.isdecimal() else None


def parse_node_id(name: str) -> int | None:
    """Return the node id that a znode's name is; None if it is not a node id."""
    return int(name) if name.isascii() and name.isdecimal() and str(int(name)) == name else None


# Reading and writing JSON


def encode(content: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": FORMAT, **content}, separators=(",", ":")).encode()


class Fields:
    """The fields of a JSON object in a znode. Each method returns the value of a field, or raises UnreadableZnodeError
    if it is missing or not valid."""

    def __init__(self, path: str, content: object) -> None:
        self._path = path
        if not isinstance(content, dict):
            raise UnreadableZnodeError(f"znode {path}: the content is not a JSON object")
        self._content: dict[str, Any] = content

    @classmethod
    def of(cls, path: str, data: bytes) -> Fields:
        """Return the fields of a znode, whose format version must be known."""
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise UnreadableZnodeError(f"znode {path}: the content is not JSON: {error}") from error
        fields = cls(path, content)
        version = fields.number("version", 1, _INT_64)
        if version > FORMAT:
            raise UnreadableZnodeError(
                f"znode {path}: the content has format version {version}, and this broker knows versions up to "
                f"{FORMAT}; upgrade the broker"
            )
        return fields

    def number(self, name: str, lowest: int, highest: int, default: int | None = None) -> int:
        value = self._content.get(name, default)
        if type(value) is not int or not lowest <= value <= highest:
            raise self.error(name, f"a number from {lowest} to {highest}")
        return value

    def flag(self, name: str) -> bool:
        value = self._content.get(name)
        if type(value) is not bool:
            raise self.error(name, "true or false")
        return value

    def text(self, name: str) -> str:
        value = self._content.get(name)
        if type(value) is not str:
            raise self.error(name, "a text")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self._content.get(name) is None else self.text(name)

    def uuid(self, name: str) -> uuid.UUID:
        try:
            return uuid.UUID(self.text(name))
        except ValueError:
            raise self.error(name, "a UUID") from None

    def settings(self, name: str) -> dict[str, str]:
        value = self._content.get(name)
        if not isinstance(value, dict) or not all(type(each) is str for each in value.values()):
            raise self.error(name, "an object whose values are texts")
        return value

    def node_ids(self, name: str) -> tuple[int, ...]:
        """Return a list of node ids without repetitions; a missing field is an empty list."""
        value = self._content.get(name, [])
        is_valid = isinstance(value, list) and all(type(each) is int and 0 <= each <= _INT_32 for each in value)
        if not is_valid or len(set(value)) != len(value):
            raise self.error(name, "a list of different node ids")
        return tuple(value)

    def objects(self, name: str) -> list[Fields]:
        value = self._content.get(name)
        if not isinstance(value, list):
            raise self.error(name, "a list")
        return [Fields(self._path, each) for each in value]

    def object(self, name: str) -> Fields:
        return Fields(self._path, self._content.get(name))

    def error(self, name: str, expected: str) -> UnreadableZnodeError:
        """Return the error for a field that is not valid."""
        shown = repr(self._content.get(name))
        if len(shown) > 100:
            shown = f"{shown[:100]}..."
        return UnreadableZnodeError(f"znode {self._path}: field {name!r} is {shown}; it must be {expected}")


# Cluster, brokers, controller


def format_cluster_id(cluster_id: str) -> bytes:
    return encode({"id": cluster_id})


def parse_cluster_id(data: bytes) -> str:
    return Fields.of(CLUSTER_ID, data).text("id")


def format_endpoint(endpoint: BrokerEndpoint) -> bytes:
    return encode(endpoint._asdict())


def parse_endpoint(path: str, data: bytes) -> BrokerEndpoint:
    fields = Fields.of(path, data)
    return BrokerEndpoint(
        fields.text("host"),
        fields.number("port", 0, 65535),
        fields.text_or_none("rack"),
        fields.number("session_timeout_ms", 0, _INT_32),
    )


def format_condition(condition: BrokerCondition) -> bytes:
    return encode(condition._asdict())


def parse_condition(path: str, data: bytes) -> BrokerCondition:
    fields = Fields.of(path, data)
    return BrokerCondition(fields.flag("lost_tail"), fields.flag("is_leaving"))


def format_claim(claim: ControllerClaim) -> bytes:
    return encode(claim._asdict())


def parse_claim(data: bytes) -> ControllerClaim:
    fields = Fields.of(CONTROLLER, data)
    return ControllerClaim(fields.number("node_id", 0, _INT_32), fields.number("epoch", 0, _INT_32))


def format_controller_epoch(epoch: int) -> bytes:
    return encode({"epoch": epoch})


def parse_controller_epoch(data: bytes) -> int:
    return Fields.of(CONTROLLER_EPOCH, data).number("epoch", 0, _INT_32 - 1)


def format_producer_ids(next_id: int) -> bytes:
    return encode({"next": next_id})


def parse_producer_ids(data: bytes) -> int:
    return Fields.of(PRODUCER_IDS, data).number("next", 0, _INT_64)


def format_settings(settings: Mapping[str, str]) -> bytes:
    return encode({"settings": dict(settings)})


def parse_settings(path: str, data: bytes) -> dict[str, str]:
    return Fields.of(path, data).settings("settings")


# Topics and partitions


def topic_content(topic: ClusterTopic) -> dict[str, Any]:
    return {
        "id": str(topic.id),
        "partitions": topic.partition_count,
        "min_insync": topic.min_insync,
        "settings": dict(topic.settings),
    }


def format_topic(topic: ClusterTopic) -> bytes:
    return encode(topic_content(topic))


def parse_topic(name: str, data: bytes, version: int) -> ClusterTopic:
    return topic_of(name, Fields.of(topic_path(name), data), version)


def topic_of(name: str, fields: Fields, version: int) -> ClusterTopic:
    """Return the topic that these fields describe. `version` is the version of its znode."""
    try:
        check_topic(name)
    except StratalogError as error:
        raise UnreadableZnodeError(f"znode {topic_path(name)}: {error}") from error
    return ClusterTopic(
        name,
        fields.uuid("id"),
        fields.number("partitions", 1, MOST_PARTITIONS),
        fields.settings("settings"),
        fields.number("min_insync", 1, _INT_32),
        version,
    )


def state_content(state: PartitionState) -> dict[str, Any]:
    """Return a partition's state without its partition epoch, which is the version of its znode."""
    content: dict[str, Any] = {
        "replicas": state.replicas,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "leader_broker_epoch": state.leader_broker_epoch,
        "isr": state.isr,
        "min_insync": state.min_insync,
    }
    rare = {"elr": state.elr, "adding": state.adding, "removing": state.removing}
    content |= {name: replicas for name, replicas in rare.items() if replicas}
    if state.last_known_leader != NO_LEADER:
        content["last_known_leader"] = state.last_known_leader
    return content


def format_state(state: PartitionState) -> bytes:
    return encode(state_content(state))


def parse_state(path: str, data: bytes, version: int) -> PartitionState:
    return state_of(Fields.of(path, data), version)


def state_of(fields: Fields, version: int) -> PartitionState:
    """Return the state that these fields describe. `version` is the version of its znode."""
    state = PartitionState(
        replicas=fields.node_ids("replicas"),
        leader=fields.number("leader", NO_LEADER, _INT_32),
        leader_epoch=fields.number("leader_epoch", -1, _INT_32),
        isr=fields.node_ids("isr"),
        leader_broker_epoch=fields.number("leader_broker_epoch", -1, _INT_64),
        elr=fields.node_ids("elr"),
        last_known_leader=fields.number("last_known_leader", NO_LEADER, _INT_32, NO_LEADER),
        adding=fields.node_ids("adding"),
        removing=fields.node_ids("removing"),
        min_insync=fields.number("min_insync", 1, _INT_32),
        partition_epoch=version,
    )
    if not state.replicas:
        raise fields.error("replicas", "a list with at least one node id")
    for name in ("isr", "elr", "adding", "removing"):
        if not set(getattr(state, name)) <= set(state.replicas):
            raise fields.error(name, f"a part of the replicas {list(state.replicas)}")
    if state.has_leader and state.leader not in state.isr:
        raise fields.error("leader", f"{NO_LEADER}, or a member of the ISR {list(state.isr)}")
    if set(state.isr) & set(state.elr):
        raise fields.error("elr", f"a list without members of the ISR {list(state.isr)}")
    if not set(state.replicas) - set(state.removing):
        raise fields.error("removing", f"less than all of the replicas {list(state.replicas)}")
    return state
