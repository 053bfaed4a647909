"""Both sides of a comparison: the broker and a bare peer, under the same load, each in a new process and directory.

A `Server` is measured. The result is a `Load`, which includes the server's CPU time.
"""

from __future__ import annotations

import os
import statistics
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bench.broker_frames import TOPIC, Ring, batch_of, fetch_ring, produce_response, produce_ring, records_in
from bench.broker_load import Fetching, Generator, Limit, Load, Producing
from bench.broker_processes import broker, peer
from bench.broker_wire import Wire
from bench.measure import Comparison, Cost, compare
from bench.report import directory

MIB = 1024 * 1024
FETCH_RESPONSES = 256  # of 1 MiB: the size of the fetched file
WARM_UP = 0.2  # share of a round's limit
TIMEOUT = 60.0
ZEROS = bytes(MIB)


class Server(Protocol):
    @property
    def port(self) -> int: ...

    def cpu(self) -> tuple[float, float]: ...


@dataclass(frozen=True)
class Options:
    parent: Path | None
    seconds: float
    largest: int  # the most bytes that a round writes
    value_bytes: int
    in_flight: int
    discard: bool
    wake_bytes: int
    rounds: int
    partitions: int = 1_000  # partitions of the broker that is started and killed


@dataclass(frozen=True)
class Result:
    comparison: Comparison
    ours: list[Load]
    others: list[Load]

    def per_gb(self, figure: Callable[[Load], float]) -> float:
        """Return the figure per GB over all rounds, because the kernel's CPU clock is too coarse for one round."""
        return sum(figure(load) for load in self.ours) / sum(load.gb for load in self.ours)

    def requests_per_second(self) -> float:
        return statistics.median(load.requests / load.wall for load in self.ours)

    def others_requests_per_second(self) -> float:
        return statistics.median(load.requests / load.wall for load in self.others)

    def requests_per_cpu_second(self) -> float:
        return sum(load.requests for load in self.ours) / sum(load.cpu for load in self.ours)

    def busy(self) -> str:
        return f"generator {statistics.median(load.busy for load in self.ours):.0%} busy"

    def cpu(self) -> str:
        user, system = self.per_gb(lambda load: load.user), self.per_gb(lambda load: load.system)
        speed = statistics.median(load.gb / load.wall for load in self.ours)
        other = statistics.median(load.gb / load.wall for load in self.others)
        return (
            f"{user:.2f} user + {system:.2f} system s per GB against {self.comparison.peer.cpu:.2f}; "
            f"{speed:.2f} against {other:.2f} GB/s; {self.busy()}"
        )


def against(ours: Callable[[], Load], others: Callable[[], Load], rounds: int) -> Result:
    """Run both sides in turn, and compare their costs per GB."""
    loads: tuple[list[Load], list[Load]] = ([], [])

    def costs(side: int, run: Callable[[], Load]) -> Callable[[], Cost]:
        def cost() -> Cost:
            load = run()
            loads[side].append(load)
            return Cost(load.wall / load.gb, load.cpu / load.gb)

        return cost

    comparison = compare(costs(0, ours), costs(1, others), rounds)
    return Result(comparison, loads[0][1:], loads[1][1:])  # the first is compare's own warm-up


def back_with_memory(path: Path, size: int) -> None:
    """Write `size` bytes to the page cache, and drop them again.

    A virtual machine may return freed memory to its host. The next write to that memory then costs several times as
    much, and which side pays is random. Memory that was freed just now is still available, and is used first.
    """
    scratch = path / "scratch"
    with scratch.open("wb", buffering=0) as file:
        for _ in range(0, int(size * (1 + WARM_UP)), MIB):
            file.write(ZEROS)
    scratch.unlink()


def measured(server: Server, generator: Generator, limit: Limit) -> Load:
    generator.run(Limit(limit.seconds * WARM_UP, max(1, int(limit.requests * WARM_UP))))
    before = server.cpu()
    load = generator.run(limit)
    after = server.cpu()
    return replace(load, user=after[0] - before[0], system=after[1] - before[1])


@dataclass(frozen=True)
class ProduceLoad:
    """Produce requests of one ring, with `in_flight` requests on each of `connections`."""

    options: Options
    ring: Ring
    in_flight: int
    connections: int = 1

    def to_broker(self) -> Load:
        with directory(self.options.parent) as path, broker(path) as process:
            back_with_memory(path, self.options.largest)
            return self.to_new_topic(process)

    def to_new_topic(self, server: Server) -> Load:
        with Wire(server.port) as wire:
            wire.create_topic(TOPIC)
            wire.await_leader(TOPIC)
        return self._drive(server, ordered=True, connections=self.connections)

    def to_bare_peer(self) -> Load:
        """Use one connection: the peer serves one at a time."""
        response = produce_response().hex()
        with (
            directory(self.options.parent) as path,
            peer(path, "receive", path / "file", self.ring.frame_bytes, response) as process,
        ):
            back_with_memory(path, self.options.largest)
            return self._drive(process, ordered=False, connections=1)

    def _drive(self, server: Server, *, ordered: bool, connections: int) -> Load:
        limit = Limit(self.options.seconds, max(1, self.options.largest // self.ring.frame_bytes))
        streams = [Producing(server.port, self.ring, self.in_flight, ordered=ordered) for _ in range(connections)]
        with Generator(streams) as generator:
            return measured(server, generator, limit)


class FetchLoad:
    """Fetches 1 MiB at a time from a file in the page cache, from start to end, repeatedly."""

    def __init__(self, options: Options, batch_bytes: int) -> None:
        self._options = options
        self._batch = batch_of(batch_bytes, options.value_bytes)
        self._each = MIB // batch_bytes  # batches per response

    def from_broker(self) -> Load:
        with directory(self._options.parent) as path, broker(path) as process:
            return self.from_new_topic(process)

    def from_new_topic(self, server: Server) -> Load:
        with Wire(server.port) as wire:
            wire.create_topic(TOPIC)
            wire.await_leader(TOPIC)
            topic_id = wire.topic_id(TOPIC)
        filling = Producing(server.port, produce_ring([self._batch], 16), 1, ordered=True)
        with Generator([filling]) as generator:
            generator.run(Limit(TIMEOUT, FETCH_RESPONSES * self._each))
        step = self._each * records_in(self._batch)
        ring = fetch_ring(topic_id, [number * step for number in range(FETCH_RESPONSES)], MIB)
        return self._drive(server, ring, ordered=True)

    def from_bare_peer(self) -> Load:
        ring = fetch_ring(uuid.UUID(int=0), [0], MIB)
        size = self._each * len(self._batch)
        with directory(self._options.parent) as path:
            (path / "file").write_bytes((size.to_bytes(4, "big") + os.urandom(size)) * FETCH_RESPONSES)
            with peer(path, "send", path / "file", ring.frame_bytes, size + 4) as process:
                return self._drive(process, ring, ordered=False)

    def _drive(self, server: Server, ring: Ring, *, ordered: bool) -> Load:
        options = self._options
        least = int(MIB * 0.9)
        stream = Fetching(
            server.port,
            ring,
            options.in_flight,
            least=least,
            ordered=ordered,
            discard=options.discard,
            wake_bytes=options.wake_bytes,
        )
        with Generator([stream]) as generator:
            generator.run(Limit(TIMEOUT, FETCH_RESPONSES))  # so that the measured fetches need no verification
            return measured(server, generator, Limit(options.seconds, 2**63))
