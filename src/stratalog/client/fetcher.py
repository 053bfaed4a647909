"""Fetches ahead of the polling thread, within bounds: one request at a time to each broker, the next as soon as it is
answered and there is room. All in the I/O thread.

What the broker says of a partition that the user has to know, or that changes where to read on, waits in the buffer
behind the records that came before it. What passes by itself (a leader that moved) is retried here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from stratalog.client._consumer_records import FetchedRecords
from stratalog.client._fetched_batches import Progress
from stratalog.client.backoff import Backoff
from stratalog.client.cluster import Cluster
from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.errors import REFRESHES_METADATA, error_of
from stratalog.client.fetch_buffer import FetchBuffer, FetchFailure
from stratalog.client.fetch_session import FetchSession, Key, SessionRequest
from stratalog.client.metadata import ClusterMetadata
from stratalog.client.subscription import PartitionState, Subscription
from stratalog.errors import ClientError
from stratalog.net.broker_connection import BrokerConnection
from stratalog.protocol._fetch_response import parse_fetch_response
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.fetch import FIRST_BY_ID, HIGHEST, LOWEST, WantedPartition, encode_fetch_request

if TYPE_CHECKING:
    from stratalog.protocol._fetch_response import FetchResponsePartition

logger = logging.getLogger(__name__)

_RETRIED = REFRESHES_METADATA | {
    int(code)
    for code in (
        ErrorCode.offset_not_available,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_server_error,
        ErrorCode.request_timed_out,
    )
}


class Sent(NamedTuple):
    """What was asked for of a partition, to know whether the answer still counts."""

    state: PartitionState
    progress: Progress
    offset: int


class FailureHandlers(NamedTuple):
    """What the polling thread does when it comes to such a failure: they may raise."""

    out_of_range: Callable[[PartitionState], None]
    truncated: Callable[[PartitionState, int, int], None]
    failed: Callable[[PartitionState, ClientError], None]


class _Broker:
    """What goes on with one broker."""

    def __init__(self) -> None:
        self.session = FetchSession()
        self.is_busy = False
        self.failures = 0
        self.retry: asyncio.TimerHandle | None = None
        self.told: Progress | None = None  # where its failure waits for the polling thread


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
        self._room = settings.queued_max_messages_kbytes * 1024
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._brokers: dict[int, _Broker] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        cluster.on_change(self._on_metadata)

    def _on_metadata(self, _: ClusterMetadata) -> None:
        self.go_on()

    def go_on(self) -> None:
        """Something has changed: ask each broker that has nothing to answer for what is wanted of it."""
        if self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        by_node = self._wanted()
        for node_id in by_node:
            broker = self._brokers.setdefault(node_id, _Broker())
            if not broker.is_busy and broker.retry is None:
                if not self._has_room(len(by_node[node_id])):
                    self._buffer.is_waited_for = True
                    if not self._has_room(len(by_node[node_id])):
                        return  # the polling thread calls again when there is
                    self._buffer.is_waited_for = False
                broker.is_busy = True
                task = asyncio.get_running_loop().create_task(self._fetch(node_id, broker))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _has_room(self, partitions: int) -> bool:
        """For all that a broker may answer; or for one answer, where nothing is there."""
        largest = min(self._settings.fetch_max_bytes, partitions * self._settings.max_partition_fetch_bytes)
        held = self._buffer.bytes
        return held <= 0 or held + largest <= self._room

    def _wanted(self) -> dict[int, dict[Key, Sent]]:
        """By node, what to fetch; the topic's key is its id where there is one."""
        now = asyncio.get_running_loop().time()
        metadata = self._cluster.metadata
        by_node: dict[int, dict[Key, Sent]] = {}
        next_try = None
        is_unknown = False
        for place, state in self._subscription.partitions.items():
            if state.is_paused or state.is_stopped or state.fetch_offset < 0:
                continue
            if state.retry_at > now:
                next_try = min(next_try or state.retry_at, state.retry_at)
                continue
            leader = metadata.leader_of(*place)
            if leader is None or leader.leader not in metadata.nodes:
                is_unknown = True
                continue
            node = leader.leader
            if state.nearby_replica >= 0:
                if state.nearby_until > now and state.nearby_replica in metadata.nodes:
                    node = state.nearby_replica
                else:
                    state.nearby_replica = -1
            by_node.setdefault(node, {})[place.topic, place.partition] = Sent(state, state.progress, state.fetch_offset)
        if is_unknown:
            self._cluster.track_topics(place.topic for place in self._subscription.partitions)
            self._cluster.refresh_soon()
        if next_try is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(next_try, self.go_on)
        return by_node

    async def _fetch(self, node_id: int, broker: _Broker) -> None:
        """Requests and answers, one after the other, for as long as there is something to ask for and room for it."""
        try:
            while not self._is_closed:
                connection = await self._cluster.connection(node_id)
                wanted = self._wanted().get(node_id, {})
                if not wanted:
                    return
                if not self._has_room(len(wanted)):
                    self._buffer.is_waited_for = True
                    if not self._has_room(len(wanted)):
                        return
                    self._buffer.is_waited_for = False
                await self._fetch_once(connection, broker, wanted)
                broker.failures = 0
        except ClientError as error:
            broker.failures += 1
            broker.session.failed()
            logger.debug("fetch from node %d failed: %s", node_id, error)
            self._cluster.refresh_soon()
            if not error.is_retriable:
                self._tell(node_id, broker, error)
            wait = self._backoff.seconds(broker.failures)
            broker.retry = asyncio.get_running_loop().call_later(wait, self._retry, broker)
        finally:
            broker.is_busy = False

    def _tell(self, node_id: int, broker: _Broker, error: ClientError) -> None:
        """What a broker answers can't be read: it is asked again, but who polls has to know. Once, until he does."""
        wanted = self._wanted().get(node_id)
        if not wanted:
            return
        state = next(iter(wanted.values())).state
        if broker.told is state.progress:
            return
        broker.told = state.progress

        def handle() -> None:
            broker.told = None
            self._handlers.failed(state, error)

        self._buffer.put(FetchFailure(state.partition, state.progress, handle))

    def _retry(self, broker: _Broker) -> None:
        broker.retry = None
        self.go_on()

    async def _fetch_once(self, connection: BrokerConnection, broker: _Broker, wanted: dict[Key, Sent]) -> None:
        metadata = self._cluster.metadata
        ids = {str(topic): metadata.topics[str(topic)].id for topic, _ in wanted if topic in metadata.topics}
        by_id = all(ids.get(str(topic)) is not None for topic, _ in wanted)
        version = connection.version_of(ApiKey.FETCH, LOWEST, HIGHEST if by_id else FIRST_BY_ID - 1)
        by_id = version >= FIRST_BY_ID
        asked: dict[Key, WantedPartition] = {}
        sent: dict[Key, Sent] = {}
        for (topic, partition), one in wanted.items():
            topic_id = ids.get(str(topic))
            key: Key = (topic_id.bytes, partition) if by_id and topic_id is not None else (topic, partition)
            leader = metadata.leader_of(str(topic), partition)
            epoch = -1 if leader is None else leader.leader_epoch
            asked[key] = WantedPartition(
                one.offset, epoch, self._settings.max_partition_fetch_bytes, one.state.last_epoch
            )
            sent[key] = one
        request = broker.session.next_request(asked)
        timeout = self._settings.request_timeout_ms / 1000
        answer = await connection.exchange(ApiKey.FETCH, version, [self._encoded(version, request)], timeout=timeout)
        _, error_code, session_id, topics = parse_fetch_response(answer, version)
        broker.session.answered(session_id, error_code)
        if error_code:
            logger.debug("fetch session: %s", error_of(error_code))
            if error_code not in (ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch):
                self._cluster.refresh_soon()
                raise error_of(error_code, about=f"fetch from {connection.host}:{connection.port}")
            return
        for topic, partitions in topics:
            for told in partitions:
                one_sent = sent.get((topic, told[0]))
                if one_sent is not None:
                    self._take(one_sent, told, answer)

    def _encoded(self, version: int, request: SessionRequest) -> bytearray:
        settings = self._settings
        return encode_fetch_request(
            version,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            read_committed=self._read_committed,
            session_id=request.session_id,
            session_epoch=request.epoch,
            topics=request.topics,
            forgotten=request.forgotten,
            rack_id=settings.client_rack,
        )

    def _take(self, sent: Sent, told: FetchResponsePartition, answer: memoryview) -> None:
        state = sent.state
        if (
            state.progress is not sent.progress
            or state.fetch_offset != sent.offset
            or self._subscription.partitions.get(state.partition) is not state
        ):
            return  # sought or taken away meanwhile
        _, error_code, high_watermark, stable, start_offset, aborted, start, end, nearby, diverging = told
        if error_code:
            self._on_error(state, error_code)
            return
        state.high_watermark, state.last_stable_offset = high_watermark, stable
        state.log_start_offset = start_offset
        if diverging is not None:
            self._stop(state, lambda: self._handlers.truncated(state, *diverging))
        elif end > start:
            fetched = FetchedRecords(
                state.partition,
                state.progress,
                state.fetch_offset,
                answer,
                start,
                end,
                aborted=aborted,
                read_committed=self._read_committed,
                check_crcs=self._settings.check_crcs,
                max_decompressed=self._settings.max_inflated_batch_bytes,
                key_deserializer=self._settings.key_deserializer,
                value_deserializer=self._settings.value_deserializer,
            )
            state.fetch_offset = fetched.end_offset
            state.last_epoch = fetched.end_epoch
            state.is_stopped = not fetched.is_well_formed
            self._buffer.put(fetched)
        elif nearby >= 0:
            state.nearby_replica = nearby
            state.nearby_until = asyncio.get_running_loop().time() + self._settings.metadata_max_age_ms / 1000

    def _on_error(self, state: PartitionState, error_code: int) -> None:
        if error_code == ErrorCode.offset_out_of_range:
            if state.nearby_replica >= 0:
                state.nearby_replica = -1  # that replica may be behind: its leader knows
            elif state.last_epoch >= 0:
                state.last_epoch = -1  # it may be the epoch that the broker knows nothing of, not the offset
            else:
                self._stop(state, lambda: self._handlers.out_of_range(state))
        elif error_code in _RETRIED:
            state.nearby_replica = -1
            state.retry_at = asyncio.get_running_loop().time() + self._backoff.seconds(1)
            if error_code in REFRESHES_METADATA:
                self._cluster.refresh_soon()
        else:
            error = error_of(error_code, about=str(state.partition))
            self._stop(state, lambda: self._handlers.failed(state, error))

    def _stop(self, state: PartitionState, handle: Callable[[], None]) -> None:
        state.is_stopped = True
        self._buffer.put(FetchFailure(state.partition, state.progress, handle))

    async def close(self) -> None:
        """Tell the brokers that their sessions are over, where that goes at once."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        for broker in self._brokers.values():
            if broker.retry is not None:
                broker.retry.cancel()
