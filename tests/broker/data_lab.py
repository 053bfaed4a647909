"""Topics in a data directory, and everything that serves requests for them except sockets: frames in, entities out."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stratalog.broker.apis.fetch import FetchApi
from stratalog.broker.apis.list_offsets import ListOffsetsApi
from stratalog.broker.apis.metadata import MetadataApi
from stratalog.broker.apis.own import OwnApi
from stratalog.broker.apis.produce import ProduceApi
from stratalog.broker.apis.versions import VersionsApi
from stratalog.broker.counters import Counters
from stratalog.broker.dispatch import Dispatcher
from stratalog.broker.due_flushes import DueFlushes
from stratalog.broker.fetch_sessions import FetchSessions
from stratalog.broker.long_polls import LongPolls
from stratalog.broker.metadata.embedded import EmbeddedTopics
from stratalog.broker.metadata.membership import OnlyBroker
from stratalog.broker.metadata.store import MetadataStore, Topic
from stratalog.broker.partition import Partition
from stratalog.broker.requests import Handler
from stratalog.broker.settings import Address, BrokerConfig
from stratalog.broker.worker_threads import WorkerThreads
from stratalog.clock import ManualClock
from stratalog.net.response_queue import Response
from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import ControlType
from stratalog.storage.appending import Origin
from stratalog.storage.file_slice import FileSlice
from stratalog.storage.log_directory import LogDirectory
from tests.broker.metadata.registry_lab import QuickDisk
from tests.broker.transactions.transaction_lab import TransactionLab
from tests.protocol.kio_messages import SIZE, read_response, request_frame

T = TypeVar("T")
START_MS = 1_700_000_000_000
HOST = "192.0.2.7"


class DataLab:
    def __init__(self, data: Path, **settings: object) -> None:
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = BrokerConfig.parse({"log.index.size.max.bytes": 1024, **dotted})
        self.clock = ManualClock(START_MS)
        self.counters = Counters()
        disk = QuickDisk()
        self.directory = LogDirectory.open(data, disk=disk, clock=self.clock, background=False)
        store = MetadataStore(data, disk)
        self.topics = EmbeddedTopics(
            self.directory,
            store,
            lambda: self.config.log_defaults,
            most_partitions=self.config.stratalog_max_partitions,
            on_loop=lambda call: call(),
        )
        self.topics.load()
        self.worker_threads = WorkerThreads()
        self.sessions = FetchSessions(self.config.max_incremental_fetch_session_cache_slots, self.clock)
        self.long_polls = LongPolls(self.config.queued_max_request_bytes)
        self.fetch = FetchApi(
            self.topics,
            self.sessions,
            self.counters,
            self.worker_threads,
            self.long_polls,
            max_bytes=lambda: self.config.fetch_max_bytes,
            longest_wait=30,
        )
        address = Address("broker.example", 9092)
        self.routes: dict[ApiKey, Handler] = {
            **VersionsApi().routes(),
            **ListOffsetsApi(self.topics, self.worker_threads).routes(),
            **MetadataApi(
                self.topics,
                self.config,
                OnlyBroker("cluster", self.config.node_id, lambda: address),
                self.run_in_background,
            ).routes(),
        }
        self.transactions = TransactionLab(self.topics, store, self.clock, self.config, self.run_in_background)
        self.transactions.load()
        self.produce = ProduceApi(
            self.topics, self.counters, self.transactions.admission, self.worker_threads, self.clock
        )
        self.dispatcher = Dispatcher(
            self.produce,
            self.fetch,
            self.routes,
            OwnApi({}),
            self.counters,
            self.clock,
            self.worker_threads,
            DueFlushes(self.worker_threads.wait_for_disk),
            largest_request=self.config.socket_request_max_bytes,
        )

    async def run_in_background(self, call: Callable[[], T], /) -> T:
        await asyncio.sleep(0)
        return call()

    def create(self, name: str, partitions: int = 1, **settings: object) -> Topic:
        dotted = {key.replace("_", "."): str(value) for key, value in settings.items()}
        return self.topics.create(name, partitions, dotted)

    def partition(self, name: str, index: int = 0) -> Partition:
        found = self.topics.partition(name, index)
        assert found is not None
        return found

    def append(self, name: str, *values: bytes, partition: int = 0, **fields: Any) -> bytes:
        """Append a batch, and return its bytes as a reader gets them."""
        batch = build_batch([(None, value) for value in values], **fields)
        self.partition(name, partition).append(memoryview(batch))
        return bytes(batch)

    # Requests

    def serve(self, frame: bytes) -> Any:
        """Return the dispatcher's response to a frame that begins with its size."""
        return self.dispatcher.serve(memoryview(bytearray(frame[SIZE.size :])), HOST)

    async def asking(self, key: ApiKey, values: dict[str, Any], version: int | None = None) -> Any:
        version = VERSIONS[key].highest if version is None else version
        response = self.serve(request_frame(key, version, values, correlation_id=9))
        if inspect.isawaitable(response):
            response = await response
        payload = joined(response)
        assert SIZE.unpack_from(payload)[0] == len(payload) - SIZE.size
        correlation_id, entity = read_response(key, version, payload[SIZE.size :])
        assert correlation_id == 9
        return entity

    def ask(self, key: ApiKey, values: dict[str, Any], version: int | None = None) -> Any:
        """Return the response to a request of the newest version. Must not run in an event loop."""
        return asyncio.run(self.asking(key, values, version))

    def __enter__(self) -> DataLab:
        return self

    def __exit__(self, *_: object) -> None:
        self.worker_threads.close()
        self.directory.close()


def joined(response: Response) -> bytes:
    assert response is not None
    return b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in response)


def end_transaction(lab: DataLab, producer_id: int, how: ControlType, topic: str = "topic") -> None:
    """End a transaction as its coordinator does."""
    marker = build_control_batch(how, producer_id, 0, 0, START_MS)
    lab.partition(topic).log.append(marker, leader_epoch=0, origin=Origin.COORDINATOR)
