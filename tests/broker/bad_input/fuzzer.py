"""Frames of all keys and versions that a broker has to survive. Half of them make sense before they are damaged.

Frame n of a seed is always the same, whichever frames were made before it, so a frame that caused a failure can be sent
again alone. Only the ids of topics and members depend on the broker.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin
from uuid import UUID

from kio.index import load_request_schema
from kio.serial import entity_writer
from kio.static.primitive import Records

from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.records.builder import build_batch
from tests.broker.bad_input.damage import damage, damage_lengths
from tests.protocol.kio_messages import framed, request_header

KINDS = [
    (key, version)
    for key, versions in VERSIONS.items()
    for version in range(max(versions.lowest, 3) if key is ApiKey.PRODUCE else versions.lowest, versions.highest + 1)
]
_KEYS = [*ApiKey, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.FETCH, *[ApiKey.CONSUMER_GROUP_HEARTBEAT] * 3]
_BY_KEY = {key: [kind for kind in KINDS if kind[0] is key] for key in ApiKey}
_INT_RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_STRANGE_NAMES = (
    "",
    ".",
    "..",
    "a/b",
    "a\0b",
    "x" * 250,
    "x" * 249,
    "no-such-topic",
    "ünïcode",
    "__consumer_offsets",
    "*",
)
_STRANGE_SIZES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x07", b"\0\x40\0\0", b"GET ")
_PATTERNS = ("fuzz.*", "(a*)*b", "[", "x{1000}", "\\p{L}+", "(" * 50 + ")" * 50, "^fuzz-[0-9]+$")
_CONFIGS = (
    ("retention.ms", "100000"),
    ("cleanup.policy", "compact"),
    ("segment.bytes", "-1"),
    ("compression.type", "zstd"),
    ("message.timestamp.type", "LogAppendTime"),
    ("fetch.max.bytes", "100000"),  # of the broker
    ("no.such", "x"),
)


_NEW_GROUPS = ("fuzz-consumers-1", "fuzz-consumers-2")
_NEW_MEMBERS = ("fuzz-member-1", "fuzz-member-2", "fuzz-member-3")
_OF_NEW_GROUPS = (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE)


@dataclass
class World:
    """The topics, groups and members of the broker, for requests."""

    topics: list[str]
    topic_ids: list[UUID]
    groups: list[str]
    members: list[str]  # one of each group


class Fuzzer:
    def __init__(self, seed: int, world: World) -> None:
        self.seed = seed
        self.world = world

    def frame(self, number: int) -> bytes:
        """Return frame `number` with its size."""
        chance = random.Random(f"{self.seed}/{number}")
        payload = self._payload(chance)
        if chance.random() < 0.1:
            payload = _spliced(chance, payload, self._payload(chance))
        if chance.random() < 0.35:
            payload = damage(chance, payload)
        if chance.random() < 0.001:
            return chance.choice(_STRANGE_SIZES) + payload
        return framed(payload)

    def _payload(self, chance: random.Random) -> bytes:
        key, version = chance.choice(_BY_KEY[chance.choice(_KEYS)])
        body = self.body(key, version, chance)
        if chance.random() < 0.15:
            body = damage_lengths(chance, body, _schema(key, version)[0])
        said_key, said_version = int(key), version
        if chance.random() < 0.02:
            said_key = chance.choice((*VERSIONS, -1, 4, 17, 36, 71, 2**15 - 1))
        if chance.random() < 0.02:
            said_version = chance.choice((-1, 0, version + 1, 99, 2**15 - 1))
        client_id = chance.choice((None, "", "fuzz", "fuzz", "x" * 300))
        return request_header(said_key, said_version, correlation_id=chance.getrandbits(31), client_id=client_id) + body

    def body(self, key: ApiKey, version: int, chance: random.Random) -> bytes:
        schema, write = _schema(key, version)
        out = io.BytesIO()
        write(out, _Values(self.world, key, chance).entity(schema))
        return out.getvalue()


@cache
def _schema(key: ApiKey, version: int) -> tuple[type[Any], Callable[[io.BytesIO, Any], None]]:
    schema = load_request_schema(int(key), version)
    return schema, entity_writer(schema)


class Member(NamedTuple):
    """A field of a schema."""

    name: str
    kind: str
    entity: type[Any] | None  # None: a scalar, or an array of those
    is_array: bool
    is_nullable: bool
    is_tagged: bool
    is_of_config: bool
    default: Any


@cache
def members(schema: type[Any]) -> list[Member]:
    is_of_config = "config" in schema.__name__.lower()
    return [_member(each, is_of_config) for each in fields(schema)]


def _member(field: Field[Any], is_of_config: bool) -> Member:
    is_nullable = NoneType in get_args(field.type) and get_origin(field.type) is not tuple
    kind = next(each for each in get_args(field.type) if each is not NoneType) if is_nullable else field.type
    is_array = get_origin(kind) is tuple
    element = get_args(kind)[0] if is_array else kind
    entity = element if is_dataclass(element) else None
    kafka_type = field.metadata.get("kafka_type", "")
    is_tagged = "tag" in field.metadata
    return Member(field.name, kafka_type, entity, is_array, is_nullable, is_tagged, is_of_config, field.default)  # type: ignore[arg-type]


_SANE: dict[str, tuple[Any, ...]] = {
    "acks": (-1, -1, 0, 1),
    "config_operation": (0, 0, 1, 2, 3),
    "count": (2, 3, 4, 5),
    "current_leader_epoch": (-1, -1, 0),
    "epoch": (-1, 0, 1),
    "generation_id": (1, 1, 2, 3, -1),
    "generation_id_or_member_epoch": (-1, -1, 1, 2, 3),
    "group_instance_id": ("instance-1", "instance-2", None, None),
    "instance_id": ("instance-1", "instance-2", None, None),
    "isolation_level": (0, 0, 1),
    "last_fetched_epoch": (-1, -1, 0),
    "leader_epoch": (-1, 0),
    "max_bytes": (1000, 10**6, 2**31 - 1),
    "max_wait": (0, 0, 1, 10),
    "member_epoch": (0, 0, 1, 2, 3, -1, -2),
    "min_bytes": (0, 1, 1, 100),
    "num_partitions": (1, 2, 3, -1),
    "partition_max_bytes": (1000, 10**6, 2**31 - 1),
    "producer_epoch": (-1, -1, 0),
    "producer_id": (-1, -1, 0, 1),
    "protocol_name": ("range",),
    "protocol_type": ("consumer",),
    "rebalance_timeout": (1, 10, 100),
    "replica_id": (-1,),
    "replication_factor": (-1, 1),
    "resource_type": (2, 2, 2, 4),
    "server_assignor": ("uniform", "range", None),
    "session_epoch": (-1, -1, 0, 0, 1),
    "session_id": (0,),
    "session_timeout": (6000, 45_000),
    "subscribed_topic_regex": (None, None, "fuzz.*", "fuzz-[12]"),
    "timestamp": (-1, -2, -3, 0, 10**12),
    "transactional_id": (None,),
}
_ODD: dict[str, tuple[Any, ...]] = {
    "acks": (7,),
    "count": (-1, 0, 10_001, 2**31 - 1),
    "isolation_level": (9,),
    "max_bytes": (0, -1),
    "max_wait": (-1, 45_000),
    "member_epoch": (5, 2**31 - 1),
    "num_partitions": (0, 10_001, 2**31 - 1),
    "partition_max_bytes": (0, -1),
    "protocol_name": ("roundrobin", ""),
    "protocol_type": ("connect", ""),
    "rebalance_timeout": (-1, 45_000, 2**31 - 1),
    "replica_id": (0, 1, 2),
    "replication_factor": (3, 0),
    "resource_type": (8, 16, 32, 0),
    "server_assignor": ("nobody", ""),
    "session_id": (1, -1),
    "session_timeout": (-1, 0, 2**31 - 1),
    "subscribed_topic_regex": _PATTERNS,
    "timestamp": (-4, -5, -7, -(2**63)),
    "transactional_id": ("transaction", ""),
}


class _Values:
    """Values for the fields of one request. Half of the requests make sense in every field; the others may not."""

    def __init__(self, world: World, key: ApiKey, chance: random.Random) -> None:
        self._world = world
        self._key = key
        self._chance = chance
        self._is_strange = chance.random() < 0.5
        self._group = chance.randrange(len(world.groups))
        self._is_of_new_group = chance.random() < (0.9 if key in _OF_NEW_GROUPS else 0.2)  # of KIP-848
        self._by_name: dict[str, Callable[[], Any]] = {
            "assignment": self._bytes,
            "committed_offset": self._offset,
            "fetch_offset": self._offset,
            "member_id": self._member_id,
            "offset": self._offset,
            "records": self._records,
            "topic_id": self._topic_id,
        }

    def _odd(self, share: float) -> bool:
        return self._is_strange and self._chance.random() < share

    def entity(self, schema: type[Any]) -> Any:
        return schema(**{member.name: self._field(member) for member in members(schema)})  # type: ignore[arg-type]

    def _field(self, member: Member) -> Any:
        chance = self._chance
        if member.is_tagged and chance.random() < 0.7:
            return member.default
        if member.is_nullable and chance.random() < 0.15:
            return None
        count = chance.choice((0, 1, 1, 1, 2, 3)) if member.is_array else 1
        if member.entity is not None:
            values = [self.entity(member.entity) for _ in range(count)]
        else:
            values = [self._scalar(member) for _ in range(count)]
        return tuple(values) if member.is_array else values[0]

    def _scalar(self, member: Member) -> Any:
        name, kind = member.name, member.kind
        if not self._odd(0.1):
            if name in _SANE:
                choices = _SANE[name] + (_ODD.get(name, ()) if self._is_strange else ())
                return self._fitted(member, self._chance.choice(choices))
            made = self._by_name.get(name)
            if made is not None:
                return made()
        if kind in _INT_RANGES:
            return self._integer(name, _INT_RANGES[kind])
        if kind.startswith("timedelta"):
            return timedelta(milliseconds=self._chance.choice((-1, 0, 1, 5, 20, 20, 6000, 45_000)))
        if kind == "string":
            return self._string(member)
        if kind == "bool":
            return self._chance.random() < 0.5
        if kind == "float64":
            return self._chance.choice((0.0, 1.5, -1.0, 1e308, float("inf"), float("nan")))
        return self._topic_id() if kind == "uuid" else self._bytes()

    def _fitted(self, member: Member, value: Any) -> Any:
        """Convert a value for a field that has another type in some API."""
        if member.kind.startswith("timedelta"):
            return timedelta(milliseconds=value)
        if member.kind == "string":
            return value if value is not None or member.is_nullable else ""
        return max(min(value, 2 ** _INT_RANGES[member.kind] - 1), -(2 ** _INT_RANGES[member.kind]))

    def _integer(self, name: str, bits: int) -> int:
        if "partition" in name or name == "index":
            return self._chance.choice((-1, 2**31 - 1) if self._odd(0.3) else (0, 0, 0, 1, 2))
        if not self._odd(0.4):
            return self._chance.choice((-1, 0, 1, 2, 3))
        return self._chance.choice((2**bits - 1, -(2**bits), self._chance.randrange(-(2**bits), 2**bits)))

    def _string(self, member: Member) -> str:
        chance, world, name = self._chance, self._world, member.name
        if self._odd(0.4):
            return chance.choice(_STRANGE_NAMES)
        if "group" in name or name in ("key", "coordinator_keys"):
            return chance.choice(_NEW_GROUPS) if self._is_of_new_group else world.groups[self._group]
        if member.is_of_config and "resource" not in name:
            setting = chance.choice(_CONFIGS)
            return setting[0] if "name" in name or "key" in name else setting[1]
        if name == "resource_name":
            return chance.choice((*world.topics, *world.topics, "1", ""))
        if self._key is ApiKey.JOIN_GROUP and name == "name":
            return "range"
        return chance.choice(world.topics)

    def _member_id(self) -> str:
        if self._odd(0.3):
            return self._chance.choice(("somebody", "x" * 200))
        mine = self._chance.choice(_NEW_MEMBERS) if self._is_of_new_group else self._world.members[self._group]
        return self._chance.choice((mine, mine, mine, ""))

    def _topic_id(self) -> UUID | None:
        chance = self._chance
        if self._odd(0.4):
            return None if chance.random() < 0.3 else UUID(int=chance.getrandbits(128))
        return chance.choice(self._world.topic_ids)

    def _offset(self) -> int:
        if self._odd(0.4):
            return self._chance.choice((-1, -2, 2**62, 2**63 - 1, -(2**63)))
        return self._chance.choice((0, 0, 0, 1, 2, 5))

    def _bytes(self) -> bytes:
        chance = self._chance
        subscription = b"\0\1\0\0\0\1\0\6fuzz-1\xff\xff\xff\xff\0\0\0\0"
        return chance.choice((b"", subscription, chance.randbytes(chance.randrange(40))))

    def _records(self) -> Records:
        chance = self._chance
        values = [(b"key", chance.randbytes(chance.randrange(50))) for _ in range(chance.choice((1, 1, 2, 5)))]
        is_idempotent = chance.random() < 0.3
        batch: bytes = bytes(
            build_batch(
                values,
                codec=chance.choice(_CODECS),
                producer_id=chance.choice((0, 1, 7)) if is_idempotent else -1,
                producer_epoch=0 if is_idempotent else -1,
                base_sequence=chance.choice((0, 1, 5, 2**31 - 1)) if is_idempotent else -1,
                is_transactional=is_idempotent and chance.random() < 0.1,
            )
        )
        draw = chance.random()
        if draw < 0.25:
            batch = damage(chance, batch)
        elif draw < 0.3:
            batch += batch
        return Records(batch if chance.random() < 0.97 else b"")


def _spliced(chance: random.Random, one: bytes, other: bytes) -> bytes:
    """Join the beginning of one frame and the end of another."""
    return one[: chance.randrange(len(one) + 1)] + other[chance.randrange(len(other) + 1) :]
