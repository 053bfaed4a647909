"""Waits that end as soon as what is waited for is there, and fail with what they saw instead."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.clients.interface import Consumer, Place, Received

PATIENCE_SECONDS = 90.0
STEP_SECONDS = 0.05


def wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"{PATIENCE_SECONDS} s went by and {what} did not happen")
        time.sleep(STEP_SECONDS)


def poll_until(consumers: Sequence[Consumer], done: Callable[[], bool], what: str = "it") -> list[Received]:
    """Polls all of them in turn, as members of a group must be, until `done`; what they got."""
    received: list[Received] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            owned = [sorted(consumer.assignment()) for consumer in consumers]
            raise AssertionError(f"{PATIENCE_SECONDS} s went by and {what} did not happen; assignments: {owned}")
        for consumer in consumers:
            received += consumer.poll(STEP_SECONDS)
    return received


def read(consumer: Consumer, count: int) -> list[Received]:
    """Exactly so many; one more would be there as well if it had been sent twice, for a batch is polled as a whole."""
    received: list[Received] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(received) < count:
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(received)} of {count} records within {PATIENCE_SECONDS} s")
        received += consumer.poll(STEP_SECONDS)
    return received


def share(consumers: Sequence[Consumer], places: set[Place]) -> list[Received]:
    """Polls until these members own all of `places`, each of them some, none of them twice."""
    return poll_until(consumers, lambda: is_shared(consumers, places), f"sharing of {sorted(places)}")


def is_shared(consumers: Sequence[Consumer], places: set[Place]) -> bool:
    owned = [consumer.assignment() for consumer in consumers]
    return all(owned) and sum(map(len, owned)) == len(places) and frozenset().union(*owned) == places
