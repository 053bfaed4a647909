"""Send the flights to the broker as events, with Stratalog's producer, in chunks that are all acknowledged."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.client import Admin, Producer
from stratalog.demo import flights as flight_data

if TYPE_CHECKING:
    from stratalog.client.arrow_sender import ArrowDelivery

FLIGHTS, DELAYS = "flights", "delays"
_CHUNK_ROWS = 4096
_MOST_IN_FLIGHT = 8  # chunks; each is in memory twice, as columns and as batches


@dataclass(frozen=True)
class Replayed:
    events: int
    bytes: int
    seconds: float


def make_topics(bootstrap_servers: str) -> None:
    with Admin(bootstrap_servers) as admin:
        # The flights are from 2013, so the default retention of a week would delete them at once.
        admin.create_topic(FLIGHTS, flight_data.PARTITIONS, config={"retention.ms": -1})
        admin.create_topic(DELAYS, 2, config={"cleanup.policy": "compact"})


def replay(bootstrap_servers: str, flights: pa.Table, show: Callable[[int], None]) -> Replayed:
    """Send all flights, and the last event after them. `show` is called with the number of acknowledged events."""
    started, size, acknowledged = time.perf_counter(), 0, 0
    with Producer(bootstrap_servers, compression_type="lz4", linger_ms=5) as producer:
        in_flight: deque[tuple[int, ArrowDelivery]] = deque()
        for start in range(0, flights.num_rows, _CHUNK_ROWS):
            events = flight_data.events(flights.slice(start, _CHUNK_ROWS))
            size += events.nbytes
            in_flight.append((events.num_rows, producer.send_arrow(FLIGHTS, events)))
            is_last = start + _CHUNK_ROWS >= flights.num_rows
            while len(in_flight) > (0 if is_last else _MOST_IN_FLIGHT):
                rows, delivery = in_flight.popleft()
                delivery.result()
                acknowledged += rows
                show(acknowledged)
        producer.send_arrow(FLIGHTS, flight_data.last_event(flights)).result()
    return Replayed(flights.num_rows, size, time.perf_counter() - started)
