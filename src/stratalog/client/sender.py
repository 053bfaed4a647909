"""The half of a producer that runs in its I/O thread: takes what is ready from the accumulator, sends it, completes it.

Each broker is sent one request after the other, up to max.in.flight.requests.per.connection of them without an answer,
and in a request at most one batch of a partition. A batch keeps its sequence number however often it is sent, so that a
broker knows a repetition; one that is sent again goes alone, before all that come behind it. Where a number is missing
that nobody will send any more, the partition begins a new epoch, once nothing is under way (KIP-360). Which numbers
batches get, and when they may be sent, is the business of ProducerIds.

Every batch is completed: by an answer, by an error that can't be got over, by delivery.timeout.ms, or by `fail_all`.
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
from stratalog.client._direct import ProduceRequest, UnderWay
from stratalog.client._queues import PartitionQueue
from stratalog.client.backoff import Backoff
from stratalog.client.cluster import Cluster
from stratalog.client.errors import (
    REFRESHES_METADATA,
    BrokerUnreachableError,
    ClientError,
    DeliveryTimeoutError,
    MalformedResponseError,
    RecordTooLargeError,
    error_of,
)
from stratalog.client.metadata import Metadata
from stratalog.client.producer_ids import ProducerIds
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.split_batch import split_batch
from stratalog.net.broker_connection import BrokerConnection
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.produce_client import HIGHEST, LOWEST, decode_produce_response, encode_produce_request

logger = logging.getLogger("stratalog.client.producer")

ACKS_0_PAUSE = 0.002  # seconds until it is looked again whether the socket has taken what was written
PAUSE_AFTER_A_FAULT = 0.1
NEVER = 1e300  # as the accumulator has it

# The broker has not written the batch, and will not under this epoch.
_WANTS_NEW_EPOCH = {int(ErrorCode.unknown_producer_id), int(ErrorCode.invalid_producer_epoch)}
_TOO_LARGE = {int(ErrorCode.message_too_large), int(ErrorCode.record_list_too_large)}
_DUPLICATE = int(ErrorCode.duplicate_sequence_number)
_OUT_OF_ORDER = int(ErrorCode.out_of_order_sequence_number)
_OLD_EPOCH = int(ErrorCode.invalid_producer_epoch)
_BUSY = int(ErrorCode.concurrent_transactions)
_BUSY_MS = 10  # the transaction before is still being ended, which is a matter of milliseconds


class Broker:
    """What is under way to one node."""

    __slots__ = ("connection", "in_flight", "is_connecting", "muted_until", "version")

    def __init__(self) -> None:
        self.connection: BrokerConnection | None = None
        self.version = 0
        self.in_flight = 0
        self.is_connecting = False
        self.muted_until = 0.0


class Sender:
    def __init__(
        self,
        accumulator: Accumulator,
        cluster: Cluster,
        settings: ProducerSettings,
        ids: ProducerIds,
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
        self._delivery_timeout = settings.delivery_timeout_ms / 1000
        self._request_timeout = settings.request_timeout_ms / 1000
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._busy_backoff = Backoff(min(_BUSY_MS, settings.retry_backoff_ms), settings.retry_backoff_ms)
        self._brokers: dict[int, Broker] = {}
        self._under_way = UnderWay(self._delivery_timeout)
        self._requests = self._under_way.requests
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_more = False  # whether a partition that was just sent a batch of has another
        self._quiet: asyncio.Future[None] | None = None  # done when nothing is under way
        self._on_acknowledged: Callable[[], None] | None = None
        self._is_closed = False
        self._wake_fd = -1
        if accumulator.direct is not None:
            accumulator.direct.attach(self._under_way, ids, self._attributes, self._answered)
        cluster.on_change(self._on_metadata)

    def start(self) -> None:
        """In the I/O thread: from here on a write to the accumulator's eventfd has it send."""
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

    def _on_metadata(self, _: Metadata) -> None:
        self.drain()

    # Sending

    def drain(self) -> None:
        """Send all that is ready. To be called when that may have changed."""
        if self._is_closed:
            return
        try:
            self._drain()
        except Exception:  # a fault of ours must not stop the producer
            logger.exception("what is ready could not be sent; it is tried again")
            self._loop.call_later(PAUSE_AFTER_A_FAULT, self.drain)

    def _drain(self) -> None:
        now = self._loop.time()
        if self._under_way.expires_at <= now:
            self._expire_in_flight(now)
        wake = self._send_ready(now)
        while self._has_more:  # a request has one batch of a partition; those behind it go with the next
            wake = self._send_ready(now)
        self._wake_at(min(wake, self._under_way.expires_at))
        self._tell_if_quiet()

    def _send_ready(self, now: float) -> float:
        """A request to each broker, or a few. Returns when there is more to do."""
        self._has_more = False
        queues, wake, lacks_leader = self._accumulator.ready(now)
        has_expired = False
        for queue in queues:
            has_expired = self._expire_waiting(queue, now) or has_expired
        if has_expired:
            self._loop.call_soon(self.drain)  # what else is there may have failed with it
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
        """As much as the broker may be sent. Returns when to look again, where no event will say so."""
        broker = self._brokers.get(leader)
        if broker is None:
            broker = self._brokers[leader] = Broker()
        connection = broker.connection
        if connection is None or connection.is_closed:
            self._connect(leader, broker)
            return NEVER
        if broker.muted_until > now:
            return broker.muted_until
        if self._settings.acks == 0 and connection.unsent:
            return now + ACKS_0_PAUSE  # nothing answers: this alone bounds what is under way
        most = self._settings.max_in_flight_requests_per_connection
        batches: list[Batch] = []
        size = 0
        for queue in queues:
            if broker.in_flight >= most:
                break
            head = queue.head()
            if not head.is_packed and not self._pack(head):
                break  # others may have failed with it
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
        """Whether it could be done: there may be no memory, or a table that was changed after it was sent."""
        try:
            self._accumulator.pack(head, self._codec, self._level)
        except Exception as problem:
            batch = head.queue.drop_head()
            self._accumulator.release(batch)
            batch.fail(error := ClientError(f"{_place(batch)}: a batch could not be encoded: {problem}"))
            self.ids.failed(batch, error)
            self._loop.call_soon(self.drain)
            return False
        return True

    def _post(self, broker: Broker, connection: BrokerConnection, batches: list[Batch]) -> None:
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
        self._under_way.add(request)
        connection.post(
            ApiKey.PRODUCE,
            version,
            body,
            timeout=self._request_timeout,
            answered=partial(self._answered, request),
            expects_answer=acks != 0,
        )

    def _connect(self, leader: int, broker: Broker) -> None:
        if not broker.is_connecting:
            broker.is_connecting = True
            self.spawn(self._connected(leader, broker))

    async def _connected(self, leader: int, broker: Broker) -> None:
        try:
            connection = await self._cluster.connection(leader)
            broker.version = connection.version_of(ApiKey.PRODUCE, LOWEST, HIGHEST)
            broker.connection = connection
            direct = self._accumulator.direct
            if direct is not None:
                version = min(broker.version, self.ids.highest_produce)
                direct.open(leader, broker, connection, version)
        except ClientError as error:
            logger.debug("node %d can't be sent to: %s", leader, error)
            self._note(leader, error)
            self._cluster.refresh_soon()
            await asyncio.sleep(self._settings.reconnect_backoff_ms / 1000)
        finally:
            broker.is_connecting = False
        self.drain()

    def _note(self, leader: int, error: ClientError) -> None:
        """What waits for this broker will fail for this reason, if it does."""
        for queue in self._accumulator.listed():
            first = queue.first
            if queue.leader == leader and first is not None:
                first.last_error = error

    # Answers

    def _answered(self, request: ProduceRequest, answer: memoryview | None, error: ClientError | None) -> None:
        request.broker.in_flight -= 1
        self._requests.discard(request)
        if self._is_closed:
            return
        if answer is None:
            assert error is not None
            for batch in request.batches:
                self._retry(batch, error)
        elif self._settings.acks == 0:
            for batch in request.batches:
                self._acknowledge(batch, -1, -1)
        else:
            self._read(request, answer)
        if not self._accumulator.is_idle:
            self.drain()
        else:
            self._tell_if_quiet()

    def _read(self, request: ProduceRequest, answer: memoryview) -> None:
        try:
            throttle, outcomes = decode_produce_response(request.version, answer)
        except MalformedResponseError as error:
            request.connection.close()
            for batch in request.batches:
                self._retry(batch, error)
            return
        if throttle > 0:
            request.broker.muted_until = self._loop.time() + throttle / 1000
        for batch in request.batches:
            outcome = outcomes.get((batch.queue.topic, batch.queue.partition))
            if outcome is None:
                self._retry(batch, MalformedResponseError(f"{_place(batch)}: the broker's answer leaves it out"))
                continue
            code, base_offset, append_time, message = outcome
            if code == 0:
                self._acknowledge(batch, base_offset, append_time)
            else:
                self._refused(batch, code, base_offset, append_time, message)

    def _acknowledge(self, batch: Batch, base_offset: int, append_time: int) -> None:
        batch.queue.acknowledged(batch)
        batch.queue.retry_at = 0.0
        self._accumulator.release(batch)
        batch.acknowledge(base_offset, append_time)

    def _refused(self, batch: Batch, code: int, base_offset: int, append_time: int, message: str | None) -> None:
        queue = batch.queue
        if code == _DUPLICATE:  # it is there, from an earlier attempt
            self._acknowledge(batch, base_offset, append_time)
            return
        if code in _TOO_LARGE and batch.record_count > 1 and not batch.is_done:
            self._split(batch)
            return
        error = error_of(code, message, about=_place(batch))
        if isinstance(error, RecordTooLargeError):
            error.size = batch.size
        if code in REFRESHES_METADATA:
            self._cluster.refresh_soon()
        if batch.base_sequence >= 0:
            if code == _OUT_OF_ORDER and not queue.is_next(batch):
                self._retry(batch, error)  # one before it is missing, and will be sent first
                return
            if code == _OLD_EPOCH and self.ids.finds_out(batch, error):
                return
            if self.ids.goes_on_after_gaps and (code == _OUT_OF_ORDER or code in _WANTS_NEW_EPOCH):
                queue.needs_new_epoch = True
                self._retry(batch, error)
                return
        if error.is_retriable:
            self._retry(batch, error, self._busy_backoff if code == _BUSY else self._backoff)
        else:
            self.fail(batch, error)

    def _retry(self, batch: Batch, error: ClientError, backoff: Backoff | None = None) -> None:
        """Send it again after a while, if there is time."""
        now = self._loop.time()
        batch.last_error = error
        if batch.is_done or batch.attempts > self._settings.retries:
            self.fail(batch, error)
        elif now >= batch.created + self._delivery_timeout:
            self.fail(batch, self._too_late(batch))
        elif self.ids.lost is not None:
            self.fail(batch, self.ids.lost)
        else:
            batch.queue.put_back([batch])
            batch.queue.retry_at = now + (backoff or self._backoff).seconds(batch.attempts)
            self._accumulator.list_again(batch.queue)

    def fail(self, batch: Batch, error: ClientError) -> None:
        """A batch that was under way. Its numbers are missing now, unless the broker has it after all."""
        batch.queue.failed()
        batch.queue.needs_new_epoch = batch.queue.needs_new_epoch or batch.base_sequence >= 0
        self._accumulator.release(batch)
        batch.fail(error)
        self.ids.failed(batch, error)

    def _split(self, batch: Batch) -> None:
        parts = split_batch(batch)
        logger.debug("%s: a batch of %d records is too large for the broker; split", _place(batch), batch.record_count)
        batch.queue.put_back(parts)
        self._accumulator.replace(batch, parts)
        batch.split_into(parts)

    # Time

    def _expire_waiting(self, queue: PartitionQueue, now: float) -> bool:
        """Give up what waits too long; whether there was any."""
        found = False
        while (first := queue.first) is not None and first.created + self._delivery_timeout <= now:
            batch = queue.drop_head()
            queue.needs_new_epoch = queue.needs_new_epoch or batch.base_sequence >= 0
            self._accumulator.release(batch)
            batch.fail(error := self._too_late(batch))
            self.ids.failed(batch, error)
            found = True
        return found

    def _expire_in_flight(self, now: float) -> None:
        """Whoever waits is told; the memory is given back with the answer, or with the connection."""
        self._under_way.expires_at = NEVER
        for request in self._requests:
            for batch in request.batches:
                due = batch.created + self._delivery_timeout
                if due <= now:
                    if not batch.is_done:
                        batch.fail(error := self._too_late(batch))
                        self.ids.failed(batch, error)
                elif due < self._under_way.expires_at:
                    self._under_way.expires_at = due

    def _too_late(self, batch: Batch) -> DeliveryTimeoutError:
        if not batch.attempts:
            fate = "they were never sent"
        else:
            fate = f"they were sent {batch.attempts} times, and may be in the log"
        why = batch.last_error or self._cluster.last_failure
        if why is None:
            why = BrokerUnreachableError("the broker takes records more slowly than they come in, or does not answer")
        problem, advice = (why.problem, why.advice) if isinstance(why, ClientError) else (str(why), "")
        error = DeliveryTimeoutError(
            f"{_place(batch)}: {batch.record_count} records were not acknowledged within delivery.timeout.ms = "
            f"{self._settings.delivery_timeout_ms}; {fate}. The last that was heard: {problem}",
            advice,
        )
        error.__cause__ = why
        return error

    def _wake_at(self, when: float) -> None:
        if self._under_way.timer_at <= when:
            return  # a timer that comes early is cheaper than one that is always set anew
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._on_timer)
        self._under_way.timer_at = when

    def _on_timer(self) -> None:
        self._timer = None
        self._under_way.timer_at = NEVER
        self.drain()

    # Transactions: until something is over, and what to do with the rest

    async def until_acknowledged(self, deadline: float) -> None:
        """Until all that was sent before is acknowledged or has failed. TimeoutError after the deadline."""
        self._accumulator.begin_flush()
        try:
            self.drain()
            while not self._is_all_acknowledged:
                await self._wait_for_quiet(deadline)
        finally:
            self._accumulator.end_flush()

    def when_acknowledged(self, callback: Callable[[], None]) -> None:
        """As `until_acknowledged`, once, without a deadline; in the place of one that was asked for before."""
        if self._on_acknowledged is None:
            self._accumulator.begin_flush()
        self._on_acknowledged = callback
        self.drain()  # which looks whether it is so already

    @property
    def _is_all_acknowledged(self) -> bool:
        return not self._requests and not any(batch.record_count for batch in list(self._accumulator.incomplete))

    async def until_answered(self, deadline: float) -> None:
        """Until no request is under way."""
        while self._requests:
            await self._wait_for_quiet(deadline)

    async def _wait_for_quiet(self, deadline: float) -> None:
        self._quiet = self._loop.create_future()
        try:
            async with asyncio.timeout_at(deadline):
                await self._quiet
        finally:
            self._quiet = None

    def _tell_if_quiet(self) -> None:
        if self._quiet is not None and not self._requests and not self._quiet.done():
            self._quiet.set_result(None)
        callback = self._on_acknowledged
        if callback is not None and self._is_all_acknowledged:
            self._on_acknowledged = None
            self._accumulator.end_flush()
            callback()

    def fail_waiting(self, error: ClientError) -> None:
        """All that is not under way."""
        for queue in self._accumulator.listed():
            while not queue.is_empty:
                batch = queue.drop_head()
                self._accumulator.release(batch)
                batch.fail(error)
        self._loop.call_soon(self._tell_if_quiet)

    def fail_under_way(self, error: ClientError) -> None:
        """Whoever waits is told; the memory is given back with the answer, or with the connection."""
        for request in self._requests:
            for batch in request.batches:
                batch.fail(error)

    # The end

    def fail_all(self, error: ClientError) -> None:
        """Nothing is sent any more; all that is not acknowledged has failed."""
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
        self._tasks.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._tasks.discard)
        return task


def _place(batch: Batch) -> str:
    return f"{batch.queue.topic}-{batch.queue.partition}"
