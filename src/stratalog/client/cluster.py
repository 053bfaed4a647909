"""A client's view of the cluster: its metadata, and requests to any of its brokers.

Only `metadata` may be read in any thread; everything else belongs to the event loop's thread.

Metadata is requested on demand, when it is old, when a connection is lost, and when a response shows that it is out of
date. Simultaneous demands share one request. Known brokers are tried first, then the bootstrap servers in random order,
with a back-off, until one of them responds.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any, TypeVar

from stratalog.client.backoff import Backoff
from stratalog.client.connections import ConnectionKey, Connections, Purpose
from stratalog.client.errors import (
    BrokerUnreachableError,
    ClientClosedError,
    ClientError,
    RequestTimeoutError,
    Subject,
    error_of,
)
from stratalog.client.metadata import MetadataSnapshot, Node, TopicInfo, check_topic_name, read_metadata
from stratalog.client.settings import CommonSettings
from stratalog.net.broker_connection import BrokerConnection
from stratalog.protocol.api_keys import ApiKey, OwnApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import decode_response, encode_request

logger = logging.getLogger(__name__)
T = TypeVar("T")

_LOWEST_METADATA = 4  # the first version that says whether the broker may create topics
_COORDINATOR_MOVED = {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available}
_COORDINATOR_CODES = _COORDINATOR_MOVED | {ErrorCode.coordinator_load_in_progress}


class CoordinatorKind(IntEnum):
    GROUP = 0
    TRANSACTION = 1


class Cluster:
    def __init__(self, settings: CommonSettings, *, allow_auto_create_topics: bool = True) -> None:
        self.settings = settings
        self.metadata = MetadataSnapshot()
        self.tracks_all_topics = False  # whether each refresh requests all topics
        self.last_failure: ClientError | None = None  # why the last attempt to get metadata failed
        self._creates_topics = allow_auto_create_topics
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._connections = Connections(settings, self._on_lost)
        self._tracked: dict[str, None] = {}
        self._listeners: list[Callable[[MetadataSnapshot], None]] = []
        self._waiting: list[asyncio.Future[MetadataSnapshot]] = []  # completed by the request after the one in flight
        self._in_flight: list[asyncio.Future[MetadataSnapshot]] = []  # completed by the request in flight
        self._requests_all = False
        self._refreshing: asyncio.Task[None] | None = None
        self._age_timer: asyncio.TimerHandle | None = None
        self._soon_timer: asyncio.TimerHandle | None = None
        self._quick_refreshes = 0  # successive calls of refresh_soon, which back off
        self._last_quick_refresh = float("-inf")
        self._coordinators: dict[tuple[CoordinatorKind, str], Node] = {}
        self._servers = [
            Node(-1 - index, address.host, address.port) for index, address in enumerate(settings.bootstrap_servers)
        ]
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        for timer in (self._age_timer, self._soon_timer):
            if timer is not None:
                timer.cancel()
        if self._refreshing is not None:
            self._refreshing.cancel()
        _complete([*self._in_flight, *self._waiting], ClientClosedError("the client was closed during the call"))
        self._connections.close()

    # MetadataSnapshot

    def track_topics(self, topics: Iterable[str]) -> None:
        """Include these topics in every metadata request from now on. Raises if a name is not valid, because one such
        name would make the request fail for all topics."""
        names = list(topics)
        for name in names:
            check_topic_name(name)
        self._tracked.update(dict.fromkeys(names))

    def untrack_topics(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._tracked.pop(topic, None)

    def on_change(self, callback: Callable[[MetadataSnapshot], None]) -> None:
        """Register a callback, which gets each new snapshot in the event loop's thread."""
        self._listeners.append(callback)

    async def refresh(
        self, topics: Iterable[str] | None = (), *, all_topics: bool = False, timeout: float | None = None
    ) -> MetadataSnapshot:
        """Return a snapshot that was requested after this call, with these topics (None: all) and the tracked ones.

        Retries for `timeout` seconds (None: without limit), then raises RequestTimeoutError with the last failure.
        """
        self.track_topics(topics or ())
        self._requests_all = self._requests_all or all_topics or topics is None
        refreshed = self._request_refresh()
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(refreshed)
        except TimeoutError as error:
            if isinstance(error, ClientError):
                raise
            raise _timed_out(
                f"no metadata of the cluster within {timeout:g} s", self.last_failure
            ) from self.last_failure

    def refresh_soon(self) -> None:
        """Request metadata because the current snapshot is out of date: at once, or after a back-off if this method was
        called a moment ago."""
        if self._is_closed or self._soon_timer is not None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self._last_quick_refresh > 2 * self.settings.retry_backoff_max_ms / 1000:
            self._quick_refreshes = 0
        due = self._last_quick_refresh + self._backoff.seconds(self._quick_refreshes) if self._quick_refreshes else now
        self._quick_refreshes += 1
        self._last_quick_refresh = max(due, now)
        self._soon_timer = loop.call_at(self._last_quick_refresh, self._refresh_now)

    async def topic(self, name: str, *, timeout: float | None = None) -> TopicInfo:
        """Return a topic's metadata. Wait for a topic that does not exist yet or has no leaders, for `timeout` seconds
        (by default default.api.timeout.ms), then raise the broker's error for it."""
        known = self.metadata.topics.get(name)
        if known is not None and not known.error_code:
            return known

        async def ask(seconds: float) -> TopicInfo:
            metadata = await self.refresh([name], timeout=seconds)
            info = metadata.topics.get(name)
            code = ErrorCode.unknown_topic_or_partition if info is None else info.error_code
            if info is None or code:
                raise error_of(code, about=Subject("topic", name))
            return info

        return await self.retry(ask, timeout)

    def _request_refresh(self) -> asyncio.Future[MetadataSnapshot]:
        if self._is_closed:
            raise ClientClosedError("the client is closed; create a new one")
        if not self._waiting:
            future: asyncio.Future[MetadataSnapshot] = asyncio.get_running_loop().create_future()
            future.add_done_callback(_retrieve_exception)  # all waiting callers may have been cancelled
            self._waiting.append(future)
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        return self._waiting[0]

    async def _refresh(self) -> None:
        failures = 0
        try:
            while self._waiting:
                self._in_flight, self._waiting = self._waiting, []
                requests_all, self._requests_all = self._requests_all, False
                error = await self._refresh_once(requests_all)
                failures = 0 if error is None else failures + 1
                if error is not None and error.is_retriable:
                    self._waiting = self._in_flight + self._waiting
                    self._requests_all = self._requests_all or requests_all
                    await asyncio.sleep(self._backoff.seconds(failures))
                else:
                    _complete(self._in_flight, self.metadata if error is None else error)
        finally:
            self._refreshing = None
        if self._age_timer is not None:
            self._age_timer.cancel()
        if not self._is_closed:
            age = self.settings.metadata_max_age_ms / 1000
            self._age_timer = asyncio.get_running_loop().call_later(age, self._refresh_now)

    async def _refresh_once(self, requests_all: bool) -> ClientError | None:
        """Refresh the metadata from the first broker that responds. If none does, return the failure."""
        failure: ClientError = BrokerUnreachableError("the client knows no broker; check bootstrap.servers")
        known = self._known_nodes()
        addresses = {(node.host, node.port) for node in known}
        others = [server for server in self._servers if (server.host, server.port) not in addresses]
        for node in [*known, *random.sample(others, len(others))]:
            try:
                await self._refresh_from(node, requests_all)
            except ClientError as error:
                logger.debug("no metadata from %s: %s", node, error)
                # An error of a broker that responds explains more than a failed connection.
                failure = error if failure.is_retriable else failure
                self.last_failure = failure
            except Exception as error:  # a bug here must fail the waiting calls, not leave them waiting
                logger.exception("metadata of %s could not be handled", node)
                failure = ClientError(f"the metadata of {node} could not be handled: {error!r}")
            else:
                self.last_failure = None
                return None
        return failure

    async def _refresh_from(self, node: Node, requests_all: bool) -> None:
        everything = requests_all or self.tracks_all_topics
        body = {
            "topics": None if everything else [{"name": name, "topic_id": None} for name in self._tracked],
            "allow_auto_topic_creation": self._creates_topics and not everything,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        key = ConnectionKey(node.id, Purpose.CONTROL)
        connection = await self._connections.get(key, node.host, node.port)
        seconds = self.settings.request_timeout_ms / 1000
        response = await self._exchange(connection, ApiKey.METADATA, body, _LOWEST_METADATA, None, seconds)
        code = getattr(response, "error_code", ErrorCode.none)
        if code != ErrorCode.none:
            connection.close()  # REBOOTSTRAP_REQUIRED: this broker is no longer part of the cluster
            raise BrokerUnreachableError(f"{node} refused to return metadata: {error_of(code)}")
        if not response.brokers:
            raise BrokerUnreachableError(f"{node} returned metadata without brokers; it may still be starting")
        metadata = read_metadata(response, self.metadata, asyncio.get_running_loop().time())
        self.metadata = metadata
        for known in metadata.nodes.values():
            if (known.host, known.port) == (node.host, node.port):
                self._connections.rename(key, ConnectionKey(known.id, Purpose.CONTROL))
        for listener in self._listeners:
            try:
                listener(metadata)
            except Exception:
                logger.exception("new metadata could not be handled")

    def _refresh_now(self) -> None:
        self._soon_timer = None
        if not self._is_closed:
            self._request_refresh()

    def _on_lost(self, key: ConnectionKey) -> None:
        if key.node_id >= 0:
            self.refresh_soon()

    # Requests

    async def connection(self, node_id: int, purpose: Purpose = Purpose.DATA) -> BrokerConnection:
        """Return the open connection to a broker for this purpose, or open one. Simultaneous callers share one attempt,
        and get its error."""
        node = self.node(node_id)
        return await self._connections.get(ConnectionKey(node.id, purpose), node.host, node.port)

    async def request(
        self,
        node_id: int,
        key: ApiKey,
        body: dict[str, Any],
        *,
        lowest: int = 0,
        highest: int | None = None,
        timeout: float | None = None,
        purpose: Purpose = Purpose.CONTROL,
    ) -> Any:
        """Send one request to this broker, without retries, and return the response as kio's dataclass. `timeout` in
        seconds starts when the connection is open."""
        connection = await self.connection(node_id, purpose)
        seconds = self.settings.request_timeout_ms / 1000
        return await self._exchange(
            connection, key, body, lowest, highest, seconds if timeout is None else min(timeout, seconds)
        )

    async def ask_node(
        self,
        node_id: int,
        key: ApiKey,
        body: dict[str, Any],
        *,
        lowest: int = 0,
        highest: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send a request to this broker and no other, and retry until the timeout."""

        async def ask(seconds: float) -> Any:
            if node_id not in self.metadata.nodes:
                await self.refresh(timeout=seconds)
            return await self.request(node_id, key, body, lowest=lowest, highest=highest, timeout=seconds)

        return await self.retry(ask, timeout)

    async def ask_any(
        self,
        key: ApiKey,
        body: dict[str, Any],
        *,
        lowest: int = 0,
        highest: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send a request to any broker, and retry until the timeout."""

        async def ask(seconds: float) -> Any:
            node = await self._any_node(seconds)
            return await self.request(node, key, body, lowest=lowest, highest=highest, timeout=seconds)

        return await self.retry(ask, timeout)

    async def ask_own(self, key: OwnApiKey, body: bytes, *, timeout: float | None = None) -> memoryview:
        """Send one of Stratalog's own requests to any broker, and return the bytes of the response. Raises
        UnsupportedVersionError if the broker is not Stratalog."""

        async def ask(seconds: float) -> memoryview:
            connection = await self.connection(await self._any_node(seconds), Purpose.CONTROL)
            return await connection.exchange(key, connection.version_of(key), [body], timeout=seconds)

        return await self.retry(ask, timeout)

    async def ask_controller(
        self,
        key: ApiKey,
        body: dict[str, Any],
        *,
        lowest: int = 0,
        highest: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        async def ask(seconds: float) -> Any:
            node = await self._any_node(seconds)
            if self.metadata.controller_id in self.metadata.nodes:
                node = self.metadata.controller_id
            response = await self.request(node, key, body, lowest=lowest, highest=highest, timeout=seconds)
            if ErrorCode.not_controller in codes_in(response):
                await self.refresh(timeout=seconds)
                raise error_of(ErrorCode.not_controller, about=f"node {node}")
            return response

        return await self.retry(ask, timeout)

    async def coordinator(self, kind: CoordinatorKind, key: str, *, timeout: float | None = None) -> int:
        """Return the id of the broker that coordinates this group or transactional id, from memory if it is known."""
        known = self._coordinators.get((kind, key))
        if known is None:
            known = await self.retry(lambda seconds: self._find_coordinator(kind, key, seconds), timeout)
            self._coordinators[kind, key] = known
        return known.id

    def coordinator_connection(self, kind: CoordinatorKind, key: str) -> BrokerConnection | None:
        """Return the open connection to the coordinator; None if the coordinator is unknown or not connected."""
        node = self._coordinators.get((kind, key))
        if node is None:
            return None
        connection = self._connections.established(ConnectionKey(node.id, Purpose.COORDINATOR))
        return None if connection is None or connection.is_closed else connection

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def ask_coordinator(
        self,
        kind: CoordinatorKind,
        key: str,
        api: ApiKey,
        body: dict[str, Any],
        *,
        lowest: int = 0,
        highest: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send a request to the coordinator. If it has moved, is loading or can't be reached, find it and retry. The
        caller handles all other error codes."""

        async def ask(seconds: float) -> Any:
            node = await self.coordinator(kind, key, timeout=seconds)
            try:
                response = await self.request(
                    node, api, body, lowest=lowest, highest=highest, timeout=seconds, purpose=Purpose.COORDINATOR
                )
            except (BrokerUnreachableError, RequestTimeoutError):
                self.forget_coordinator(kind, key)
                raise
            for code in codes_in(response):
                if code in _COORDINATOR_MOVED:
                    self.forget_coordinator(kind, key)
                if code in _COORDINATOR_CODES:
                    raise error_of(code, about=Subject(kind.name.lower(), key))
            return response

        return await self.retry(ask, timeout)

    async def retry(self, attempt: Callable[[float], Awaitable[T]], timeout: float | None = None) -> T:
        """Call `attempt` with the seconds left, and retry it with a back-off while its error is retriable.

        Gives up after `timeout` seconds (default.api.timeout.ms) with the last error or RequestTimeoutError.
        """
        loop = asyncio.get_running_loop()
        seconds = self.settings.default_api_timeout_ms / 1000 if timeout is None else timeout
        deadline = loop.time() + seconds
        failures = 0
        failure: ClientError | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await attempt(max(0.0, deadline - loop.time()))
            except ClientError as error:
                failures += 1
                wait = self._backoff.seconds(failures)
                if not error.is_retriable or self._is_closed or loop.time() + wait >= deadline:
                    raise
                failure = error
            except TimeoutError:
                cause = failure or self.last_failure
                raise _timed_out(f"gave up after {seconds:g} s", cause) from cause
            await asyncio.sleep(wait)

    async def _exchange(
        self,
        connection: BrokerConnection,
        key: ApiKey,
        body: dict[str, Any],
        lowest: int,
        highest: int | None,
        timeout: float,
    ) -> Any:
        version = connection.version_of(key, lowest, highest)
        response = await connection.exchange(key, version, [encode_request(key, version, body)], timeout=timeout)
        return decode_response(key, version, response)

    async def _find_coordinator(self, kind: CoordinatorKind, key: str, seconds: float) -> Node:
        body = {"key": key, "key_type": int(kind), "coordinator_keys": [key]}
        response = await self.ask_any(ApiKey.FIND_COORDINATOR, body, timeout=seconds)
        coordinators = getattr(response, "coordinators", (response,))  # from version 4 on a response has many keys
        if not coordinators:
            raise error_of(ErrorCode.coordinator_not_available, about=Subject(kind.name.lower(), key))
        first = coordinators[0]
        if first.error_code != ErrorCode.none:
            message = getattr(first, "error_message", None)
            raise error_of(first.error_code, message, about=Subject(kind.name.lower(), key))
        return Node(int(first.node_id), first.host, first.port)

    async def _any_node(self, seconds: float) -> int:
        if not self.metadata.nodes:
            await self.refresh(timeout=seconds)
        return self._known_nodes()[0].id

    def _known_nodes(self) -> list[Node]:
        """Return known brokers: connected ones by their requests in flight, then the rest by the time of their next
        connection attempt."""

        def order(node: Node) -> tuple[bool, float, float]:
            connection = self._connections.established(ConnectionKey(node.id, Purpose.CONTROL))
            if connection is not None:
                return False, connection.in_flight, random.random()
            return True, self._connections.wait_before(node.host, node.port), random.random()

        return sorted(self.metadata.nodes.values(), key=order)

    def node(self, node_id: int) -> Node:
        node = self.metadata.nodes.get(node_id)
        if node is None:
            node = next((known for known in self._coordinators.values() if known.id == node_id), None)
        if node is None:
            raise BrokerUnreachableError(f"node {node_id} is not in the cluster's metadata; it may have been shut down")
        return node


def codes_in(response: Any) -> Iterator[ErrorCode]:
    """Yield every error code in a response, at any depth."""
    for member in fields(response):
        value = getattr(response, member.name)
        if member.name == "error_code":
            yield value
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for element in value:
                yield from codes_in(element)


def _complete(waiting: list[asyncio.Future[MetadataSnapshot]], outcome: MetadataSnapshot | ClientError) -> None:
    for future in waiting:
        if future.done():
            continue
        if isinstance(outcome, MetadataSnapshot):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)


def _retrieve_exception(future: asyncio.Future[MetadataSnapshot]) -> None:
    if not future.cancelled():
        future.exception()


def _timed_out(problem: str, cause: ClientError | None) -> RequestTimeoutError:
    """Return an error with the cause's problem and advice in its message."""
    return (
        RequestTimeoutError(problem)
        if cause is None
        else RequestTimeoutError(f"{problem}: {cause.problem}", cause.advice)
    )
