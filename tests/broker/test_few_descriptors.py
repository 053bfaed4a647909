"""More partitions than the process can open files: the partitions take turns, and clients can still connect."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from stratalog.cli.main import run
from stratalog.client import Admin, Consumer, Producer
from tests.broker.process import BrokerProcess

DESCRIPTORS = 128
PARTITIONS = 200
CLIENTS = 20
EVERYWHERE = [("wide", partition) for partition in range(PARTITIONS)]


class BrokerWithFewDescriptors(BrokerProcess):
    module = "tests.broker.test_few_descriptors"


def produce(address: str, value: bytes) -> None:
    with Producer(address) as producer:
        sent = [producer.send("wide", value, partition=partition) for _, partition in EVERYWHERE]
        producer.flush()
        for one in sent:
            one.result(0)


def fetch(address: str, records: int) -> dict[int, list[bytes | None]]:
    """Return the values of the records of each partition."""
    found: dict[int, list[bytes | None]] = {partition: [] for _, partition in EVERYWHERE}
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign(EVERYWHERE)
        while sum(map(len, found.values())) < records * PARTITIONS:
            for place, fetched in consumer.poll(10).items():
                found[place.partition] += [record.value for record in fetched]
    return found


def greet(address: str) -> None:
    """Send a request on many connections that are open at the same time."""
    with contextlib.ExitStack() as stack:
        for _ in range(CLIENTS):
            admin = stack.enter_context(Admin(address))
            assert admin.describe_cluster().nodes


def test_partitions_do_not_take_the_descriptors_that_clients_need(tmp_path: Path) -> None:
    written = [b"first"]
    with BrokerWithFewDescriptors(tmp_path / "data") as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("wide", PARTITIONS, timeout=60)
        produce(broker.address, b"first")
        for stop in (broker.stop, broker.kill, broker.stop):
            assert all(values == written for values in fetch(broker.address, len(written)).values())
            greet(broker.address)
            assert len(list(Path(f"/proc/{broker.pid}/fd").iterdir())) < DESCRIPTORS
            stop()
            broker.start()
            greet(broker.address)
            written.append(f"after {stop.__name__}".encode())
            produce(broker.address, written[-1])
        assert all(values == written for values in fetch(broker.address, len(written)).values())
        assert broker.errors() == []


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    run()
