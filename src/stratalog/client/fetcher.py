"""Prefetches for the polling thread, within limits. Everything here runs in the I/O thread.

Each broker has one request in flight, and gets the next one when it has answered and the buffer has room. An error that
the application has to know, or that changes the position, is queued in the buffer after the records that were fetched
before it. Errors that pass without the application, such as a leader that moved, are retried here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from stratalog.client._consumer_records import FetchedRecords
from stratalog.client._fetched_batches import Progress
from stratalog.client.backoff import Backoff
from stratalog.client.cluster import Cluster
from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.errors import error_of
from stratalog.client.fetch_buffer import FetchBuffer, FetchFailure
from stratalog.client.fetch_exchange import (
    FetchErrorAction,
    FetchExchange,
    FetchParameters,
    PartitionResponse,
    action_for,
)
from stratalog.client.metadata import MetadataSnapshot, TopicPartition
from stratalog.client.subscription import AssignedPartition, Subscription
from stratalog.errors import ClientError
from stratalog.net.broker_connection import BrokerConnection
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.fetch import WantedPartition
from stratalog.protocol.fetch_session import FetchSession

logger = logging.getLogger(__name__)


class FetchPosition(NamedTuple):
    """The position of a partition when it was requested, to see whether the response still applies."""

    state: AssignedPartition
    progress: Progress
    offset: int


FetchPositions = dict[TopicPartition, FetchPosition]


class FailureHandlers(NamedTuple):
    """The calls with which the polling thread handles queued failures. They may raise."""

    out_of_range: Callable[[AssignedPartition], None]
    truncated: Callable[[AssignedPartition, int, int], None]
    failed: Callable[[AssignedPartition, ClientError], None]


class _Broker:
    """The state of fetching from one broker."""

    def __init__(self) -> None:
        self.session = FetchSession()
        self.is_busy = False
        self.failures = 0
        self.retry: asyncio.TimerHandle | None = None
        self.reported_to: Progress | None = None  # its failure is queued there, and not handled yet


class Fetcher:
    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        subscription: Subscription,
        buffer: FetchBuffer,
        handlers: FailureHandlers,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._subscription = subscription
        self._buffer = buffer
        self._handlers = handlers
        self._read_committed = settings.isolation_level == "read_committed"
        self._parameters = FetchParameters(
            settings.fetch_max_wait_ms,
            settings.fetch_min_bytes,
            settings.fetch_max_bytes,
            self._read_committed,
            settings.client_rack,
        )
        self._room = settings.queued_max_messages_kbytes * 1024
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._brokers: dict[int, _Broker] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        cluster.on_change(self._on_metadata)

    def _on_metadata(self, _: MetadataSnapshot) -> None:
        self.go_on()

    def go_on(self) -> None:
        """Start a request to each broker that has none in flight and something to fetch. Call after every change."""
        if self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        by_node = self._positions_by_node()
        for node_id, positions in by_node.items():
            broker = self._brokers.setdefault(node_id, _Broker())
            if not broker.is_busy and broker.retry is None:
                if not self._has_room_or_waits(len(positions)):
                    return  # the polling thread calls again when there is room
                broker.is_busy = True
                task = asyncio.get_running_loop().create_task(self._fetch(node_id, broker))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _has_room_or_waits(self, partitions: int) -> bool:
        """If there is no room, have the polling thread call `go_on` when there is. It may make room at any moment, so
        check once more after announcing the wait."""
        if self._has_room(partitions):
            return True
        self._buffer.is_waited_for = True
        if not self._has_room(partitions):
            return False
        self._buffer.is_waited_for = False
        return True

    def _has_room(self, partitions: int) -> bool:
        """Return whether the largest possible response fits. An empty buffer has room for any response."""
        largest = min(self._settings.fetch_max_bytes, partitions * self._settings.max_partition_fetch_bytes)
        held = self._buffer.bytes
        return held <= 0 or held + largest <= self._room

    def _positions_by_node(self) -> dict[int, FetchPositions]:
        """Return the positions to fetch from each node. Schedules the next call for partitions that back off, and a
        refresh of the metadata for those whose leader is unknown."""
        now = asyncio.get_running_loop().time()
        metadata = self._cluster.metadata
        by_node: dict[int, FetchPositions] = {}
        next_retry = None
        is_unknown = False
        for partition, state in self._subscription.partitions.items():
            if state.is_paused or state.is_stopped or state.fetch_offset < 0:
                continue
            if state.retry_at > now:
                next_retry = min(next_retry or state.retry_at, state.retry_at)
                continue
            leader = metadata.leader_of(*partition)
            if leader is None or leader.leader not in metadata.nodes:
                is_unknown = True
                continue
            node = leader.leader
            if state.nearby_replica >= 0:
                if state.nearby_until > now and state.nearby_replica in metadata.nodes:
                    node = state.nearby_replica
                else:
                    state.nearby_replica = -1
            by_node.setdefault(node, {})[partition] = FetchPosition(state, state.progress, state.fetch_offset)
        if is_unknown:
            self._cluster.track_topics(partition.topic for partition in self._subscription.partitions)
            self._cluster.refresh_soon()
        if next_retry is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(next_retry, self.go_on)
        return by_node

    async def _fetch(self, node_id: int, broker: _Broker) -> None:
        """Send one request after the other, until there is nothing to fetch or no room."""
        try:
            while not self._is_closed:
                connection = await self._cluster.connection(node_id)
                positions = self._positions_by_node().get(node_id, {})
                if not positions or not self._has_room_or_waits(len(positions)):
                    return
                await self._fetch_once(connection, broker, positions)
                broker.failures = 0
        except ClientError as error:
            broker.failures += 1
            broker.session.failed()
            logger.debug("fetch from node %d failed: %s", node_id, error)
            self._cluster.refresh_soon()
            if not error.is_retriable:
                self._report(node_id, broker, error)
            wait = self._backoff.seconds(broker.failures)
            broker.retry = asyncio.get_running_loop().call_later(wait, self._retry, broker)
        finally:
            broker.is_busy = False

    def _report(self, node_id: int, broker: _Broker, error: ClientError) -> None:
        """Queue an error for the application, once until it is handled. The fetcher retries in the meantime."""
        positions = self._positions_by_node().get(node_id)
        if not positions:
            return
        state = next(iter(positions.values())).state
        if broker.reported_to is state.progress:
            return
        broker.reported_to = state.progress

        def handle() -> None:
            broker.reported_to = None
            self._handlers.failed(state, error)

        self._buffer.put(FetchFailure(state.partition, state.progress, handle))

    def _retry(self, broker: _Broker) -> None:
        broker.retry = None
        self.go_on()

    async def _fetch_once(self, connection: BrokerConnection, broker: _Broker, positions: FetchPositions) -> None:
        topics = self._cluster.metadata.topics
        exchange = FetchExchange(
            self._parameters,
            {partition: self._requested(partition, position) for partition, position in positions.items()},
            {topic: topics[topic].id for topic, _ in positions if topic in topics},
            broker.session,
        )
        version = connection.version_of(ApiKey.FETCH, *exchange.versions)
        timeout = self._settings.request_timeout_ms / 1000
        response = await connection.exchange(ApiKey.FETCH, version, [exchange.request(version)], timeout=timeout)
        about = f"fetch from {connection.host}:{connection.port}"
        for partition, fetched in exchange.response(response, about=about):
            self._take(positions[partition], fetched, response)

    def _requested(self, partition: TopicPartition, position: FetchPosition) -> WantedPartition:
        leader = self._cluster.metadata.leader_of(*partition)
        epoch = -1 if leader is None else leader.leader_epoch
        return WantedPartition(
            position.offset, epoch, self._settings.max_partition_fetch_bytes, position.state.last_epoch
        )

    def _take(self, position: FetchPosition, fetched: PartitionResponse, response: memoryview) -> None:
        state = position.state
        if (
            state.progress is not position.progress
            or state.fetch_offset != position.offset
            or self._subscription.partitions.get(state.partition) is not state
        ):
            return  # a seek or a rebalance came in between
        if fetched.error_code:
            self._on_error(state, fetched.error_code)
            return
        state.high_watermark, state.last_stable_offset = fetched.high_watermark, fetched.last_stable_offset
        state.log_start_offset = fetched.log_start_offset
        diverging = fetched.diverging
        if diverging is not None:
            self._stop(state, lambda: self._handlers.truncated(state, *diverging))
        elif fetched.end > fetched.start:
            records = FetchedRecords(
                state.partition,
                state.progress,
                state.fetch_offset,
                response,
                fetched.start,
                fetched.end,
                aborted=fetched.aborted,
                read_committed=self._read_committed,
                check_crcs=self._settings.check_crcs,
                max_decompressed=self._settings.max_inflated_batch_bytes,
                key_deserializer=self._settings.key_deserializer,
                value_deserializer=self._settings.value_deserializer,
            )
            state.fetch_offset = records.end_offset
            state.last_epoch = records.end_epoch
            state.is_stopped = not records.is_well_formed
            self._buffer.put(records)
        elif fetched.nearby_replica >= 0:
            state.nearby_replica = fetched.nearby_replica
            state.nearby_until = asyncio.get_running_loop().time() + self._settings.metadata_max_age_ms / 1000

    def _on_error(self, state: AssignedPartition, error_code: int) -> None:
        action = action_for(error_code)
        if action is FetchErrorAction.CHECK_OFFSET:
            if state.nearby_replica >= 0:
                state.nearby_replica = -1  # that replica may lag; ask the leader
            elif state.last_epoch >= 0:
                state.last_epoch = -1  # the broker may not know this epoch, although it has the offset
            else:
                self._stop(state, lambda: self._handlers.out_of_range(state))
        elif action is FetchErrorAction.FAIL:
            error = error_of(error_code, about=str(state.partition))
            self._stop(state, lambda: self._handlers.failed(state, error))
        else:
            state.nearby_replica = -1
            state.retry_at = asyncio.get_running_loop().time() + self._backoff.seconds(1)
            if action is not FetchErrorAction.RETRY:
                self._cluster.refresh_soon()

    def _stop(self, state: AssignedPartition, handle: Callable[[], None]) -> None:
        state.is_stopped = True
        self._buffer.put(FetchFailure(state.partition, state.progress, handle))

    async def close(self) -> None:
        """Cancel all requests and retries. Brokers drop unused fetch sessions by themselves."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        for broker in self._brokers.values():
            if broker.retry is not None:
                broker.retry.cancel()
