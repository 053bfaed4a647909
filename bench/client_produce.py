"""Compare the producer with those of confluent-kafka, kafka-python and aiokafka: the same broker, in turn.

    python -m bench.client_produce [--records 200000] [--only-confluent]

Each side has a producer that is connected and knows its topic, of one partition. A round sends values one by one and
waits until all are acknowledged. "The calls" is the time until the last call of send has returned, "acknowledged" the
time until the last response. Both sides are idempotent, linger 5 ms, and have memory for all records of a round. Ratios
are those of wall time, the median of five rounds in changing order. kafka-python and aiokafka are slow and send a tenth
of the records.

For the latency, records are sent one at a time with linger 0 and awaited, in turns of 200. The result is the median of
the turns' 99th percentiles.

The calls of send_arrow only plan batches. The I/O thread encodes the rows when it sends their batch. So the time to the
last response shows the full cost of tables. Next to it is the time of copying the values once into existing memory.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
from rich.console import Console

from bench.broker_processes import broker
from bench.measure import ROUNDS, Comparison, Cost, compare, cost_of
from bench.report import Row, directory, report
from stratalog.client.producer import Producer

SIZES = (100, 1024)
SEND, SEND_KAFKA_PYTHON, ARROW = 1.5, 10.0, 8.0  # times as fast
ROOM = 1024 * 1024 * 1024
LATENCY_TURN = 200
LATENCY_TURNS = 15
TOPIC = "bench"


@dataclass(frozen=True)
class SendLoad:
    address: str
    records: int
    value: bytes


class Calls:
    """How long the calls of each round took, in addition to the round itself."""

    def __init__(self) -> None:
        self.costs: list[Cost] = []

    def measure(self, send_all: Callable[[], None], wait: Callable[[], object]) -> Cost:
        calls: list[float] = []

        def work() -> None:
            started = time.perf_counter()
            send_all()
            calls.append(time.perf_counter() - started)
            wait()

        cost = cost_of(work)
        self.costs.append(Cost(calls[0], cost.cpu))
        return cost

    @property
    def wall(self) -> float:
        return statistics.median(cost.wall for cost in self.costs[1:])


def ours(load: SendLoad, producer: Producer, calls: Calls) -> Cost:
    def send_all() -> None:
        send, value = producer.send, load.value
        for _ in range(load.records):
            send(TOPIC, value)

    return calls.measure(send_all, producer.flush)


def our_arrow(producer: Producer, table: pa.Table, calls: Calls) -> Cost:
    sent: list[Any] = []
    return calls.measure(
        lambda: sent.append(producer.send_arrow(TOPIC, table)),
        lambda: sent[0].result(),
    )


def confluent(load: SendLoad, producer: confluent_kafka.Producer, calls: Calls) -> Cost:
    def send_all() -> None:
        produce, value = producer.produce, load.value
        for _ in range(load.records):
            produce(TOPIC, value)

    return calls.measure(send_all, producer.flush)


def kafka_python(load: SendLoad, producer: Any, calls: Calls) -> Cost:
    def send_all() -> None:
        for _ in range(load.records // 10):
            producer.send(TOPIC, load.value)

    return _times_ten(calls.measure(send_all, producer.flush))


def aiokafka_send(load: SendLoad) -> Cost:
    import aiokafka

    async def run() -> Cost:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=load.address, linger_ms=5, max_batch_size=1_000_000, enable_idempotence=True
        )
        await producer.start()
        await producer.send_and_wait(TOPIC, load.value)
        started, cpu = time.perf_counter(), time.process_time()
        for _ in range(load.records // 10):
            await producer.send(TOPIC, load.value)
        await producer.flush()
        cost = Cost(time.perf_counter() - started, time.process_time() - cpu)
        await producer.stop()
        return cost

    return _times_ten(asyncio.run(run()))


def _times_ten(cost: Cost) -> Cost:
    return Cost(cost.wall * 10, cost.cpu * 10)


def confluent_producer(address: str, **settings: Any) -> confluent_kafka.Producer:
    config = {
        "bootstrap.servers": address,
        "linger.ms": 5,
        "enable.idempotence": True,
        "queue.buffering.max.messages": 10_000_000,
        "queue.buffering.max.kbytes": ROOM // 1024,
        "batch.num.messages": 1_000_000,  # with the default, 10,000, small records make smaller batches than ours
        "log_level": 0,
    }
    return confluent_kafka.Producer(config | settings)


def send_rows(load: SendLoad, only_confluent: bool) -> list[Row]:
    size = f"{len(load.value)} B"
    rows: list[Row] = []
    theirs = confluent_producer(load.address)
    theirs.produce(TOPIC, load.value)
    theirs.flush()
    table = pa.table({"value": pa.array([load.value] * load.records, pa.binary())})
    with Producer(load.address, linger_ms=5, buffer_memory=ROOM) as producer:
        producer.send(TOPIC, load.value).result()
        mine, other = Calls(), Calls()
        result = compare(lambda: ours(load, producer, mine), lambda: confluent(load, theirs, other))
        rows += _rows(f"send, {size}", "confluent-kafka", load, result, mine, other, SEND)
        mine, other = Calls(), Calls()
        result = compare(lambda: our_arrow(producer, table, mine), lambda: confluent(load, theirs, other))
        rows += _rows(f"send_arrow, {size}", "confluent-kafka", load, result, mine, other, ARROW)
        rows.append(copy_row(load, table, result))
        if not only_confluent:
            rows += slow_rows(load, producer, size)
    return rows


def copy_row(load: SendLoad, table: pa.Table, acknowledged: Comparison) -> Row:
    values = memoryview(table.column("value").chunk(0).buffers()[2]).cast("B")
    memory = memoryview(bytearray(len(values)))

    def copy() -> None:
        memory[:] = values

    alone = statistics.median(cost_of(copy).wall for _ in range(ROUNDS))
    times = acknowledged.peer.wall / alone
    measured = f"{times:.1f} x confluent-kafka ({alone / load.records * 1e6:.2f} µs per record)"
    share = f"{alone / acknowledged.ours.wall:.0%} of the time to acknowledged"
    return Row(f"copying the values alone, {len(load.value)} B", f"{measured}, {share}", "", None)


def slow_rows(load: SendLoad, producer: Producer, size: str) -> list[Row]:
    import kafka

    slow = kafka.KafkaProducer(
        bootstrap_servers=load.address, linger_ms=5, batch_size=1_000_000, enable_idempotence=True
    )
    slow.send(TOPIC, load.value)
    slow.flush()
    mine, other = Calls(), Calls()
    result = compare(lambda: ours(load, producer, mine), lambda: kafka_python(load, slow, other), rounds=2)
    slow.close()
    rows = [_row(f"send, {size}, acknowledged", "kafka-python", load, result, SEND_KAFKA_PYTHON)]
    result = compare(lambda: ours(load, producer, mine), lambda: aiokafka_send(load), rounds=2)
    rows.append(_row(f"send, {size}, acknowledged", "aiokafka", load, result, None))
    return rows


def _rows(
    what: str, client: str, load: SendLoad, result: Comparison, mine: Calls, other: Calls, target: float
) -> list[Row]:
    calls = other.wall / mine.wall
    each = f"{mine.wall / load.records * 1e6:.2f} and {other.wall / load.records * 1e6:.2f} µs per record"
    return [
        _row(f"{what}, acknowledged", client, load, result, None),
        Row(f"{what}, the calls", f"{calls:.1f} x {client} ({each})", f"{target:g} x", calls >= target),
    ]


def _row(what: str, client: str, load: SendLoad, result: Comparison, target: float | None) -> Row:
    each = f"{result.ours.wall / load.records * 1e6:.2f} and {result.peer.wall / load.records * 1e6:.2f} µs per record"
    aim = "" if target is None else f"{target:g} x"
    met = None if target is None else result.ratio >= target
    return Row(what, f"{result.ratio:.1f} x {client} ({each})", aim, met, f"{result.cpu_ratio:.1f} x")


def latency_row(address: str) -> Row:
    value = bytes(100)
    theirs = confluent_producer(address, **{"linger.ms": 0})
    done: list[object] = []

    def one_of_theirs() -> None:
        theirs.produce(TOPIC, value, on_delivery=lambda error, _: done.append(error))
        while not done:
            theirs.poll(1)
        done.clear()

    with Producer(address, linger_ms=0) as producer:

        def one_of_ours() -> None:
            producer.send(TOPIC, value).result()

        sides = {"ours": one_of_ours, "theirs": one_of_theirs}
        turns: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
        for number in range(LATENCY_TURNS + 1):
            for name in sorted(sides, reverse=bool(number % 2)):
                percentiles = _latencies(sides[name])
                if number:  # the first turn does not count
                    turns[name].append(percentiles)
    middle = {name: [statistics.median(column) for column in zip(*each, strict=True)] for name, each in turns.items()}
    (our_50, our_99), (their_50, their_99) = middle["ours"], middle["theirs"]
    measured = f"{our_99:.0f} and {their_99:.0f} µs (median {our_50:.0f} and {their_50:.0f})"
    return Row("one record, p99 to acknowledged", measured, "confluent-kafka's", our_99 <= their_99)


def _latencies(send_one: Callable[[], None]) -> tuple[float, float]:
    """Return the median and the 99th percentile, in microseconds."""
    times = []
    for _ in range(LATENCY_TURN):
        started = time.perf_counter()
        send_one()
        times.append((time.perf_counter() - started) * 1e6)
    times.sort()
    return times[LATENCY_TURN // 2], times[LATENCY_TURN * 99 // 100]


def run(records: int, only_confluent: bool, parent: Path | None, console: Console) -> bool:
    rows: list[Row] = []
    with directory(parent) as path, broker(path) as process:
        address = f"127.0.0.1:{process.port}"
        for size in SIZES:
            rows += send_rows(SendLoad(address, records if size < 1000 else records // 2, bytes(size)), only_confluent)
        rows.append(latency_row(address))
    return report(f"Producing: {ROUNDS} rounds, medians", rows, console)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000, help="records per round; half as many large ones")
    parser.add_argument("--only-confluent", action="store_true", help="leave out the slow clients")
    parser.add_argument("--directory", type=Path, help="directory for the broker's data")
    arguments = parser.parse_args()
    met = run(arguments.records, arguments.only_confluent, arguments.directory, Console(width=150))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
