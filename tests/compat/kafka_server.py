"""A real Apache Kafka: one KRaft node, broker and controller in one process, on free loopback ports.

    with KafkaServer(directory) as server:
        server.create_topic("events")
        ... produce and consume through server.bootstrap ...
        server.stop()       # SIGTERM: a clean shutdown
        ... change files in server.partition_dir("events") ...
        server.start()      # on the same data directory, on new ports

The data directory lives as long as its owner wants; the process never outlives the `with` block. Kafka
renames partition directories that its metadata does not know: let it create a topic first, then write there.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.compat.jvm import java_command, run_tool_or_fail
from tests.compat.kafka_python import KafkaAdminClient

START_SECONDS = 90
STOP_SECONDS = 60
POLL_SECONDS = 0.05
STARTED = "Kafka Server started"
CLUSTER_ID = "c3RyYXRhbG9nLWNvbXBhdA"  # any 16 bytes in URL-safe base64

SMALL_HEAP = ("-Xms128m", "-Xmx512m")
SMALL = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "1500",  # how long a start after kill -9 waits for the dead broker's session
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.index.size.max.bytes": "65536",
}


class ServerFailedError(Exception):
    """The broker did not start or stop in time, or died; the message has its errors and its last lines."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class KafkaServer:
    """One broker on `directory`; `settings` override server.properties and may change between starts."""

    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, jvm_options: Sequence[str] = SMALL_HEAP
    ) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.log_file = directory / "server.log"
        self.settings = dict(settings or {})
        self.jvm_options = jvm_options
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    def __enter__(self) -> KafkaServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        return self.data_dir / f"{topic}-{partition}"

    def start(self) -> None:
        """Start on the data directory, formatting it if it is new. Return when the broker serves requests."""
        if self._process is not None:
            raise ServerFailedError("already running")
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self._write_properties()
        if not (self.data_dir / "meta.properties").exists():
            arguments = ["format", "--cluster-id", CLUSTER_ID, "--config", str(properties)]
            run_tool_or_fail("kafka.tools.StorageTool", arguments)
        if self.log_file.exists():
            self.log_file.rename(self.directory / f"server.log.{time.time_ns()}")
        options = (
            *self.jvm_options,
            f"-Dorg.slf4j.simpleLogger.logFile={self.log_file}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
        )
        self._output = (self.directory / "server.out").open("wb")
        command = java_command("kafka.Kafka", [str(properties)], options=options)
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT
        )
        self._await_start()

    def stop(self) -> None:
        """Shut down cleanly: Kafka flushes, trims its indexes and writes .kafka_cleanshutdown."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            exit_code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not stop within {STOP_SECONDS} s of SIGTERM") from None
        self._forget()
        if exit_code not in (0, 128 + signal.SIGTERM):
            raise self._failure(f"ended with exit code {exit_code} on SIGTERM")
        if not (self.data_dir / ".kafka_cleanshutdown").exists():
            raise self._failure("left no .kafka_cleanshutdown behind")

    def kill(self) -> None:
        """Kill the process with SIGKILL, if it is running."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(STOP_SECONDS)
        self._forget()

    def log_lines(self, containing: str) -> list[str]:
        """Return the lines of the current run's log that contain this text."""
        lines = self.log_file.read_text(errors="replace").splitlines()
        return [line for line in lines if containing in line]

    def create_topic(self, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            options = {"num_partitions": partitions, "replication_factor": 1, "configs": dict(config or {})}
            admin.create_topics({topic: options}, wait_for_metadata=True)
        finally:
            admin.close()

    def _write_properties(self) -> Path:
        self.port, controller_port = free_port(), free_port()
        return self._write_node(1, f"127.0.0.1:{controller_port}", f"1@127.0.0.1:{controller_port}")

    def _write_node(self, node_id: int, controller: str, voters: str) -> Path:
        """Write server.properties of a node that is broker and controller, and return the file."""
        address = f"127.0.0.1:{self.port}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": voters,
            "log.dirs": str(self.data_dir),
            **SMALL,
            **self.settings,
        }
        path = self.directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return path

    def _await_start(self) -> None:
        process = self._running()
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                self._forget()
                raise self._failure(f"died while starting, exit code {process.returncode}")
            if self.log_file.exists() and self.log_lines(STARTED):
                return
            time.sleep(POLL_SECONDS)
        self.kill()
        raise self._failure(f"did not start within {START_SECONDS} s")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailedError("not running")
        return self._process

    def _forget(self) -> None:
        self._process = None
        if self._output is not None:
            self._output.close()
            self._output = None

    def _failure(self, what: str) -> ServerFailedError:
        lines = self.log_lines("") if self.log_file.exists() else []
        causes = [line for line in lines if " ERROR " in line or "Exception: " in line]
        tail = "\n".join([*causes[:10], "...", *lines[-10:]])
        output = self.directory / "server.out"
        tail += output.read_text(errors="replace")[-4000:] if output.exists() else ""
        return ServerFailedError(f"the broker {what}\n{tail}")
