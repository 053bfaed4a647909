"""The kernel's view of the rule that the event loop waits for no disk: strace lists the calls of the loop's thread.

The workload touches every state that syncs: rolls, flushes, compaction, retention, topics created and deleted, groups,
transactions, cold reads, also in the topics that hold the broker's own state. tests/broker/test_event_loop.py checks
the same in Python, with every API.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.client import Admin, Consumer, Producer, TopicPartition
from stratalog.client.administration.configs import ConfigResource
from stratalog.lab.broker_child import STOP_SECONDS
from tests.broker.process import BrokerProcess
from tests.compat.fetch_debian import DebianProgram, fetch
from tests.compat.fetch_kafka import CannotFetchError

pytestmark = pytest.mark.compat

# Calls that wait for a disk, or change a directory, which may wait for the file system's journal.
WAITING = "fsync,fdatasync,msync,sync,syncfs,sync_file_range,rename,renameat,renameat2,unlink,unlinkat,mkdir,rmdir"
CALL = re.compile(r"^(\d+) +(\w+)\(")
STATE_TOPICS = ("__consumer_offsets", "__transaction_state")


class TracedBroker(BrokerProcess):
    """`stratalog serve` under strace, which follows its threads."""

    def __init__(self, strace: DebianProgram, data_dir: Path, trace: Path, settings: dict[str, object]) -> None:
        super().__init__(data_dir, settings)
        self.trace = trace
        self._strace = strace

    def _command(self) -> list[str]:
        traced = ["-f", "-qq", "-e", f"trace={WAITING}", "-e", "signal=none", "-o", str(self.trace)]
        return [self._strace.program, *traced, *super()._command()]

    def environment(self) -> dict[str, str]:
        return super().environment() | self._strace.environment()

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = STOP_SECONDS) -> int:
        """Stop the broker; strace ends with it. Signals to strace itself would leave the broker running."""
        os.kill(self.main_thread(), number)
        return self.wait_for_end(seconds)

    def kill(self) -> None:
        if self.is_running:
            os.kill(self.main_thread(), signal.SIGKILL)
        super().kill()

    def calls(self) -> list[tuple[int, str]]:
        """Return the thread and the name of each traced call so far."""
        matches = (CALL.match(line) for line in self.trace.read_text().splitlines())
        return [(int(match[1]), match[2]) for match in matches if match is not None]

    def main_thread(self) -> int:
        """Return the id of the thread that runs the event loop: strace's only child."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        (child,) = children
        return int(child)


@pytest.fixture(scope="module")
def strace() -> DebianProgram:
    try:
        program = fetch("strace")
    except CannotFetchError as error:
        pytest.skip(f"strace is not available on this machine: {error}")
    command = [program.program, "-f", "-e", "trace=fsync", sys.executable, "-c", "pass"]
    if subprocess.run(command, env=program.environment(), capture_output=True, check=False).returncode != 0:
        pytest.skip("strace can't trace a process on this machine: ptrace is not permitted")
    return program


@pytest.fixture
def broker(strace: DebianProgram, tmp_path: Path) -> Iterator[TracedBroker]:
    settings: dict[str, object] = {
        "log.segment.bytes": 16_384,
        "log.retention.check.interval.ms": 200,
        "log.flush.scheduler.interval.ms": 200,
        "log.cleaner.backoff.ms": 200,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    with TracedBroker(strace, tmp_path / "data", tmp_path / "trace", settings) as running:
        yield running


def test_the_event_loop_waits_for_a_disk(broker: TracedBroker) -> None:
    loop, before = broker.main_thread(), len(broker.calls())
    address = broker.bootstrap_servers
    with Admin(address) as admin:
        admin.create_topic("orders", 3)
        admin.create_topic("flushed", 1, config={"flush.messages": "1"})
        admin.create_topic("compacted", 1, config={"cleanup.policy": "compact", "segment.ms": "1"})
    with Producer(address, transactional_id="t") as producer, Producer(address) as plain:
        for _ in range(50):
            for name in ("orders", "flushed", "compacted"):
                plain.send(name, bytes(1000), key=b"key")
            plain.flush()
            with producer.transaction():
                producer.send("orders", bytes(1000))
    with Consumer(address, group_id="group", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders", "flushed", "compacted"])
        assert consumer.poll(30)
        consumer.commit()
    with Admin(address) as admin:
        for name in STATE_TOPICS:
            changes = {"flush.messages": "1", "segment.bytes": "16384"}
            admin.alter_configs({ConfigResource.topic(name): changes})
    with Producer(address, transactional_id="t") as producer, Consumer(address, group_id="group") as consumer:
        for number in range(150):
            with producer.transaction():
                producer.send("flushed", b"value")
            consumer.commit({TopicPartition("flushed", 0): number})
    with Admin(address) as admin:
        admin.delete_records({TopicPartition("orders", 0): 3})
        admin.delete_topics(["orders", "compacted"])
    calls = broker.calls()[before:]
    assert len({thread for thread, _ in calls}) > 1, "no thread has synced: the workload checks nothing"
    assert [name for thread, name in calls if thread == loop] == []
