"""Measure what transactions cost: a producer's rate with and without them, and how long a commit takes.

    python -m bench.transactions [--records 200000] [--no-kafka]

A transaction is 1,000 records of 100 bytes to a topic of one partition. Both sides of a ratio are the same client with
the same settings, connected and warmed up, in turns. A round is all its records, acknowledged or committed. Ratios are
those of wall time, the median of five rounds; 1 would mean that a transaction costs nothing.

A commit waits for its records and then for the coordinator. A fast client is idle during these two round trips, while a
producer without transactions waits only at the end of the round. So a second row has the same client wait after each
1,000 records without a transaction, and a third row shows the shortest round trip on this machine.

The latency of a commit is that of the call alone, for a transaction of one acknowledged record. It uses
confluent-kafka, which waits for the broker's response there. If `make compat` has fetched Apache Kafka, it runs on the
same machine, warmed up, and takes turns with our broker. Kafka responds once the decision is in its log, ours once the
markers are written too.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import struct
import sys
import time
from pathlib import Path

from rich.console import Console
from tests.compat.fetch_kafka import CACHE, KAFKA_VERSION
from tests.compat.kafka_server import KafkaServer

from bench.broker_kafka import JVM_OPTIONS, SETTINGS
from bench.broker_processes import broker
from bench.client_produce import ROOM, confluent_producer
from bench.measure import ROUNDS, Comparison, Cost, compare, cost_of
from bench.report import Row, directory, report
from stratalog.client.producer import Producer
from stratalog.protocol.api_keys import ApiKey

TARGET = 0.7
RECORDS_PER_TRANSACTION = 1_000
VALUE = bytes(100)
TOPIC = "bench"
SECONDS = 60
TURN = 200  # commits per turn
TURNS = 5
WARM_UP_TURNS = 10


def ours(address: str, records: int, *, waits: bool) -> Comparison:
    """Compare the rate with the same client's rate without transactions; with `waits`, it waits for each 1,000
    records."""
    step = RECORDS_PER_TRANSACTION if waits else records
    with (
        Producer(address, linger_ms=5, buffer_memory=ROOM) as plain,
        Producer(address, linger_ms=5, buffer_memory=ROOM, transactional_id="ours") as transactional,
    ):

        def without() -> None:
            send = plain.send
            for _ in range(records // step):
                for _ in range(step):
                    send(TOPIC, VALUE)
                plain.flush()

        def within() -> None:
            send = transactional.send
            for _ in range(records // RECORDS_PER_TRANSACTION):
                transactional.begin()
                for _ in range(RECORDS_PER_TRANSACTION):
                    send(TOPIC, VALUE)
                transactional.commit()

        return compare(lambda: cost_of(within), lambda: cost_of(without))


def confluent(address: str, records: int) -> Comparison:
    plain = confluent_producer(address)
    transactional = confluent_producer(address, **{"transactional.id": "confluent"})
    transactional.init_transactions(SECONDS)

    def without() -> None:
        produce = plain.produce
        for _ in range(records):
            produce(TOPIC, VALUE)
        plain.flush()

    def within() -> None:
        produce = transactional.produce
        for _ in range(records // RECORDS_PER_TRANSACTION):
            transactional.begin_transaction()
            for _ in range(RECORDS_PER_TRANSACTION):
                produce(TOPIC, VALUE)
            transactional.commit_transaction(SECONDS)

    return compare(lambda: cost_of(within), lambda: cost_of(without))


def rate_row(client: str, records: int, result: Comparison, *, waits: bool = False) -> Row:
    costs: list[Cost] = [result.ours, result.peer]
    rates = " and ".join(f"{records / cost.wall:,.0f}" for cost in costs)
    measured = f"{result.ratio:.2f} of the rate without ({rates} records/s)"
    what = f"{client}, {RECORDS_PER_TRANSACTION:,} records per transaction"
    cpu = f"{result.cpu_ratio:.2f} x"
    if waits:
        return Row(f"{what}; without: flushed as often", measured, "", None, cpu)
    return Row(what, measured, f"{TARGET:g}", result.ratio >= TARGET, cpu)


def round_trip_row(port: int) -> Row:
    """Time a request that costs the broker almost nothing, from a plain socket."""
    request = struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 1, -1)
    frame = struct.pack(">i", len(request)) + request
    times = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(TURNS * TURN):
            started = time.perf_counter()
            sock.sendall(frame)
            left = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))[0]
            sock.recv(left, socket.MSG_WAITALL)
            times.append(time.perf_counter() - started)
    return Row("round trip of a plain socket, p50", f"{statistics.median(times) * 1e3:.2f} ms", "", None)


class Commits:
    """The commits with one broker, in turns."""

    def __init__(self, address: str) -> None:
        self._producer = confluent_producer(address, **{"transactional.id": "latency", "linger.ms": 0})
        self._producer.init_transactions(SECONDS)
        self.turns: list[float] = []

    def turn(self) -> None:
        times = []
        for _ in range(TURN):
            self._producer.begin_transaction()
            self._producer.produce(TOPIC, VALUE)
            self._producer.flush(SECONDS)
            started = time.perf_counter()
            self._producer.commit_transaction(SECONDS)
            times.append(time.perf_counter() - started)
        self.turns.append(statistics.median(times) * 1e3)

    @property
    def median(self) -> float:
        return statistics.median(self.turns[-TURNS:])


def latency_row(address: str, path: Path, with_kafka: bool) -> Row:
    what = "commit of one record, p50"
    mine = Commits(address)
    if not with_kafka:
        for _ in range(TURNS + 1):
            mine.turn()
        return Row(what, f"{mine.median:.2f} ms", "", None)
    with KafkaServer(path / "kafka", SETTINGS, JVM_OPTIONS) as kafka:
        kafka.create_topic(TOPIC)
        theirs = Commits(kafka.bootstrap)
        for _ in range(WARM_UP_TURNS):
            theirs.turn()
        for number in range(TURNS + 1):
            for side in (mine, theirs) if number % 2 else (theirs, mine):
                side.turn()
    measured = f"{mine.median:.2f} ms, Apache Kafka {KAFKA_VERSION} {theirs.median:.2f} ms"
    return Row(what, measured, "", None, f"{theirs.median / mine.median:.2f} x as fast")


def run(records: int, with_kafka: bool, parent: Path | None, console: Console) -> bool:
    rows: list[Row] = []
    with directory(parent) as path, broker(path) as process:
        address = f"127.0.0.1:{process.port}"
        rows.append(rate_row("stratalog", records, ours(address, records, waits=False)))
        rows.append(rate_row("stratalog", records, ours(address, records, waits=True), waits=True))
        rows.append(round_trip_row(process.port))
        rows.append(rate_row("confluent-kafka", records, confluent(address, records)))
        rows.append(latency_row(address, path, with_kafka))
    return report(f"Transactions: {ROUNDS} rounds, medians", rows, console)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000, help="records per round")
    parser.add_argument("--no-kafka", action="store_true", help="don't compare with Apache Kafka")
    parser.add_argument("--directory", type=Path, help="directory for the broker's data")
    arguments = parser.parse_args()
    with_kafka = not arguments.no_kafka and (CACHE / f"kafka-{KAFKA_VERSION}").is_dir()
    met = run(arguments.records, with_kafka, arguments.directory, Console(width=150))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
