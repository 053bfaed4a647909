"""A broker in a process of its own, killed with SIGKILL: acknowledged states of groups survive."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from struct import pack, unpack
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.encoding import compile_encoder
from tests.broker.groups.members import PROTOCOLS
from tests.broker.process import BrokerProcess

KILLS = 3
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 4}


class Client:
    """A connection that uses versions with the old headers, without tagged fields."""

    VERSIONS = {  # noqa: RUF012
        ApiKey.CREATE_TOPICS: 2,
        ApiKey.JOIN_GROUP: 3,
        ApiKey.SYNC_GROUP: 1,
        ApiKey.HEARTBEAT: 1,
        ApiKey.OFFSET_COMMIT: 7,
        ApiKey.OFFSET_FETCH: 5,
    }

    def __init__(self, broker: BrokerProcess) -> None:
        self._socket = socket.create_connection(("127.0.0.1", broker.port), timeout=30)

    def ask(self, key: ApiKey, **fields: Any) -> Any:
        version = self.VERSIONS[key]
        frame = bytearray(pack(">hhih", key, version, 1, -1))
        compile_encoder(load_request_schema(int(key), version))(frame, fields)
        self._socket.sendall(pack(">i", len(frame)) + frame)
        (size,) = unpack(">i", self._read(4))
        response, _ = entity_reader(load_response_schema(int(key), version))(memoryview(self._read(size))[4:], 0)
        return response

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, "the broker closed the connection"
            data += more
        return data

    def close(self) -> None:
        self._socket.close()

    def create_topic(self) -> None:
        topic = {"name": "orders", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        answer = self.ask(ApiKey.CREATE_TOPICS, topics=[topic], timeout=30_000, validate_only=False)
        assert answer.topics[0].error_code is ErrorCode.none

    def join_and_sync(self) -> Any:
        protocols = [{"name": name, "metadata": data} for name, data in PROTOCOLS.items()]
        fields = {"session_timeout": 60_000, "rebalance_timeout": 60_000, "member_id": "", "protocol_type": "consumer"}
        joined = self.ask(ApiKey.JOIN_GROUP, group_id="members", protocols=protocols, **fields)
        assert joined.error_code is ErrorCode.none
        assert self.sync(joined, b"mine") == b"mine"
        return joined

    def sync(self, joined: Any, share: bytes = b"") -> bytes:
        assignments = [{"member_id": joined.member_id, "assignment": share}] if share else []
        fields = {"generation_id": joined.generation_id, "member_id": joined.member_id, "assignments": assignments}
        answer = self.ask(ApiKey.SYNC_GROUP, group_id="members", **fields)
        assert answer.error_code is ErrorCode.none
        assert isinstance(answer.assignment, bytes)
        return answer.assignment

    def commit(self, group_id: str, offset: int, generation: int = -1, member_id: str = "") -> None:
        one = {"partition_index": 0, "committed_offset": offset, "committed_metadata": str(offset)}
        topics = [{"name": "orders", "partitions": [one]}]
        who = {"generation_id_or_member_epoch": generation, "member_id": member_id}
        answer = self.ask(ApiKey.OFFSET_COMMIT, group_id=group_id, topics=topics, **who)
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none

    def committed(self, group_id: str) -> tuple[int, str]:
        """Retry the request while the broker loads its groups."""
        while True:
            topics = [{"name": "orders", "partition_indexes": [0]}]
            answer = self.ask(ApiKey.OFFSET_FETCH, group_id=group_id, topics=topics)
            if answer.error_code is not ErrorCode.coordinator_load_in_progress:
                one = answer.topics[0].partitions[0]
                return one.committed_offset, one.metadata


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", SETTINGS) as running:
        yield running


def test_acknowledged_members_and_offsets_survive_a_kill(broker: BrokerProcess) -> None:
    client = Client(broker)
    client.create_topic()
    member = client.join_and_sync()
    for kill in range(KILLS):
        for number in range(20):
            last = 100 * kill + number
            client.commit(f"simple-{number % 7}", last)
            client.commit("members", last, member.generation_id, member.member_id)
        broker.kill()
        client.close()
        broker.start()
        client = Client(broker)
        assert client.committed("members") == (last, str(last))
        for number in range(7):
            expected = 100 * kill + max(each for each in range(20) if each % 7 == number)
            assert client.committed(f"simple-{number}") == (expected, str(expected))
        beat = {"generation_id": member.generation_id, "member_id": member.member_id}
        assert client.ask(ApiKey.HEARTBEAT, group_id="members", **beat).error_code is ErrorCode.none
        assert client.sync(member) == b"mine"
    client.close()
    assert broker.errors() == []
