"""The composition root: puts a broker together, starts it, stops it.

    broker = await Broker.start(data_dir, BrokerConfig.parse({...}), "127.0.0.1", 9092)
    ...
    await broker.stop()

Stopping answers what is under way, flushes every log and writes the marker of a clean shutdown. A broker that is killed
instead loses nothing that it acknowledged: the next start reads the tails of its logs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from stratalog.broker.apis.fetch import FetchApi
from stratalog.broker.apis.list_offsets import ListOffsetsApi
from stratalog.broker.apis.metadata import MetadataApi
from stratalog.broker.apis.produce import ProduceApi
from stratalog.broker.apis.versions import VersionsApi
from stratalog.broker.counters import Counters
from stratalog.broker.dispatch import Dispatcher
from stratalog.broker.fetch_sessions import FetchSessions
from stratalog.broker.metadata.store import MetadataStore
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.requests import Handler
from stratalog.broker.settings import Address, BrokerConfig
from stratalog.clock import Clock, SystemClock
from stratalog.net.server import Limits, Server
from stratalog.protocol.api_keys import ApiKey
from stratalog.storage.disk import Disk
from stratalog.storage.log_directory import LogDirectory

logger = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_SECONDS = 5.0


class Broker:
    def __init__(self, data_dir: Path, config: BrokerConfig, clock: Clock) -> None:
        """Opens the data directory and its metadata; start() is for users."""
        self.config = config
        self.counters = Counters()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._listened = Address("", 0)
        disk = Disk()
        self.directory = LogDirectory.open(
            data_dir, config.log_defaults, directory_config=config.directory, disk=disk, clock=clock
        )
        try:
            self._background = ThreadPoolExecutor(1, thread_name_prefix="stratalog-background")
            self.store = MetadataStore(self.directory.path, disk)
            self.cluster_id = self.store.identity(config.node_id)
            self.topics = TopicRegistry(
                self.directory,
                self.store,
                lambda: self.config.log_defaults,
                most_partitions=config.stratalog_max_partitions,
                on_loop=self._on_loop,
            )
            self._compose()
        except BaseException:
            self.directory.close()
            raise

    def _compose(self) -> None:
        config = self.config
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, self._clock)
        self.fetch = FetchApi(
            self.topics,
            self.fetch_sessions,
            self.counters,
            max_bytes=lambda: self.config.fetch_max_bytes,
            longest_wait=config.connections_max_idle_ms / 1000,
        )
        dispatcher = Dispatcher(
            ProduceApi(self.topics, self.counters),
            self.fetch,
            self._routes(),
            self.counters,
            self._clock,
            largest_request=config.socket_request_max_bytes,
        )
        limits = Limits(
            idle_seconds=config.connections_max_idle_ms / 1000,
            connections=config.max_connections,
            connections_per_host=config.max_connections_per_ip,
            backlog=config.socket_listen_backlog_size,
            send_buffer=config.socket_send_buffer_bytes,
            receive_buffer=config.socket_receive_buffer_bytes,
        )
        self.server = Server(dispatcher.serve, dispatcher.largest_frame, limits, small_frame=dispatcher.small_frame)

    def _routes(self) -> dict[ApiKey, Handler]:
        families = (
            VersionsApi(),
            MetadataApi(self.topics, self.config, self.cluster_id, self.address, self.run_in_background),
            ListOffsetsApi(self.topics),
        )
        routes: dict[ApiKey, Handler] = {}
        for family in families:
            routes |= family.routes()
        return routes

    @classmethod
    async def start(
        cls,
        data_dir: str | Path,
        config: BrokerConfig,
        host: str,
        port: int,
        *,
        clock: Clock | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Broker:
        """Serves when it returns. `progress(done, total)` is called for each log that is opened."""
        broker = cls(Path(data_dir), config, clock or SystemClock())
        try:
            broker.topics.load(progress)
            broker._listened = Address(host, broker.server.listen(host, port))
        except BaseException:
            await broker.stop()
            raise
        return broker

    @property
    def port(self) -> int:
        return self._listened.port

    def address(self) -> Address:
        """What clients are told to connect to."""
        if self.config.advertised_address is not None:
            return self.config.advertised_address
        host, port = self._listened
        return Address(socket.gethostname() if host in ("", "0.0.0.0", "::") else host, port)

    def run_in_background(self, call: Callable[[], T]) -> Awaitable[T]:
        """Of what takes long, one at a time."""
        return self._loop.run_in_executor(self._background, call)

    def _on_loop(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    async def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Answer what is under way, let go of clients, flush and close everything."""
        self.server.stop_listening()
        self.fetch.drain()
        await self.server.close(grace_seconds)
        await self._loop.run_in_executor(None, self._background.shutdown)
        await self._loop.run_in_executor(None, self.directory.close)
