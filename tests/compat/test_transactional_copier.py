"""Java's TransactionalMessageCopier, killed together with its broker, copies each input exactly once."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.client.read_committed import expect_committed, read_values
from tests.clients.admin import create_topic
from tests.clients.confluent import ConfluentClient
from tests.clients.interface import ConsumerOptions, Message, Place
from tests.compat.java_tools import TOOLS
from tests.compat.jvm import SILENT, java_command

pytestmark = pytest.mark.compat

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
INPUTS = 6_000
SOURCE = Place("source", 0)
SECONDS = 60
PAUSE_SECONDS = 0.05
KILLED = (("copier",), ("broker", "copier"), ("broker",))


class JavaCopier:
    """The copier, which ends by itself when all inputs are copied."""

    def __init__(self, address: str) -> None:
        arguments = ["--broker-list", address, "--transactional-id", "copier", "--consumer-group", "copier"]
        arguments += ["--input-topic", "source", "--input-partition", "0", "--output-topic", "target"]
        arguments += ["--transaction-size", "3", "--transaction-timeout", "20000", "--enable-random-aborts"]
        arguments += ["--max-messages", str(INPUTS)]
        self._command = java_command(TOOLS + "TransactionalMessageCopier", arguments, options=("-Xmx256m", *SILENT))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is None:
            self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(SECONDS)
            self._process = None


def copied(address: str) -> int:
    """Return the number of copied inputs, by the committed offset."""
    options = ConsumerOptions(group="copier", partitions=[SOURCE], isolation="read_committed")
    with ConfluentClient().consumer(address, options) as consumer:
        return consumer.committed(SOURCE) or 0


def await_more(address: str, before: int) -> int:
    """Wait until more inputs are copied, and return their number. A JVM has to start first, which is slow on a busy
    machine."""
    deadline = time.monotonic() + 2 * SECONDS
    while (so_far := copied(address)) <= before:
        assert time.monotonic() < deadline, f"nothing more than {before} records is copied"
        time.sleep(PAUSE_SECONDS)
    return so_far


def test_javas_copier_has_each_input_once_over_kills(tmp_path: Path) -> None:
    inputs = [b"%d" % number for number in range(INPUTS)]
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker:
        create_topic(broker.address, "source")
        create_topic(broker.address, "target")
        with ConfluentClient().producer(broker.address, idempotent=True) as producer:
            producer.send("source", [Message(value) for value in inputs])
        copier = JavaCopier(broker.address)
        try:
            copier.start()
            so_far = 0
            for doomed in KILLED:
                so_far = await_more(broker.address, so_far)
                assert so_far < INPUTS, "there is nothing left to copy: this run shows nothing"
                for one in doomed:
                    broker.kill() if one == "broker" else copier.kill()
                if "broker" in doomed:
                    broker.start()
                copier.start()
            expect_committed(broker.address, "target", inputs)
        finally:
            copier.kill()
        assert len(read_values(broker.address, "target", level="read_uncommitted")) > INPUTS
        assert broker.errors() == []
