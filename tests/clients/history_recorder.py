"""Records a history: writers of all clients with their own transactions, and concurrent readers of committed records.

A writer notes a value before it writes it, and the outcome once it is known. After an error it continues with a new
producer, which aborts the transaction that the previous producer left open.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Sequence

from tests.clients.aio import LoopThread
from tests.clients.everyone import make_client
from tests.clients.interface import ConsumerOptions, Place
from tests.clients.transaction_history import Outcome, Read, Reader, Transaction, Write
from tests.clients.transactional import TransactionalProducer, transactional

ABORTS = 0.25
PAUSE_SECONDS = 0.05
STEP_SECONDS = 0.05


class Writer:
    """Writes transactions in its own thread until `stop`. After that, `transactions` is complete."""

    def __init__(self, client_name: str, address: str, places: Sequence[Place], seed: int) -> None:
        self.transactions: list[Transaction] = []
        self._client_name = client_name
        self._address = address
        self._places = places
        self._chance = random.Random(seed)
        self._loop = LoopThread()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer with {client_name}")
        self._thread.start()

    @property
    def committed(self) -> int:
        return sum(one.outcome is Outcome.COMMITTED for one in self.transactions)

    def stop(self) -> None:
        """Continue with a new producer, which aborts the open transaction."""
        self._stopping.set()
        self._thread.join()
        with contextlib.suppress(Exception):
            self._new_producer().close()
        self._loop.close()

    def _new_producer(self) -> TransactionalProducer:
        return transactional(self._client_name, self._loop, self._address, f"writer-{self._client_name}", 20_000)

    def _run(self) -> None:
        producer: TransactionalProducer | None = None
        while not self._stopping.is_set():
            try:
                producer = producer or self._new_producer()
                self._write(producer)
            except Exception:  # each client has its own exceptions
                if producer is not None:
                    with contextlib.suppress(Exception):
                        producer.close()
                producer = None
                time.sleep(PAUSE_SECONDS)
        if producer is not None:
            with contextlib.suppress(Exception):
                producer.close()

    def _write(self, producer: TransactionalProducer) -> None:
        number = len(self.transactions)
        places = self._chance.sample(self._places, self._chance.randint(2, len(self._places)))
        name = self._client_name.encode()
        writes = tuple(Write(place, b"%s-%d-%d" % (name, number, at)) for at, place in enumerate(places))
        self.transactions.append(Transaction(self._client_name, writes, Outcome.ABORTED))
        producer.begin()
        for place, value in writes:
            producer.send(place, value)
        if self._chance.random() < ABORTS:
            producer.abort()
            return
        self._note(Outcome.UNKNOWN)
        producer.commit()
        self._note(Outcome.COMMITTED)

    def _note(self, outcome: Outcome) -> None:
        last = self.transactions[-1]
        self.transactions[-1] = Transaction(last.writer, last.writes, outcome)


class Follower:
    """Reads committed records from the first on, in its own thread, across restarts of the broker."""

    def __init__(self, client_name: str, address: str, places: Sequence[Place]) -> None:
        self.name = client_name
        self._polls: list[tuple[Read, ...]] = []
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        options = ConsumerOptions(partitions=places, isolation="read_committed")
        self._loop = LoopThread()
        self._consumer = make_client(client_name, self._loop).consumer(address, options)
        self._thread = threading.Thread(target=self._run, name=f"reader with {client_name}")
        self._thread.start()

    def has_seen(self, writes: Sequence[Write]) -> bool:
        seen = {read.value for poll in list(self._polls) for read in poll}
        return all(write.value in seen for write in writes)

    def stop(self, *, reached_end: bool) -> Reader:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()
        self._loop.close()
        if self._failure is not None:
            raise self._failure
        return Reader(self.name, tuple(self._polls), reached_end)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                polled = self._consumer.poll(STEP_SECONDS)
                self._polls.append(tuple(Read(one.place, one.offset, one.value or b"") for one in polled))
        except BaseException as error:
            self._failure = error


def write_last(address: str, places: Sequence[Place]) -> Transaction:
    """Write a last value to every partition, when all writers are done. A reader that has seen it has seen all."""
    writes = tuple(Write(place, b"last-%d" % number) for number, place in enumerate(places))
    loop = LoopThread()
    try:
        with transactional("confluent-kafka", loop, address, "last") as producer:
            producer.begin()
            for place, value in writes:
                producer.send(place, value)
            producer.commit()
    finally:
        loop.close()
    return Transaction("last", writes, Outcome.COMMITTED)
