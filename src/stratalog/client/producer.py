"""The producer: `send` puts records into batches in the caller's thread, and a background thread sends them.

    with Producer("localhost:9092", linger_ms=5) as producer:
        delivery = producer.send("orders", b"value", key=b"key")
        print(delivery.result())          # RecordMetadata(topic, partition, offset, timestamp)

Threads may share a producer. `send` waits only for the metadata of a new topic and for room in buffer_memory, and at
most for max_block_ms. Every delivery completes, acknowledged or with an error, even if the producer is closed, brokers
fail, or the interpreter exits. In a fork's child, the calls of the parent's producers raise ForkedClientError.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from stratalog.client._accumulator import Accumulator, SendPath
from stratalog.client._batch import Delivery, RecordMetadata
from stratalog.client._direct import DirectPath
from stratalog.client._queues import TopicQueues
from stratalog.client.cluster import Cluster
from stratalog.client.errors import ClientClosedError, ClientError, ForkedClientError, RequestTimeoutError
from stratalog.client.io_thread import IoThread
from stratalog.client.metadata import PartitionInfo
from stratalog.client.producer_ids import BatchIds, IdempotentIds
from stratalog.client.producer_settings import ProducerOptions, ProducerSettings
from stratalog.client.producer_topics import ProducerTopics
from stratalog.client.sender import Sender
from stratalog.client.transaction_calls import TransactionCalls
from stratalog.client.transactions import Transactions
from stratalog.net.watched_loop import watched_loop

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.client.arrow_sender import ArrowDelivery

__all__ = ["Delivery", "Producer", "RecordMetadata"]

logger = logging.getLogger("stratalog.client.producer")

RECORDS_GIVEN_UP = "records given up"  # a log record's `event`, which has the number of `records`

EXIT_SECONDS = 5.0  # how long the interpreter's exit waits for records that were not flushed
CLOSE_SECONDS = 5.0  # to close connections and stop the thread
POLL_SECONDS = 0.02


class Producer(SendPath, TransactionCalls):
    """A producer. Its settings are Kafka's, with underscores for dots; `from_config` takes them with dots. With a
    `transactional_id`, records are sent in transactions."""

    def __init__(self, bootstrap_servers: str | Sequence[str], /, **settings: Unpack[ProducerOptions]) -> None:
        self._start(ProducerSettings.from_options(bootstrap_servers, settings))

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """Create a Producer from Kafka's setting names: {"bootstrap.servers": "localhost:9092", "linger.ms": 5}."""
        producer = cls.__new__(cls)
        producer._start(ProducerSettings.parse(config))
        return producer

    def _start(self, settings: ProducerSettings) -> None:
        self.settings = settings
        self._is_closed = False
        direct = _direct_path(settings)
        loop = None if direct is None else watched_loop(direct.set_waiting)
        io = self._io = IoThread(f"producer {settings.client_id}", loop)
        self._cluster = Cluster(settings)
        finder = _TopicFinder(io)
        accumulator = Accumulator(
            batch_size=min(settings.batch_size, settings.max_request_size),
            buffer_memory=settings.buffer_memory,
            max_request_size=settings.max_request_size,
            linger=settings.linger_ms / 1000,
            max_block=settings.max_block_ms / 1000,
            delivery_timeout=settings.delivery_timeout_ms / 1000,
            max_in_flight=settings.max_in_flight_requests_per_connection,
            is_idempotent=settings.is_idempotent,
            find_topic=finder.find_topic,
            value_serializer=settings.value_serializer,
            key_serializer=settings.key_serializer,
        )
        accumulator.direct = direct
        self._use(accumulator)
        # None of these objects refers to the producer, so that an unreferenced producer is collected.
        # The topics' listener is registered before the sender's, so that the sender sees updated queues.
        self._topics = finder.topics = ProducerTopics(accumulator, self._cluster, settings)
        ids = BatchIds()
        self._transactions = None
        if settings.transactional_id is not None:
            ids = self._transactions = Transactions(self._cluster, settings, accumulator)
        elif settings.is_idempotent:
            ids = IdempotentIds(self._cluster, settings)
        self._sender = Sender(accumulator, self._cluster, settings, ids, io.loop)
        io.call_soon(self._sender.start)
        io.at_exit(partial(_close, io, accumulator, self._sender, self._cluster, EXIT_SECONDS))
        _producers.add(self)

    def send_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> ArrowDelivery:
        """Send a table's rows: the column `value`, and optionally `key`, `headers`, `timestamp` and `partition`.

        Rows of a partition keep their order. A null means the same as None in `send`. Serializers are not called.
        Returns one delivery for all rows. Rows are encoded when they are sent: if the table refers to memory that you
        can change, such as a NumPy array, don't change it until the delivery is done.
        """
        from stratalog.client.arrow_sender import send_arrow

        self._accumulator.check_usable()
        return send_arrow(self._accumulator, self._topic, topic, table)

    def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Return a topic's partitions. Waits for the topic's metadata as `send` does."""
        self._topic(topic, -1, self._accumulator.max_block)
        return self._cluster.metadata.topics[topic].partitions

    def flush(self, timeout: float | None = None) -> None:
        """Wait until each record sent before is acknowledged or has failed. Raises RequestTimeoutError after `timeout`
        seconds, and the reason if the current transaction can't be committed any more."""
        if threading.get_ident() == self._accumulator.io_thread:
            raise ClientError("flush() in a callback of the producer would never return; call it in another thread")
        if self._transactions is not None:
            self._io.check_usable()
        elif not self._is_closed:
            self._accumulator.check_usable()
        _flush(self._accumulator, timeout)
        if self._transactions is not None:
            self._transactions.state.check_not_lost()

    def close(self, timeout: float | None = None) -> None:
        """Send the remaining records and close.

        Waits for at most `timeout` seconds (None: until each record's delivery_timeout_ms); records that are not
        acknowledged by then fail with ClientClosedError. In a callback of the producer, it does not wait at all.

        An open transaction is aborted, unless it is prepared.
        """
        if self._is_closed:
            return
        self._is_closed = True
        _producers.discard(self)
        _close(self._io, self._accumulator, self._sender, self._cluster, timeout)

    def _topic(self, name: str, partition: int, seconds: float) -> TopicQueues:
        if self._transactions is None:
            self._accumulator.check_usable()
        return self._io.run(self._topics.find(name, partition, seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_is_closed", True) or self._io.unusable is not None:
            return
        warnings.warn(
            f"{self!r} was not closed; use it in a with statement, or call close()", ResourceWarning, stacklevel=2
        )
        # The garbage collector must not wait. The I/O thread sends the remaining records and then stops.
        self._accumulator.refuse(_closed)
        try:
            self._io.call_soon(_close_in_io_thread, self._io, self._accumulator, self._sender, self._cluster)
        except ClientError:
            pass

    def disown_in_child(self) -> None:
        """Refuse every further call: this process is a fork's child, and the producer belongs to the parent."""
        self._accumulator.refuse_in_child(_forked)

    def __repr__(self) -> str:
        servers = ",".join(str(server) for server in self.settings.bootstrap_servers)
        return f"<Producer of {servers}{', closed' if self._is_closed else ''}>"


def _direct_path(settings: ProducerSettings) -> DirectPath | None:
    """Return the direct path, unless the settings require lingering, compression, acks 0 or transactions."""
    if settings.linger_ms or settings.codec or settings.acks == 0 or settings.transactional_id is not None:
        return None
    delivery_timeout = settings.delivery_timeout_ms / 1000
    return DirectPath(settings.acks, settings.request_timeout_ms, delivery_timeout, settings.is_idempotent)


class _TopicFinder:
    """Finds topics in the I/O thread, for the accumulator."""

    topics: ProducerTopics

    def __init__(self, io: IoThread) -> None:
        self._io = io

    def find_topic(self, name: str, partition: int, seconds: float) -> TopicQueues:
        return self._io.run(self.topics.find(name, partition, seconds))


def _closed() -> ClientClosedError:
    return ClientClosedError("the producer is closed; create a new one")


def _flush(accumulator: Accumulator, timeout: float | None) -> None:
    deadline = -1.0 if timeout is None else time.monotonic() + max(timeout, 0.0)
    waiting = accumulator.begin_flush()
    try:
        while waiting:
            batch = waiting.pop()
            if not batch.wait(deadline):
                left = sum(unfinished.record_count for unfinished in [batch, *waiting] if not unfinished.is_done)
                raise RequestTimeoutError(
                    f"{left} records are not acknowledged after {timeout} s; they are still in flight: flush again, "
                    f"or check their deliveries"
                )
            waiting.extend(batch.parts or ())
    finally:
        accumulator.end_flush()


def _close(io: IoThread, accumulator: Accumulator, sender: Sender, cluster: Cluster, timeout: float | None) -> None:
    """Send the remaining records for `timeout` seconds, complete all others with an error, and stop the thread."""
    if isinstance(io.unusable, ForkedClientError):
        return  # in a child, even the event loop's epoll instance belongs to the parent
    accumulator.refuse(_closed)
    is_transactional = sender.ids.transactional_id is not None
    if threading.get_ident() == accumulator.io_thread:
        sender.fail_all(_not_acknowledged())
        _close_in_io_thread(io, accumulator, sender, cluster)
        return
    try:
        if io.unusable is None and is_transactional:
            io.run(sender.ids.close(sender.max_block if timeout is None else timeout))
        if io.unusable is None:
            _flush(accumulator, timeout)
    except ClientClosedError:
        pass  # another thread has closed it at the same time
    except RequestTimeoutError:
        lost = sum(batch.record_count for batch in list(accumulator.incomplete))
        event = {"event": RECORDS_GIVEN_UP, "records": lost}
        logger.error("the producer was closed before all records were acknowledged; records: %d", lost, extra=event)
    finally:
        io.close(_shut_down(sender, cluster), CLOSE_SECONDS)
        sender.fail_all(_not_acknowledged())


async def _shut_down(sender: Sender, cluster: Cluster) -> None:
    sender.fail_all(_not_acknowledged())
    await cluster.close()


def _not_acknowledged() -> ClientClosedError:
    return ClientClosedError(
        "the producer was closed before the record was acknowledged, so it may be in the log or not; call close() with "
        "a longer timeout"
    )


def _close_in_io_thread(io: IoThread, accumulator: Accumulator, sender: Sender, cluster: Cluster) -> None:
    """Close as `_close` does, in the I/O thread itself, which must not wait."""

    async def finish() -> None:
        await sender.ids.close(sender.max_block)
        accumulator.begin_flush()
        sender.drain()
        while accumulator.incomplete:
            await asyncio.sleep(POLL_SECONDS)
        await _shut_down(sender, cluster)
        io.close()

    task = asyncio.get_running_loop().create_task(finish())
    _finishing.add(task)
    task.add_done_callback(_finishing.discard)


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()
_finishing: set[asyncio.Task[None]] = set()


def _forked() -> ForkedClientError:
    return ForkedClientError(
        "the producer was created before a fork, and its thread and connections stay with the parent; create a new one "
        "in this process"
    )


def _mark_child() -> None:
    for producer in list(_producers):
        producer.disown_in_child()
    _producers.clear()


os.register_at_fork(after_in_child=_mark_child)
