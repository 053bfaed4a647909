"""Writes the rows of one attempt of a task, in a transaction that it leaves prepared for the driver to end.

The transaction begins with the first rows, so a task without rows sends no request. The broker aborts an open
transaction that is not prepared after its timeout, so nothing remains of an executor that died. A task that takes
longer than half of that timeout prepares its transaction and continues in another one, even while it waits for rows.
An error aborts the open transaction, and is raised.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.client.prepared_transaction import PreparedTransaction
from stratalog.client.producer import Producer
from stratalog.spark.sink_ids import SinkIds
from stratalog.spark.worker_process import freeze_modules
from stratalog.spark.write_columns import by_topic
from stratalog.spark.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.client.arrow_sender import ArrowDelivery

_ABORT_SECONDS = 5.0


@dataclass(frozen=True)
class Attempt:
    """An attempt of a task of a sink."""

    ids: SinkIds
    partition: int
    number: int

    def transactional_id(self, part: int) -> str:
        return self.ids.attempt(self.partition, self.number, part)


def write_in_transactions(
    batches: Iterable[pa.RecordBatch], options: WriteOptions, attempt: Attempt
) -> tuple[int, tuple[PreparedTransaction, ...]]:
    """Write the rows. Return their number, and the transactions that contain them."""
    freeze_modules()
    rows = 0
    transactions = TaskTransactions(options, attempt)
    try:
        for batch in batches:
            if batch.num_rows:
                rows += batch.num_rows
                transactions.send(batch)
        return rows, transactions.prepared()
    finally:
        transactions.close()


def write_plainly(batches: Iterable[pa.RecordBatch], options: WriteOptions) -> int:
    """Write the rows without a transaction, and return their number. A task that runs again writes them again."""
    freeze_modules()
    rows = 0
    producer: Producer | None = None
    in_flight: deque[ArrowDelivery] = deque()
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            producer = producer or Producer.from_config(options.producer_config(None))
            rows += batch.num_rows
            in_flight.extend(producer.send_arrow(topic, part) for topic, part in by_topic(batch, options.topic))
            while in_flight and in_flight[0].done():
                in_flight.popleft().result()
        for delivery in in_flight:
            delivery.result()
        return rows
    finally:
        if producer is not None:
            producer.close(0 if in_flight and not in_flight[-1].done() else None)


class TaskTransactions:
    """The transactions of an attempt. A thread prepares the open one in time."""

    prepared_after = 0.5  # of the transaction's timeout

    def __init__(self, options: WriteOptions, attempt: Attempt) -> None:
        self._options = options
        self._attempt = attempt
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._producer: Producer | None = None
        self._prepared: list[PreparedTransaction] = []
        self._parts = 0
        self._failure: BaseException | None = None
        self._timer: threading.Thread | None = None

    def send(self, batch: pa.RecordBatch) -> None:
        with self._lock:
            self._check()
            producer = self._producer or self._open()
            for topic, rows in by_topic(batch, self._options.topic):
                producer.send_arrow(topic, rows)

    def prepared(self) -> tuple[PreparedTransaction, ...]:
        """Prepare the open transaction, and return all. Every row is then acknowledged, and waits for the decision."""
        with self._lock:
            self._check()
            self._prepare()
            return tuple(self._prepared)

    def close(self) -> None:
        """Abort the open transaction, if it is not prepared."""
        self._ended.set()
        if self._timer is not None:
            self._timer.join()
        with self._lock:
            producer, self._producer = self._producer, None
            if producer is not None:
                producer.close(_ABORT_SECONDS)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _open(self) -> Producer:
        transactional_id = self._attempt.transactional_id(self._parts)
        self._parts += 1
        producer = self._producer = Producer.from_config(self._options.producer_config(transactional_id))
        seconds = producer.settings.delivery_timeout_ms / 1000  # the time that a record may take
        producer.init_transactions(seconds)
        producer.begin()
        if self._timer is None:
            interval = producer.settings.transaction_timeout_ms / 1000 * self.prepared_after
            self._timer = threading.Thread(target=self._prepare_in_time, args=(interval,), name="prepare", daemon=True)
            self._timer.start()
        return producer

    def _prepare(self) -> None:
        producer = self._producer
        if producer is None:
            return
        seconds = producer.settings.delivery_timeout_ms / 1000
        self._prepared.append(producer.prepare_transaction(self._options.decision_timeout_ms, seconds))
        self._producer = None
        producer.close()

    def _prepare_in_time(self, interval: float) -> None:
        """Prepare the open transaction before half of its timeout is over."""
        while not self._ended.wait(interval):
            with self._lock:
                try:
                    self._prepare()
                except Exception as error:
                    self._failure = error
                    return
