"""A copier: reads records, writes them to another topic and commits its offsets, all in transactions. It runs in a
process of its own, so that it can be killed, and starts again after every error, as a good application does.

It aborts some transactions by itself, including the first, after it has written records that must stay invisible. Its
processes are forked from one that has already imported the clients, so that a killed copier is replaced at once.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import random
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

from tests.clients.aio import LoopThread
from tests.clients.everyone import make_client
from tests.clients.interface import ConsumerOptions, Place
from tests.clients.transactional import transactional
from tests.clients.waiting import wait_until

SOURCE = Place("source", 0)
TARGETS = [Place("target", partition) for partition in range(2)]
ABORTED = b"aborted-"
NAME = "copier"  # its group, and its transactional id
A_TRANSACTION = 5
ABORTS = 0.2
PAUSE_SECONDS = 0.05
END_SECONDS = 30


class Copier:
    def __init__(self, client_name: str, address: str, seed: int) -> None:
        self._chance = random.Random(seed)
        self._client_name = client_name
        self._address = address
        self._context = _fork_server()
        self._begun: Any = self._context.RawValue("q", 0)  # without a lock, which a killed process would keep
        self._process: BaseProcess | None = None

    def start(self) -> None:
        if self._process is None:
            arguments = (self._client_name, self._address, self._chance.random(), self._begun)
            self._process = self._context.Process(target=copy_for_ever, args=arguments)
            self._process.start()

    def kill(self) -> None:
        """Send SIGKILL, if the copier runs."""
        if self._process is not None:
            self._process.kill()
            self._process.join(END_SECONDS)
            self._process.close()
            self._process = None

    def wait_for_more(self) -> None:
        """Wait until it has a transaction open with records and offsets that it begins from now on."""
        before = self._begun.value
        wait_until(lambda: self._begun.value > before, f"a transaction of {self._client_name}")

    def __enter__(self) -> Copier:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _fork_server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


# The rest of this file runs in the copier's process


def copy_for_ever(client_name: str, address: str, seed: float, begun: Any) -> None:
    logging.disable(logging.CRITICAL)  # clients log much about unreachable brokers
    chance = random.Random(seed)
    thread = LoopThread()
    while True:
        with contextlib.suppress(Exception):  # each client has its own exceptions
            _copy(client_name, address, thread, chance, begun)
        time.sleep(PAUSE_SECONDS)


def _copy(client_name: str, address: str, thread: LoopThread, chance: random.Random, begun: Any) -> None:
    """Copy until something fails. The transaction that the last copier left open is aborted before the offsets are
    fetched."""
    options = ConsumerOptions(group=NAME, partitions=[SOURCE], isolation="read_committed")
    with contextlib.ExitStack() as opened:
        producer = opened.enter_context(transactional(client_name, thread, address, NAME))
        consumer = opened.enter_context(make_client(client_name, thread).consumer(address, options))
        for number, (values, position) in enumerate(_portions(consumer)):
            aborts = number == 0 or chance.random() < ABORTS
            while True:
                producer.begin()
                for value in values:
                    target = TARGETS[int(value) % len(TARGETS)]
                    producer.send(target, ABORTED + value if aborts else value)
                producer.send_offsets(NAME, {SOURCE: position})
                begun.value += 1
                if not aborts:
                    break
                producer.abort()
                aborts = False
            producer.commit()


def _portions(consumer: Any) -> Iterator[tuple[list[bytes], int]]:
    """Return some values, and the offset after them."""
    while True:
        received = consumer.poll(0.1)
        for first in range(0, len(received), A_TRANSACTION):
            some = received[first : first + A_TRANSACTION]
            yield [one.value or b"" for one in some], some[-1].offset + 1
