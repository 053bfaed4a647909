"""The group APIs over a coordinator in the test's hands: requests go in as bytes and come out as kio's entities."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from stratalog.broker.apis.committed_offsets import CommittedOffsetApis
from stratalog.broker.apis.coordinators import CoordinatorApi
from stratalog.broker.apis.groups import GroupApis
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.metadata.store import Topic
from stratalog.broker.requests import Handler, RequestContext
from stratalog.broker.settings import Address
from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.encoding import compile_encoder
from stratalog.protocol.messages import decode_request, encode_reply
from tests.broker.groups.manual_coordinator import ListLog, ManualCoordinator
from tests.broker.groups.members import PROTOCOLS

ADDRESS = Address("broker.example", 9092)


class TopicTable:
    def __init__(self, *topics: Topic) -> None:
        self.topics = {topic.name: topic for topic in topics}

    def get(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return next((topic for topic in self.topics.values() if topic.id == topic_id), None)


class GroupLab:
    """`loads`: the coordinator has read its log before the first request."""

    def __init__(
        self, config: GroupConfig | None = None, offsets_log: ListLog | None = None, *, loads: bool = True
    ) -> None:
        self._must_load = loads
        self.orders = Topic("orders", uuid.UUID(int=1), 4)
        self.payments = Topic("payments", uuid.UUID(int=2), 2)
        self.topics = TopicTable(self.orders, self.payments)
        self.coordinator = ManualCoordinator(config, offsets_log)
        self._handlers: dict[ApiKey, Handler] = {
            **GroupApis(self.coordinator).routes(),
            **CommittedOffsetApis(self.coordinator, self.topics).routes(),
            **CoordinatorApi(7, lambda: ADDRESS).routes(),
        }

    async def ask(self, key: ApiKey, version: int | None = None, /, **fields: Any) -> Any:
        """The answer, as a client of this version (the newest, if none is given) reads it."""
        if self._must_load:
            self._must_load = False
            await self.coordinator.load()
        version = VERSIONS[key].highest if version is None else version
        body = bytearray()
        compile_encoder(load_request_schema(int(key), version))(body, fields)
        request = decode_request(key, version, memoryview(bytes(body)))
        reply = self._handlers[key](request, RequestContext(key, version, "lab", "127.0.0.1"))
        if inspect.isawaitable(reply):
            reply = await reply
        assert isinstance(reply, dict)
        answer = bytes(encode_reply(key, version, reply))
        response, end = entity_reader(load_response_schema(int(key), version))(memoryview(answer), 0)
        assert end == len(answer)
        return response

    async def pass_time(self, milliseconds: int) -> None:
        """Let what was asked get to where it waits, then let time pass, then let answers arrive."""
        await settle()
        self.coordinator.timers.advance(milliseconds)
        await settle()

    def join(self, version: int | None = None, member_id: str = "", **changes: Any) -> asyncio.Task[Any]:
        fields: dict[str, Any] = {
            "group_id": "g",
            "session_timeout": 10_000,
            "rebalance_timeout": 60_000,
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": data} for name, data in PROTOCOLS.items()],
            **changes,
        }
        return asyncio.ensure_future(self.ask(ApiKey.JOIN_GROUP, version, **fields))

    async def joined(self, version: int | None = None, **changes: Any) -> Any:
        """The answer to a member that joins alone, whatever it takes in this version."""
        join = self.join(version, **changes)
        await self.pass_time(3_000)
        answer = await join
        if answer.error_code.name == "member_id_required":
            join = self.join(version, answer.member_id, **changes)
            await self.pass_time(3_000)
            answer = await join
        return answer

    async def stable(self, version: int | None = None, **changes: Any) -> Any:
        """A stable group of one member with the share b"all"; the answer to its join."""
        answer = await self.joined(version, **changes)
        synced = await self.sync(answer.member_id, answer.generation_id, {answer.member_id: b"all"}, 4)
        assert synced.error_code.name == "none"
        return answer

    async def sync(
        self,
        member_id: str,
        generation: int,
        shares: dict[str, bytes] | None = None,
        version: int | None = None,
        **changes: Any,
    ) -> Any:
        assignments = [{"member_id": name, "assignment": share} for name, share in (shares or {}).items()]
        fields = {"generation_id": generation, "member_id": member_id, "assignments": assignments}
        protocol = {"protocol_type": "consumer", "protocol_name": "range"}
        return await self.ask(ApiKey.SYNC_GROUP, version, group_id="g", **{**fields, **protocol, **changes})

    async def commit(
        self, offset: int, *, version: int | None = None, group_id: str = "g", partition: int = 0, **changes: Any
    ) -> Any:
        """The error of committing one offset of the topic orders."""
        one = {"partition_index": partition, "committed_offset": offset, "committed_metadata": "said", **changes}
        fields = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time": -1}
        topic = {"name": "orders", "topic_id": self.orders.id, "partitions": [one]}
        answer = await self.ask(
            ApiKey.OFFSET_COMMIT, version, **{"group_id": group_id, "topics": [topic], **fields, **changes}
        )
        return answer.topics[0].partitions[0].error_code

    async def committed(self, group_id: str = "g", partition: int = 0) -> int:
        answer = await self.ask(
            ApiKey.OFFSET_FETCH, 7, group_id=group_id, topics=[{"name": "orders", "partition_indexes": [partition]}]
        )
        offset: int = answer.topics[0].partitions[0].committed_offset
        return offset


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def versions(key: ApiKey) -> range:
    return range(VERSIONS[key].lowest, VERSIONS[key].highest + 1)
