"""One attempt of a task writes its rows, in a transaction that it leaves prepared for the driver to end.

It begins with the first rows: a task that has none asks nobody for anything. A transaction that is open and not
prepared is aborted by the broker after its timeout, so that nothing stays behind of an executor that died; a task that
takes longer than half of that prepares what it has and goes on in another transaction, also while it waits for rows.
Whatever goes wrong aborts what is open, and is raised.
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
from stratalog.spark.worker_memory import settle
from stratalog.spark.write_columns import by_topic
from stratalog.spark.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.client.arrow_sender import ArrowDelivery

_ABORT_SECONDS = 5.0


@dataclass(frozen=True)
class Attempt:
    """Which attempt of which task of which sink writes."""

    ids: SinkIds
    partition: int
    number: int

    def transactional_id(self, part: int) -> str:
        return self.ids.attempt(self.partition, self.number, part)


def write_in_transactions(
    batches: Iterable[pa.RecordBatch], options: WriteOptions, attempt: Attempt
) -> tuple[int, tuple[PreparedTransaction, ...]]:
    """How many rows there were, and the transactions that hold them."""
    settle()
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
    """At least once: a task that is done again writes again."""
    settle()
    rows = 0
    producer: Producer | None = None
    under_way: deque[ArrowDelivery] = deque()
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            producer = producer or Producer.from_config(options.producer_config(None))
            rows += batch.num_rows
            under_way.extend(producer.send_arrow(*one) for one in by_topic(batch, options.topic))
            while under_way and under_way[0].done():
                under_way.popleft().result()
        for delivery in under_way:
            delivery.result()
        return rows
    finally:
        if producer is not None:
            producer.close(0 if under_way and not under_way[-1].done() else None)


class TaskTransactions:
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
        """All that was sent is acknowledged, and waits for the decision."""
        with self._lock:
            self._check()
            self._prepare()
            return tuple(self._prepared)

    def close(self) -> None:
        """What is not prepared is aborted."""
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
        seconds = producer.settings.delivery_timeout_ms / 1000  # as long as a record may take
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
        """So nothing is open for longer than half of the transaction's timeout."""
        while not self._ended.wait(interval):
            with self._lock:
                try:
                    self._prepare()
                except Exception as error:
                    self._failure = error
                    return
