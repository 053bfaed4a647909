"""Waits that return as soon as a condition holds, and fail with what they saw instead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tests.clients.interface import Consumer, Place, Received

PATIENCE_SECONDS = 45.0
STEP_SECONDS = 0.05


def wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"{PATIENCE_SECONDS} s went by and {what} did not happen")
        time.sleep(STEP_SECONDS)


def poll_until(
    consumers: Sequence[Consumer], done: Callable[[list[Received]], bool], what: str = "it"
) -> list[Received]:
    """Poll each consumer in its own thread until `done(records so far)`. Members of a group need threads of their
    own."""
    received: list[Received] = []
    failures: list[BaseException] = []
    stopping = threading.Event()

    def keep_polling(consumer: Consumer) -> None:
        try:
            while not stopping.is_set():
                received.extend(consumer.poll(STEP_SECONDS))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=keep_polling, args=(consumer,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while not failures and not done(list(received)) and time.monotonic() < deadline:
            time.sleep(STEP_SECONDS / 2)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    if not done(received):
        owned = [sorted(consumer.owned) for consumer in consumers]
        raise AssertionError(
            f"{PATIENCE_SECONDS} s went by and {what} did not happen; "
            f"{len(received)} records received, assignments: {owned}"
        )
    return received


def read(consumer: Consumer, count: int) -> list[Received]:
    """Read at least `count` records: the last poll may return more."""
    return poll_until([consumer], lambda received: len(received) >= count, f"reading of {count} records")


def share(consumers: Sequence[Consumer], places: set[Place]) -> list[Received]:
    """Poll until these members own all of `places`, in equal shares and each by one member."""
    return poll_until(consumers, lambda _: is_shared(consumers, places), f"sharing of {sorted(places)}")


def is_shared(consumers: Sequence[Consumer], places: set[Place]) -> bool:
    owned = [consumer.owned for consumer in consumers]
    sizes = [len(one) for one in owned]
    is_even = min(sizes) > 0 and max(sizes) - min(sizes) <= 1
    return is_even and sum(sizes) == len(places) and frozenset().union(*owned) == places
