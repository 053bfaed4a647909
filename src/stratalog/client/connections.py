"""The connections of one client. Simultaneous callers share one connection attempt, and attempts for a broker back off.

Everything here belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from stratalog.client.backoff import Backoff
from stratalog.client.errors import ClientClosedError, ClientError
from stratalog.client.settings import CommonSettings
from stratalog.errors import ConnectError
from stratalog.net.broker_connection import BrokerConnection

logger = logging.getLogger("stratalog.client")

# Values of the attribute `event` of log records; records that have one also have an `address`.
BROKER_AWAY = "broker away"  # with the `reason`
BROKER_BACK = "broker back"

_LOG_INTERVAL = 10.0  # seconds between warnings about a broker; attempts can be much more frequent


class Purpose(Enum):
    """The use of a connection. A broker answers the requests of a connection in order, so a request that waits would
    delay all requests after it. Each kind of waiting has a connection of its own."""

    DATA = "data"  # Produce, Fetch: a fetch waits for records
    CONTROL = "control"  # requests that do not wait
    COORDINATOR = "coordinator"  # groups and transactions: joining waits for all members


class ConnectionKey(NamedTuple):
    node_id: int
    purpose: Purpose


class _Failures(NamedTuple):
    times: int
    not_before: float


class Connections:
    def __init__(self, settings: CommonSettings, on_lost: Callable[[ConnectionKey], None]) -> None:
        """`on_lost` is called for each connection that failed to open or was lost."""
        self._settings = settings
        self._on_lost = on_lost
        self._backoff = Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self._open: dict[ConnectionKey, BrokerConnection] = {}
        self._attempts: dict[ConnectionKey, asyncio.Task[BrokerConnection]] = {}
        self._failures: dict[tuple[str, int], _Failures] = {}
        self._logged_at: dict[tuple[str, int], float] = {}  # time of the last warning about a broker
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def get(self, key: ConnectionKey, host: str, port: int) -> BrokerConnection:
        """Return the connection under this key, or open it in one attempt. Raises as BrokerConnection.open does."""
        connection = self._open.get(key)
        if connection is not None:
            if (connection.host, connection.port) == (host, port):
                return connection
            connection.close()  # the broker has moved
        if self._is_closed:
            raise ClientClosedError("the client is closed; create a new one")
        attempt = self._attempts.get(key)
        if attempt is None:
            attempt = asyncio.get_running_loop().create_task(self._connect(key, host, port))
            self._attempts[key] = attempt
            attempt.add_done_callback(lambda done: self._forget_attempt(key, done))
        return await asyncio.shield(attempt)

    def established(self, key: ConnectionKey) -> BrokerConnection | None:
        return self._open.get(key)

    def rename(self, key: ConnectionKey, new_key: ConnectionKey) -> None:
        """Move an open connection to another key, unless that key has a connection or an attempt."""
        connection = self._open.get(key)
        if connection is not None and new_key not in self._open and new_key not in self._attempts:
            self._open[new_key] = self._open.pop(key)

    def wait_before(self, host: str, port: int) -> float:
        """Return the seconds until the next attempt is due."""
        failures = self._failures.get((host, port))
        return 0.0 if failures is None else max(0.0, failures.not_before - asyncio.get_running_loop().time())

    def close(self) -> None:
        self._is_closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for attempt in list(self._attempts.values()):
            attempt.cancel()
        for connection in list(self._open.values()):
            connection.close()

    async def _connect(self, key: ConnectionKey, host: str, port: int) -> BrokerConnection:
        await asyncio.sleep(self.wait_before(host, port))
        settings = self._settings
        try:
            connection = await BrokerConnection.open(
                host,
                port,
                client_id=settings.client_id,
                timeout=settings.socket_connection_setup_timeout_ms / 1000,
                most_response_bytes=settings.receive_message_max_bytes,
                send_buffer=settings.send_buffer_bytes,
                receive_buffer=settings.receive_buffer_bytes,
            )
        except ClientError as error:
            self._count_failure(host, port)
            self._log_unreachable(host, port, error)
            self._on_lost(key)
            raise
        self._failures.pop((host, port), None)
        if self._logged_at.pop((host, port), None) is not None:
            event = {"event": BROKER_BACK, "address": f"{host}:{port}"}
            logger.info("the broker at %s:%d is back", host, port, extra=event)
        self._open[key] = connection
        connection.on_close(lambda error: self._forget(connection, error))
        self._watch_for_idle()
        return connection

    def _forget_attempt(self, key: ConnectionKey, attempt: asyncio.Task[BrokerConnection]) -> None:
        del self._attempts[key]
        if not attempt.cancelled():
            attempt.exception()  # retrieved, because all waiting callers may have been cancelled

    def _forget(self, connection: BrokerConnection, _: ClientError) -> None:
        for key in [key for key, candidate in self._open.items() if candidate is connection]:
            del self._open[key]
            if not self._is_closed and not connection.was_closed_here:
                self._count_failure(connection.host, connection.port)
                self._on_lost(key)

    def _count_failure(self, host: str, port: int) -> None:
        before = self._failures.get((host, port))
        times = 1 if before is None else before.times + 1
        now = asyncio.get_running_loop().time()
        self._failures[host, port] = _Failures(times, now + self._backoff.seconds(times))

    def _log_unreachable(self, host: str, port: int, error: ClientError) -> None:
        """Log a warning, so that a client does not wait for a broker silently until its timeouts expire."""
        now = asyncio.get_running_loop().time()
        logged_at = self._logged_at.get((host, port))
        if not self._is_closed and (logged_at is None or now - logged_at >= _LOG_INTERVAL):
            self._logged_at[host, port] = now
            reason = error.reason if isinstance(error, ConnectError) else error.problem
            event = {"event": BROKER_AWAY, "address": f"{host}:{port}", "reason": reason}
            logger.warning("%s; trying again", error, extra=event)

    def _watch_for_idle(self) -> None:
        if self._idle_timer is None and self._open and not self._is_closed:
            seconds = self._settings.connections_max_idle_ms / 1000
            self._idle_timer = asyncio.get_running_loop().call_later(max(0.01, seconds / 4), self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        longest = self._settings.connections_max_idle_ms / 1000
        now = asyncio.get_running_loop().time()
        for connection in list(self._open.values()):
            if not connection.in_flight and now - connection.last_used >= longest:
                connection.close()
        self._watch_for_idle()
