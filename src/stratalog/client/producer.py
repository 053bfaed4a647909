"""The producer: `send` puts records into batches in the caller's thread, and a thread of its own sends them.

    with Producer("localhost:9092", linger_ms=5) as producer:
        delivery = producer.send("orders", b"value", key=b"key")
        print(delivery.result())          # RecordMetadata(topic, partition, offset, timestamp)

Any number of threads may share one. `send` waits for nothing but metadata of a topic that is new to it and room in
buffer_memory, max_block_ms at most. Every delivery completes: acknowledged, or with an error, also when the producer is
closed, when brokers die, and when the interpreter exits. A fork's child can't use its parent's, and is told so.
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
from stratalog.client.producer_ids import IdempotentIds, ProducerIds
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

EXIT_SECONDS = 5.0  # what an interpreter that exits spends on records that nobody flushed
END_SECONDS = 5.0  # to close connections and end the thread
POLL_SECONDS = 0.02


class Producer(SendPath, TransactionCalls):
    """Settings are Kafka's, with underscores for dots; `from_config` takes them with dots. With a `transactional_id`
    records are sent in transactions."""

    def __init__(self, bootstrap_servers: str | Sequence[str], /, **settings: Unpack[ProducerOptions]) -> None:
        self._start(ProducerSettings.from_options(bootstrap_servers, settings))

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """From Kafka's own names: {"bootstrap.servers": "localhost:9092", "linger.ms": 5}."""
        producer = cls.__new__(cls)
        producer._start(ProducerSettings.parse(config))
        return producer

    def _start(self, settings: ProducerSettings) -> None:
        self.settings = settings
        self._is_closed = False
        direct = _direct_path(settings)
        loop = None if direct is None else watched_loop(direct.tell)
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
        # None of these knows the producer, so that one that nobody holds any more is noticed.
        self._topics = finder.topics = ProducerTopics(accumulator, self._cluster, settings)  # told before the sender
        ids = ProducerIds()
        self._transactions = None
        if settings.transactional_id is not None:
            ids = self._transactions = Transactions(self._cluster, settings, accumulator)
        elif settings.is_idempotent:
            ids = IdempotentIds(self._cluster, settings)
        self._sender = Sender(accumulator, self._cluster, settings, ids, io.loop)
        io.call_soon(self._sender.start)
        io.at_exit(partial(_end, io, accumulator, self._sender, self._cluster, EXIT_SECONDS))
        _producers.add(self)

    def send_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> ArrowDelivery:
        """Send a table's rows: columns `value`, and if they are there `key`, `headers`, `timestamp` and `partition`.

        Rows of a partition keep their order. A null is what None is to `send`; serializers are not asked. Returns one
        delivery for all rows. Rows are encoded when they are sent: where the table's memory is yours to change, as a
        NumPy array's is, leave it as it is until the delivery is done.
        """
        from stratalog.client.arrow_sender import send_arrow

        self._accumulator.check_usable()
        return send_arrow(self._accumulator, self._topic, topic, table)

    def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """What is known of a topic's partitions; waits for that as `send` does."""
        self._topic(topic, -1, self._accumulator.max_block)
        return self._cluster.metadata.topics[topic].partitions

    def flush(self, timeout: float | None = None) -> None:
        """Until all that was sent before is acknowledged or has failed. RequestTimeoutError after `timeout` seconds.
        In a transaction that can't be committed any more it raises why."""
        if threading.get_ident() == self._accumulator.io_thread:
            raise ClientError("flush() in a callback of the producer would wait for itself; call it in another thread")
        if self._transactions is not None:
            self._io.check_usable()
        elif not self._is_closed:
            self._accumulator.check_usable()
        _flush(self._accumulator, timeout)
        if self._transactions is not None:
            self._transactions.state.check_not_lost()

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, for at most `timeout` seconds, or until delivery_timeout_ms has the last word. What is not
        acknowledged then fails with ClientClosedError. In a callback of the producer it does not wait at all.

        A transaction that is open is aborted, but for one that was prepared."""
        if self._is_closed:
            return
        self._is_closed = True
        _producers.discard(self)
        _end(self._io, self._accumulator, self._sender, self._cluster, timeout)

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
        # Not here: whoever dropped it must not wait. Its thread sends what is left, and then ends.
        self._accumulator.refuse(_closed)
        try:
            self._io.call_soon(_finish, self._io, self._accumulator, self._sender, self._cluster)
        except ClientError:
            pass

    def disown_in_child(self) -> None:
        """Refuse every further call: this is a fork's child, and the producer is the parent's."""
        self._accumulator.refuse_in_child(_forked)

    def __repr__(self) -> str:
        servers = ",".join(str(server) for server in self.settings.bootstrap_servers)
        return f"<Producer of {servers}{', closed' if self._is_closed else ''}>"


def _direct_path(settings: ProducerSettings) -> DirectPath | None:
    """For records that wait for no others, and need nothing done to them."""
    if settings.linger_ms or settings.codec or settings.acks == 0 or settings.transactional_id is not None:
        return None
    delivery_timeout = settings.delivery_timeout_ms / 1000
    return DirectPath(settings.acks, settings.request_timeout_ms, delivery_timeout, settings.is_idempotent)


class _TopicFinder:
    """What the accumulator needs of the I/O thread."""

    topics: ProducerTopics

    def __init__(self, io: IoThread) -> None:
        self._io = io

    def find_topic(self, name: str, partition: int, seconds: float) -> TopicQueues:
        return self._io.run(self.topics.find(name, partition, seconds))


def _closed() -> ClientClosedError:
    return ClientClosedError("the producer is closed; make a new one")


def _flush(accumulator: Accumulator, timeout: float | None) -> None:
    deadline = -1.0 if timeout is None else time.monotonic() + max(timeout, 0.0)
    waiting = accumulator.begin_flush()
    try:
        while waiting:
            batch = waiting.pop()
            if not batch.wait(deadline):
                left = sum(one.record_count for one in [batch, *waiting] if not one.is_done)
                raise RequestTimeoutError(
                    f"{left} records are not acknowledged after {timeout} s; they are still under way: flush again, or "
                    f"look at their deliveries"
                )
            waiting.extend(batch.parts or ())
    finally:
        accumulator.end_flush()


def _end(io: IoThread, accumulator: Accumulator, sender: Sender, cluster: Cluster, timeout: float | None) -> None:
    """Send what is left, for so long; complete the rest; end the thread."""
    if isinstance(io.unusable, ForkedClientError):
        return  # in a child even the loop's epoll is the parent's
    accumulator.refuse(_closed)
    is_transactional = sender.ids.transactional_id is not None
    if threading.get_ident() == accumulator.io_thread:
        sender.fail_all(_left_over())
        _finish(io, accumulator, sender, cluster)
        return
    try:
        if io.unusable is None and is_transactional:
            io.run(sender.ids.close(sender.max_block if timeout is None else timeout))
        if io.unusable is None:
            _flush(accumulator, timeout)
    except ClientClosedError:
        pass  # by another thread, meanwhile
    except RequestTimeoutError:
        lost = sum(batch.record_count for batch in list(accumulator.incomplete))
        event = {"event": RECORDS_GIVEN_UP, "records": lost}
        logger.error("the producer is closed, and gives up what was not acknowledged; records: %d", lost, extra=event)
    finally:
        io.close(_shut_down(sender, cluster), END_SECONDS)
        sender.fail_all(_left_over())


async def _shut_down(sender: Sender, cluster: Cluster) -> None:
    sender.fail_all(_left_over())
    await cluster.close()


def _left_over() -> ClientClosedError:
    return ClientClosedError(
        "the producer was closed before the record was acknowledged, which may be in the log or not; give close() more "
        "time"
    )


def _finish(io: IoThread, accumulator: Accumulator, sender: Sender, cluster: Cluster) -> None:
    """As _end, in the I/O thread itself, which must not wait."""

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
        "the producer was made before a fork, and its thread and connections stay with the parent; make a new one in "
        "this process"
    )


def _mark_child() -> None:
    for producer in list(_producers):
        producer.disown_in_child()
    _producers.clear()


os.register_at_fork(after_in_child=_mark_child)
