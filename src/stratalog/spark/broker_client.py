"""One client per process and settings. A Python worker reads many ranges, one task after the other, over the same
connections. The client is created at its first use, and again after a fork. It is closed when it has been idle for a
while, so that idle workers do not try to reach a broker that is away."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from stratalog.client.cluster import Cluster
from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.io_thread import IoThread

T = TypeVar("T")
Key = tuple[tuple[str, str], ...]
_KEPT_SECONDS = 30.0
_CLOSE_SECONDS = 5.0


class BrokerClient:
    """A client, created by `using`. The pool changes the last three attributes under its lock."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self.settings = ConsumerSettings.parse(dict(kafka))
        self.io = IoThread(f"spark source {self.settings.client_id}")
        self.cluster = Cluster(self.settings, allow_auto_create_topics=False)
        self.users = 0
        self.last_used = 0.0
        self.is_watched = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. Call from any thread except the client's own. An interrupt of the wait
        cancels the coroutine."""
        return self.io.run(coroutine)

    def close(self) -> None:
        self.io.close(self.cluster.close(), _CLOSE_SECONDS)


_lock = threading.Lock()
_clients: dict[Key, BrokerClient] = {}


@contextmanager
def using(kafka: Mapping[str, str]) -> Iterator[BrokerClient]:
    """Yield the process's client with these settings."""
    key = tuple(sorted(kafka.items()))
    with _lock:
        client = _clients.get(key)
        if client is None or client.io.unusable is not None:
            client = _clients[key] = BrokerClient(kafka)
        client.users += 1
    try:
        yield client
    finally:
        with _lock:
            client.users -= 1
            client.last_used = time.monotonic()
            if not client.is_watched and client.io.unusable is None:
                client.is_watched = True
                client.io.call_soon(_watch, key, client)


def _watch(key: Key, client: BrokerClient) -> None:
    """Close the client if it is idle. Runs in the client's thread, periodically, so that a use needs no wake-up."""
    with _lock:
        idle = time.monotonic() - client.last_used
        if _clients.get(key) is not client:
            return
        if client.users or idle < _KEPT_SECONDS:
            client.io.loop.call_later(_KEPT_SECONDS, _watch, key, client)
            return
        del _clients[key]
    _retiring.add(task := client.io.loop.create_task(_close_from_within(client)))
    task.add_done_callback(_retiring.discard)


async def _close_from_within(client: BrokerClient) -> None:
    await client.cluster.close()
    client.io.close()


_retiring: set[asyncio.Task[None]] = set()


def close_all() -> None:
    """Close all clients that are not in use. For tests, and for processes that will be idle for long."""
    with _lock:
        idle = {key: client for key, client in _clients.items() if not client.users}
        for key in idle:
            del _clients[key]
    for client in idle.values():
        client.close()
