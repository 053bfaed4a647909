"""A client's view of the cluster, and its way to ask any node of it. All in the loop's thread but `metadata`.

Metadata is asked for when someone wants it, when it is old, when a connection is lost, and when a broker's answer says
that it is out of date; however many ask for it at the same time, one request is sent. Nodes that are known are asked
first, then the bootstrap servers again, in turn and with a back-off, until one answers.
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
from stratalog.client.metadata import Metadata, Node, TopicInfo, check_topic_name, read_metadata
from stratalog.client.settings import CommonSettings
from stratalog.net.broker_connection import BrokerConnection
from stratalog.protocol.api_keys import ApiKey, OwnApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import decode_response, encode_request

logger = logging.getLogger(__name__)
T = TypeVar("T")

_LOWEST_METADATA = 4  # the first that can say whether topics may be made
_COORDINATOR_MOVED = {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available}
_COORDINATOR_CODES = _COORDINATOR_MOVED | {ErrorCode.coordinator_load_in_progress}


class CoordinatorKind(IntEnum):
    GROUP = 0
    TRANSACTION = 1


class Cluster:
    def __init__(self, settings: CommonSettings, *, allow_auto_create_topics: bool = True) -> None:
        self.settings = settings
        self.metadata = Metadata()
        self.wants_all_topics = False  # whether each refresh asks for all of them
        self.last_failure: ClientError | None = None  # why the last attempt to get metadata failed
        self._creates_topics = allow_auto_create_topics
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._connections = Connections(settings, self._on_lost)
        self._wanted: dict[str, None] = {}
        self._listeners: list[Callable[[Metadata], None]] = []
        self._waiting: list[asyncio.Future[Metadata]] = []  # for an answer to a request that was not sent yet
        self._asked: list[asyncio.Future[Metadata]] = []  # for an answer to the one that was
        self._asks_for_all = False
        self._refreshing: asyncio.Task[None] | None = None
        self._age_timer: asyncio.TimerHandle | None = None
        self._soon_timer: asyncio.TimerHandle | None = None
        self._hurries = 0  # refreshes that were wanted soon, one after the other
        self._last_hurry = float("-inf")
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
        _settle([*self._asked, *self._waiting], ClientClosedError("the client was closed meanwhile"))
        self._connections.close()

    # Metadata

    def want(self, topics: Iterable[str]) -> None:
        """Ask for these too, whenever metadata is asked for. One that is no name would spoil it for all others."""
        names = list(topics)
        for name in names:
            check_topic_name(name)
        self._wanted.update(dict.fromkeys(names))

    def stop_wanting(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._wanted.pop(topic, None)

    def on_change(self, callback: Callable[[Metadata], None]) -> None:
        """Called in the loop's thread with each new snapshot."""
        self._listeners.append(callback)

    async def refresh(
        self, topics: Iterable[str] | None = (), *, all_topics: bool = False, timeout: float | None = None
    ) -> Metadata:
        """A snapshot that was asked for after this call, with these topics (None: all) and those wanted anyway.

        Goes on trying for `timeout` seconds, or for as long as it takes; then RequestTimeoutError says what was wrong.
        """
        self.want(topics or ())
        self._asks_for_all = self._asks_for_all or all_topics or topics is None
        asked = self._ask_for_refresh()
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(asked)
        except TimeoutError as error:
            if isinstance(error, ClientError):
                raise
            raise _timed_out(
                f"no metadata of the cluster within {timeout:g} s", self.last_failure
            ) from self.last_failure

    def refresh_soon(self) -> None:
        """What is known is out of date. At once, or after a back-off where this was said a moment ago too."""
        if self._is_closed or self._soon_timer is not None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self._last_hurry > 2 * self.settings.retry_backoff_max_ms / 1000:
            self._hurries = 0
        due = self._last_hurry + self._backoff.seconds(self._hurries) if self._hurries else now
        self._hurries += 1
        self._last_hurry = max(due, now)
        self._soon_timer = loop.call_at(self._last_hurry, self._refresh_now)

    async def topic(self, name: str, *, timeout: float | None = None) -> TopicInfo:
        """What is known of a topic; waits for one that is not there yet, or has no leaders, for `timeout` seconds (by
        default default.api.timeout.ms), and then raises what the broker says of it."""
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

    def _ask_for_refresh(self) -> asyncio.Future[Metadata]:
        if self._is_closed:
            raise ClientClosedError("the client is closed; make a new one")
        if not self._waiting:
            future: asyncio.Future[Metadata] = asyncio.get_running_loop().create_future()
            future.add_done_callback(_look_at)  # all who waited may have gone
            self._waiting.append(future)
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        return self._waiting[0]

    async def _refresh(self) -> None:
        failures = 0
        try:
            while self._waiting:
                self._asked, self._waiting = self._waiting, []
                asks_for_all, self._asks_for_all = self._asks_for_all, False
                error = await self._refresh_once(asks_for_all)
                failures = 0 if error is None else failures + 1
                if error is not None and error.is_retriable:
                    self._waiting = self._asked + self._waiting
                    self._asks_for_all = self._asks_for_all or asks_for_all
                    await asyncio.sleep(self._backoff.seconds(failures))
                else:
                    _settle(self._asked, self.metadata if error is None else error)
        finally:
            self._refreshing = None
        if self._age_timer is not None:
            self._age_timer.cancel()
        if not self._is_closed:
            age = self.settings.metadata_max_age_ms / 1000
            self._age_timer = asyncio.get_running_loop().call_later(age, self._refresh_now)

    async def _refresh_once(self, asks_for_all: bool) -> ClientError | None:
        """From the first that answers; what was wrong, if none does."""
        failure: ClientError = BrokerUnreachableError("there is no broker to ask")
        known = self._known_nodes()
        addresses = {(node.host, node.port) for node in known}
        others = [server for server in self._servers if (server.host, server.port) not in addresses]
        for node in [*known, *random.sample(others, len(others))]:
            try:
                await self._refresh_from(node, asks_for_all)
            except ClientError as error:
                logger.debug("no metadata from %s: %s", node, error)
                # A broker that can't be used says more than one that is not there.
                failure = error if failure.is_retriable else failure
                self.last_failure = failure
            except Exception as error:  # a fault of ours: who waits must hear of it
                logger.exception("metadata of %s could not be handled", node)
                failure = ClientError(f"the metadata of {node} could not be handled: {error!r}")
            else:
                self.last_failure = None
                return None
        return failure

    async def _refresh_from(self, node: Node, asks_for_all: bool) -> None:
        everything = asks_for_all or self.wants_all_topics
        body = {
            "topics": None if everything else [{"name": name, "topic_id": None} for name in self._wanted],
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
            connection.close()  # REBOOTSTRAP_REQUIRED: this broker has no say any more
            raise BrokerUnreachableError(f"{node} has no metadata to give: {error_of(code)}")
        if not response.brokers:
            raise BrokerUnreachableError(f"{node} knows of no broker yet; it may still be starting")
        metadata = read_metadata(response, self.metadata, asyncio.get_running_loop().time())
        self.metadata = metadata
        for one in metadata.nodes.values():
            if (one.host, one.port) == (node.host, node.port):
                self._connections.give_name(key, ConnectionKey(one.id, Purpose.CONTROL))
        for listener in self._listeners:
            try:
                listener(metadata)
            except Exception:
                logger.exception("new metadata could not be handled")

    def _refresh_now(self) -> None:
        self._soon_timer = None
        if not self._is_closed:
            self._ask_for_refresh()

    def _on_lost(self, key: ConnectionKey) -> None:
        if key.node_id >= 0:
            self.refresh_soon()

    # Asking

    async def connection(self, node_id: int, purpose: Purpose = Purpose.DATA) -> BrokerConnection:
        """To a node, for this purpose: the one that is open, or after one attempt, which all who ask share."""
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
        """Once, to this node: kio's dataclass of the answer. `timeout` in seconds is for the answer alone."""
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
        """This node and no other, for as long as there is time."""

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
        """Whichever node answers."""

        async def ask(seconds: float) -> Any:
            node = await self._any_node(seconds)
            return await self.request(node, key, body, lowest=lowest, highest=highest, timeout=seconds)

        return await self.retry(ask, timeout)

    async def ask_own(self, key: OwnApiKey, body: bytes, *, timeout: float | None = None) -> memoryview:
        """Whichever node answers, if it is a Stratalog broker; the bytes of its answer."""

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
        """The node that coordinates this group or transaction, as far as is known."""
        known = self._coordinators.get((kind, key))
        if known is None:
            known = await self.retry(lambda seconds: self._find_coordinator(kind, key, seconds), timeout)
            self._coordinators[kind, key] = known
        return known.id

    def coordinator_connection(self, kind: CoordinatorKind, key: str) -> BrokerConnection | None:
        """The connection to who coordinates it, where both are at hand."""
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
        """Where it has moved, is loading or can't be reached, it is looked for and asked again. Other codes are left to
        who asks."""

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
        """`attempt`, which is told the seconds left, again with a back-off for as long as what it raises is retriable
        and there is time: `timeout`, by default default.api.timeout.ms."""
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
        answer = await connection.exchange(key, version, [encode_request(key, version, body)], timeout=timeout)
        return decode_response(key, version, answer)

    async def _find_coordinator(self, kind: CoordinatorKind, key: str, seconds: float) -> Node:
        body = {"key": key, "key_type": int(kind), "coordinator_keys": [key]}
        response = await self.ask_any(ApiKey.FIND_COORDINATOR, body, timeout=seconds)
        found = getattr(response, "coordinators", (response,))  # from version 4 on it answers for many keys
        if not found:
            raise error_of(ErrorCode.coordinator_not_available, about=Subject(kind.name.lower(), key))
        if found[0].error_code != ErrorCode.none:
            message = getattr(found[0], "error_message", None)
            raise error_of(found[0].error_code, message, about=Subject(kind.name.lower(), key))
        return Node(int(found[0].node_id), found[0].host, found[0].port)

    async def _any_node(self, seconds: float) -> int:
        if not self.metadata.nodes:
            await self.refresh(timeout=seconds)
        return self._known_nodes()[0].id

    def _known_nodes(self) -> list[Node]:
        """Those that are connected and have least to do first, then those that have not failed lately."""

        def order(node: Node) -> tuple[bool, float, float]:
            connection = self._connections.established(ConnectionKey(node.id, Purpose.CONTROL))
            if connection is not None:
                return False, connection.in_flight, random.random()
            return True, self._connections.wait_before(node.host, node.port), random.random()

        return sorted(self.metadata.nodes.values(), key=order)

    def node(self, node_id: int) -> Node:
        node = self.metadata.nodes.get(node_id)
        if node is None:
            node = next((one for one in self._coordinators.values() if one.id == node_id), None)
        if node is None:
            raise BrokerUnreachableError(f"node {node_id} is not in the cluster's metadata; it may have been shut down")
        return node


def codes_in(response: Any) -> Iterator[ErrorCode]:
    """Every error code in an answer, however deep."""
    for member in fields(response):
        value = getattr(response, member.name)
        if member.name == "error_code":
            yield value
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for one in value:
                yield from codes_in(one)


def _settle(waiting: list[asyncio.Future[Metadata]], outcome: Metadata | ClientError) -> None:
    for future in waiting:
        if future.done():
            continue
        if isinstance(outcome, Metadata):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)


def _look_at(future: asyncio.Future[Metadata]) -> None:
    if not future.cancelled():
        future.exception()


def _timed_out(problem: str, cause: ClientError | None) -> RequestTimeoutError:
    """Return an error with the cause's problem and advice in its message."""
    return (
        RequestTimeoutError(problem)
        if cause is None
        else RequestTimeoutError(f"{problem}: {cause.problem}", cause.advice)
    )
