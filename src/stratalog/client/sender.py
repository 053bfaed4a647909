"""The part of a producer that runs in its I/O thread: takes batches that are ready from the accumulator and sends them.

Each broker gets up to max.in.flight.requests.per.connection requests at a time, and a request has at most one batch of
a partition. If a sequence number will never be sent, the partition begins a new producer epoch once nothing is in
flight (KIP-360). BatchIds decides which ids batches get and when they may be sent; BatchCompletion decides what happens
to a batch after its request.

Every batch is completed, at the latest by `fail_all`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from stratalog.client._accumulator import Accumulator
from stratalog.client._batch import Batch
from stratalog.client._direct import InFlightRequests, ProduceRequest
from stratalog.client._queues import PartitionQueue
from stratalog.client.batch_completion import NEVER, BatchCompletion, partition_name
from stratalog.client.cluster import Cluster
from stratalog.client.errors import ClientError, MalformedResponseError
from stratalog.client.metadata import MetadataSnapshot
from stratalog.client.producer_ids import BatchIds
from stratalog.client.producer_settings import ProducerSettings
from stratalog.net.broker_connection import BrokerConnection
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.produce import HIGHEST, LOWEST, decode_produce_response, encode_produce_request

logger = logging.getLogger("stratalog.client.producer")

ACKS_0_PAUSE = 0.002  # seconds until the next look whether the socket has taken what was written
PAUSE_AFTER_A_FAULT = 0.1


class BrokerLink:
    """The producer's connection to one broker, and the number of its requests in flight."""

    __slots__ = ("connection", "in_flight", "is_connecting", "muted_until", "version")

    def __init__(self) -> None:
        self.connection: BrokerConnection | None = None
        self.version = 0
        self.in_flight = 0
        self.is_connecting = False
        self.muted_until = 0.0


class Sender:
    """Sends a producer's batches, in the I/O thread. `fail_all` may also be called after that thread has stopped."""

    def __init__(
        self,
        accumulator: Accumulator,
        cluster: Cluster,
        settings: ProducerSettings,
        ids: BatchIds,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.ids = ids
        ids.sender = self
        self._accumulator = accumulator
        self._cluster = cluster
        self._settings = settings
        self._loop = loop
        self._codec = int(settings.codec)
        self._attributes = self._codec | ids.attributes
        self._level = settings.compression_level
        self.max_block = settings.max_block_ms / 1000
        self._request_timeout = settings.request_timeout_ms / 1000
        self._brokers: dict[int, BrokerLink] = {}
        self._in_flight = InFlightRequests(settings.delivery_timeout_ms / 1000)
        self._requests = self._in_flight.requests
        self._completion = BatchCompletion(accumulator, cluster, settings, ids, loop, self._in_flight)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_more = False  # whether a partition whose batch was just sent has another
        self._idle: asyncio.Future[None] | None = None  # completed when no request is in flight
        self._on_acknowledged: Callable[[], None] | None = None
        self._is_closed = False
        self._wake_fd = -1
        if accumulator.direct is not None:
            accumulator.direct.attach(self._in_flight, ids, self._attributes, self._on_response)
        cluster.on_change(self._on_metadata)

    def start(self) -> None:
        """Start sending. From now on, a write to the accumulator's eventfd wakes the I/O thread."""
        accumulator = self._accumulator
        accumulator.io_thread = threading.get_ident()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop.add_reader(self._wake_fd, self._on_wake)
        accumulator.wake_fd = self._wake_fd
        self.drain()

    def _on_wake(self) -> None:
        os.eventfd_read(self._wake_fd)
        direct = self._accumulator.direct
        if direct is not None and direct.is_stuck:
            direct.write_on()
        self.drain()

    def _on_metadata(self, _: MetadataSnapshot) -> None:
        self.drain()

    # Sending

    def drain(self) -> None:
        """Send everything that is ready. Call this when that may have changed."""
        if self._is_closed:
            return
        try:
            self._drain()
        except Exception:  # a bug here must not stop the producer
            logger.exception("batches could not be sent; retrying")
            self._loop.call_later(PAUSE_AFTER_A_FAULT, self.drain)

    def _drain(self) -> None:
        now = self._loop.time()
        if self._in_flight.expires_at <= now:
            self._completion.expire_in_flight(now)
        wake = self._send_ready(now)
        while self._has_more:  # a request has one batch of a partition; the next request has the next batch
            wake = self._send_ready(now)
        self._wake_at(min(wake, self._in_flight.expires_at))
        self._notify_if_idle()

    def _send_ready(self, now: float) -> float:
        """Send each broker a request or a few. Return the time of the next call."""
        self._has_more = False
        queues, wake, lacks_leader = self._accumulator.ready(now)
        has_expired = False
        for queue in queues:
            has_expired = self._completion.expire_waiting(queue, now) or has_expired
        if has_expired:
            self._loop.call_soon(self.drain)  # other batches may have failed with the expired ones
            return wake
        ready: dict[int, list[PartitionQueue]] = {}
        for queue in queues:
            if self.ids.may_send(queue):
                ready.setdefault(queue.leader, []).append(queue)
        for leader, of_leader in ready.items():
            again = self._send_to(leader, of_leader, now)
            if again < wake:
                wake = again
        if lacks_leader:
            self._cluster.refresh_soon()
        return wake

    def _send_to(self, leader: int, queues: list[PartitionQueue], now: float) -> float:
        """Send the broker as much as it may get. Return the time of the next call, or NEVER if an event causes it."""
        broker = self._brokers.get(leader)
        if broker is None:
            broker = self._brokers[leader] = BrokerLink()
        connection = broker.connection
        if connection is None or connection.is_closed:
            self._connect(leader, broker)
            return NEVER
        if broker.muted_until > now:
            return broker.muted_until
        if self._settings.acks == 0 and connection.unsent:
            return now + ACKS_0_PAUSE  # there are no responses: only this limits what is in flight
        most = self._settings.max_in_flight_requests_per_connection
        batches: list[Batch] = []
        size = 0
        for queue in queues:
            if broker.in_flight >= most:
                break
            head = queue.head()
            if not head.is_packed and not self._pack(head):
                break  # other batches may have failed with it
            if batches and size + head.size > self._accumulator.max_request_size:
                self._post(broker, connection, batches)
                batches, size = [], 0
                if broker.in_flight >= most:
                    break
            batch = queue.take(self.ids.producer_id, self.ids.producer_epoch)
            batch.seal(self._attributes)
            batches.append(batch)
            size += batch.size
            self._has_more = self._has_more or bool(queue.closed)
        if batches:
            self._post(broker, connection, batches)
        return NEVER

    def _pack(self, head: Batch) -> bool:
        """Encode and compress a batch, or fail it, and return whether it is encoded. Encoding fails if memory is short,
        or if a table was changed after it was sent."""
        try:
            self._accumulator.pack(head, self._codec, self._level)
        except Exception as problem:
            batch = head.queue.drop_head()
            self._accumulator.release(batch)
            batch.fail(error := ClientError(f"{partition_name(batch)}: a batch could not be encoded: {problem}"))
            self.ids.failed(batch, error)
            self._loop.call_soon(self.drain)
            return False
        return True

    def _post(self, broker: BrokerLink, connection: BrokerConnection, batches: list[Batch]) -> None:
        topics: dict[str, list[tuple[int, bytearray]]] = {}
        for batch in batches:
            queue = batch.queue
            if queue.topic in topics:
                topics[queue.topic].append((queue.partition, batch.data))
            else:
                topics[queue.topic] = [(queue.partition, batch.data)]
        acks, ids = self._settings.acks, self.ids
        version = min(broker.version, ids.highest_produce)
        timeout_ms = self._settings.request_timeout_ms
        body = encode_produce_request(version, acks, timeout_ms, topics, ids.transactional_id)
        request = ProduceRequest(broker, connection, version, batches)
        self._in_flight.add(request)
        connection.post(
            ApiKey.PRODUCE,
            version,
            body,
            timeout=self._request_timeout,
            answered=partial(self._on_response, request),
            expects_answer=acks != 0,
        )

    def _connect(self, leader: int, broker: BrokerLink) -> None:
        if not broker.is_connecting:
            broker.is_connecting = True
            self.spawn(self._open_connection(leader, broker))

    async def _open_connection(self, leader: int, broker: BrokerLink) -> None:
        try:
            connection = await self._cluster.connection(leader)
            broker.version = connection.version_of(ApiKey.PRODUCE, LOWEST, HIGHEST)
            broker.connection = connection
            direct = self._accumulator.direct
            if direct is not None:
                version = min(broker.version, self.ids.highest_produce)
                direct.open(leader, broker, connection, version)
        except ClientError as error:
            logger.debug("broker %d can't be used: %s", leader, error)
            self._record_error(leader, error)
            self._cluster.refresh_soon()
            await asyncio.sleep(self._settings.reconnect_backoff_ms / 1000)
        finally:
            broker.is_connecting = False
        self.drain()

    def _record_error(self, leader: int, error: ClientError) -> None:
        """Record the error in the batches that wait for this broker. Their timeout error names it."""
        for queue in self._accumulator.listed():
            first = queue.first
            if queue.leader == leader and first is not None:
                first.last_error = error

    # Responses

    def _on_response(self, request: ProduceRequest, response: memoryview | None, error: ClientError | None) -> None:
        request.broker.in_flight -= 1
        self._requests.discard(request)
        if self._is_closed:
            return
        if response is None:
            assert error is not None
            for batch in request.batches:
                self._completion.retry(batch, error)
        elif self._settings.acks == 0:
            for batch in request.batches:
                self._completion.acknowledge(batch, -1, -1)
        else:
            self._read(request, response)
        if not self._accumulator.is_idle:
            self.drain()
        else:
            self._notify_if_idle()

    def _read(self, request: ProduceRequest, response: memoryview) -> None:
        completion = self._completion
        try:
            throttle, outcomes = decode_produce_response(request.version, response)
        except MalformedResponseError as error:
            request.connection.close()
            for batch in request.batches:
                completion.retry(batch, error)
            return
        if throttle > 0:
            request.broker.muted_until = self._loop.time() + throttle / 1000
        for batch in request.batches:
            outcome = outcomes.get((batch.queue.topic, batch.queue.partition))
            if outcome is None:
                missing = MalformedResponseError(f"{partition_name(batch)}: missing in the broker's response")
                completion.retry(batch, missing)
                continue
            code, base_offset, append_time, message = outcome
            if code == 0:
                completion.acknowledge(batch, base_offset, append_time)
            else:
                completion.handle_refusal(batch, code, base_offset, append_time, message)

    # Time

    def _wake_at(self, when: float) -> None:
        if self._in_flight.timer_at <= when:
            return  # a timer that fires too early is cheaper than setting it again and again
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._on_timer)
        self._in_flight.timer_at = when

    def _on_timer(self) -> None:
        self._timer = None
        self._in_flight.timer_at = NEVER
        self.drain()

    # Waiting and failing, for transactions

    async def wait_for_acknowledgements(self, deadline: float) -> None:
        """Wait until each record sent before is acknowledged or has failed. Raises TimeoutError at the deadline."""
        self._accumulator.begin_flush()
        try:
            self.drain()
            while not self._is_all_acknowledged:
                await self._wait_until_idle(deadline)
        finally:
            self._accumulator.end_flush()

    def call_when_acknowledged(self, callback: Callable[[], None]) -> None:
        """Call back once, when each record sent before is acknowledged or has failed. Replaces an earlier callback."""
        if self._on_acknowledged is None:
            self._accumulator.begin_flush()
        self._on_acknowledged = callback
        self.drain()  # which calls back at once if nothing is in flight

    @property
    def _is_all_acknowledged(self) -> bool:
        return not self._requests and not any(batch.record_count for batch in list(self._accumulator.incomplete))

    async def wait_for_responses(self, deadline: float) -> None:
        """Wait until no request is in flight. Raises TimeoutError at the deadline."""
        while self._requests:
            await self._wait_until_idle(deadline)

    async def _wait_until_idle(self, deadline: float) -> None:
        self._idle = self._loop.create_future()
        try:
            async with asyncio.timeout_at(deadline):
                await self._idle
        finally:
            self._idle = None

    def _notify_if_idle(self) -> None:
        if self._idle is not None and not self._requests and not self._idle.done():
            self._idle.set_result(None)
        callback = self._on_acknowledged
        if callback is not None and self._is_all_acknowledged:
            self._on_acknowledged = None
            self._accumulator.end_flush()
            callback()

    def fail(self, batch: Batch, error: ClientError) -> None:
        """Fail a batch that was sent."""
        self._completion.fail(batch, error)

    def fail_waiting(self, error: ClientError) -> None:
        """Fail all batches that are not in flight."""
        for queue in self._accumulator.listed():
            while not queue.is_empty:
                batch = queue.drop_head()
                self._accumulator.release(batch)
                batch.fail(error)
        self._loop.call_soon(self._notify_if_idle)

    def fail_in_flight(self, error: ClientError) -> None:
        """Fail all batches in flight. Their memory is released with the response, or when the connection closes."""
        for request in self._requests:
            for batch in request.batches:
                batch.fail(error)

    # Closing

    def fail_all(self, error: ClientError) -> None:
        """Stop sending, and fail all records that are not acknowledged."""
        self._is_closed = True
        if self._accumulator.direct is not None:
            self._accumulator.direct.close()
        if self._timer is not None:
            self._timer.cancel()
        self._stop_waking()
        for batch in list(self._accumulator.incomplete):
            self._accumulator.release(batch)
            batch.fail(error)

    def _stop_waking(self) -> None:
        fd, self._wake_fd, self._accumulator.wake_fd = self._wake_fd, -1, -1
        if fd >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(fd)
            os.close(fd)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)  # the event loop refers to tasks only weakly
        task.add_done_callback(self._tasks.discard)
        return task
