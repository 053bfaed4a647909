"""A data directory with topics, and the admin APIs over it. Requests are passed as bytes, responses as kio's
entities."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from stratalog.broker.apis.acls import AclApis
from stratalog.broker.apis.cluster import ClusterApis
from stratalog.broker.apis.committed_offsets import CommittedOffsetApis
from stratalog.broker.apis.config_resources import ConfigResourcesApi
from stratalog.broker.apis.controller import ControllerApis
from stratalog.broker.apis.delete_records import DeleteRecordsApi
from stratalog.broker.apis.leader_epochs import LeaderEpochsApi
from stratalog.broker.apis.log_dirs import LogDirsApi
from stratalog.broker.apis.producers import ProducerApis
from stratalog.broker.apis.quotas import QuotaApis
from stratalog.broker.apis.replicas import ReplicaApis
from stratalog.broker.apis.scram import ScramApis
from stratalog.broker.apis.topics import TopicApis
from stratalog.broker.apis.transaction_admin import TransactionAdminApis
from stratalog.broker.apis.transactions import TransactionApis
from stratalog.broker.groups.group_settings import GroupSettings
from stratalog.broker.metadata.embedded import EmbeddedTopics
from stratalog.broker.metadata.membership import OnlyBroker
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.requests import Handler, RequestContext
from stratalog.broker.settings import Address, BrokerConfig
from stratalog.clock import ManualClock
from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.encoding import compile_encoder
from stratalog.protocol.messages import decode_request, encode_reply
from stratalog.storage.disk import Disk
from stratalog.storage.log import Log
from stratalog.storage.log_directory import LogDirectory
from tests.broker.metadata.registry_lab import QuickDisk
from tests.broker.transactions.transaction_lab import TransactionLab

T = TypeVar("T")
START_MS = 1_700_000_000_000
ADDRESS = Address("broker.example", 9092)


class AdminLab:
    def __init__(self, data: Path, disk: Disk | None = None, **settings: object) -> None:
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = BrokerConfig.parse({"log.index.size.max.bytes": 1024, **dotted})
        self.clock = ManualClock(START_MS)
        disk = disk or QuickDisk()
        self.directory = LogDirectory.open(data, disk=disk, clock=self.clock, background=False)
        self.store = MetadataStore(data, disk)
        self.topics = EmbeddedTopics(
            self.directory,
            self.store,
            lambda: self.config.log_defaults,
            most_partitions=self.config.stratalog_max_partitions,
            on_loop=lambda call: call(),
        )
        self.topics.load()
        self.background_calls = 0
        self.before_background: Callable[[], object] = lambda: None  # simulates a request of another client
        self.transactions = TransactionLab(self.topics, self.store, self.clock, self.config, self.run_in_background)
        self.transactions.load()
        self.background_calls = 0
        self.group_settings = GroupSettings(self.store, lambda: self.config.groups)
        self.membership = OnlyBroker("the-cluster", self.config.node_id, lambda: ADDRESS)
        self._handlers: dict[ApiKey, Handler] = {
            **TopicApis(
                self.topics, self.config, self.clock, self.run_in_background, self.run_in_portions, _described
            ).routes(),
            **DeleteRecordsApi(self.topics, self.directory, self.run_in_background).routes(),
            **LogDirsApi(self.topics, data).routes(),
            **ReplicaApis(self.topics, self.config.node_id, data).routes(),
            **ConfigResourcesApi(self.topics, self.membership, self.group_settings).routes(),
            **ControllerApis(self.membership, self.clock).routes(),
            **AclApis().routes(),
            **QuotaApis().routes(),
            **ScramApis().routes(),
            **ClusterApis(self.topics, self.config, self.membership).routes(),
            **ProducerApis(self.topics, self.transactions.ids, self.transactions.coordinator).routes(),
            **TransactionApis(
                self.transactions.coordinator, self.transactions.groups, self.topics, self.transactions.admission
            ).routes(),
            **TransactionAdminApis(self.transactions.coordinator, self.clock, self.run_in_background).routes(),
            **CommittedOffsetApis(self.transactions.groups, self.topics).routes(),
            **LeaderEpochsApi(self.topics).routes(),
        }

    async def run_in_background(self, call: Callable[[], T], /) -> T:
        self.background_calls += 1
        self.before_background()
        await asyncio.sleep(0)
        return call()

    async def run_in_portions(self, work: Generator[None, None, T], /) -> T:
        """Run each portion as a call of its own."""
        while True:
            result = await self.run_in_background(lambda: _portion(work))
            if result is not None:
                return result[0]

    async def ask(self, key: ApiKey, version: int, **fields: Any) -> Any:
        """Return the response to a request of this version, as a client parses it."""
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

    def answer(self, key: ApiKey, version: int | None = None, **fields: Any) -> Any:
        """Call ask(), by default with the newest version. Must not run in an event loop."""
        return asyncio.run(self.ask(key, VERSIONS[key].highest if version is None else version, **fields))

    def append(self, topic: str, *batches: bytearray, partition: int = 0) -> Log:
        """Append batches to a partition, and return its log."""
        found = self.topics.partition(topic, partition)
        assert found is not None
        for batch in batches:
            found.append(memoryview(batch))
        return found.log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.directory.close()


def _portion(work: Generator[None, None, T]) -> tuple[T] | None:
    try:
        next(work)
    except StopIteration as done:
        return (done.value,)
    return None


def versions(key: ApiKey) -> range:
    return range(VERSIONS[key].lowest, VERSIONS[key].highest + 1)


def together(*calls: Awaitable[Any]) -> list[Any]:
    async def gather() -> list[Any]:
        return list(await asyncio.gather(*calls))

    return asyncio.run(gather())


def _described(settings: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"name": name, "value": value, "read_only": False, "config_source": 1, "is_sensitive": False}
        for name, value in settings.items()
    ]
