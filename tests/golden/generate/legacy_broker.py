"""Apache Kafka 0.10.2.2 with its ZooKeeper: the last broker that writes magic 0 and 1 as its own format.

On a current Java it needs two workarounds: an API that Java 11 dropped (jaxb), and opened JDK packages for unmapping
its indexes. Both processes use the loopback address. They end with the `with` block, by their process ids.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.compat.fetch_kafka import fetch
from tests.compat.kafka_server import free_port

VERSION = "0.10.2.2"
ARTIFACTS = (f"org.apache.kafka:kafka_2.12:{VERSION}", "javax.xml.bind:jaxb-api:2.3.1")
OPENED = ("java.nio", "sun.nio.ch", "java.lang")
WAIT_SECONDS = 60

LOGGING = """\
log4j.rootLogger=INFO, A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d %p %c - %m%n
"""


class LegacyBroker:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.libs = fetch(f"kafka-{VERSION}", ARTIFACTS)
        self.zookeeper_port, self.port = free_port(), free_port()
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> LegacyBroker:
        (self.directory / "log4j.properties").write_text(LOGGING)
        self._write(
            "zookeeper.properties",
            {
                "dataDir": str(self.directory / "zookeeper"),
                "clientPort": str(self.zookeeper_port),
                "clientPortAddress": "127.0.0.1",
            },
        )
        self._write(
            "server.properties",
            {
                "broker.id": "0",
                "listeners": f"PLAINTEXT://{self.bootstrap}",
                "log.dirs": str(self.data_dir),
                "zookeeper.connect": f"127.0.0.1:{self.zookeeper_port}",
                "log.retention.ms": "-1",
                "log.index.interval.bytes": "64",
                "log.index.size.max.bytes": "1024",
                "log.cleaner.enable": "false",
            },
        )
        try:
            zookeeper = "org.apache.zookeeper.server.ZooKeeperServerMain"
            self._start(zookeeper, "zookeeper.properties", until="binding to port")
            self._start("kafka.Kafka", "server.properties", until="[Kafka Server 0], started")
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    def create_topic(self, topic: str, config: Mapping[str, str]) -> None:
        arguments = ["--zookeeper", f"127.0.0.1:{self.zookeeper_port}", "--create", "--topic", topic]
        arguments += ["--partitions", "1", "--replication-factor", "1"]
        for name, value in config.items():
            arguments += ["--config", f"{name}={value}"]
        command = self._java("kafka.admin.TopicCommand", *arguments)
        subprocess.run(command, check=True, capture_output=True, timeout=WAIT_SECONDS)

    def stop(self) -> None:
        """Stop the broker cleanly, so that it trims its indexes."""
        broker = self.processes[-1]
        broker.send_signal(signal.SIGTERM)
        broker.wait(WAIT_SECONDS)

    def _kill(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait(WAIT_SECONDS)

    def _write(self, name: str, properties: Mapping[str, str]) -> None:
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        (self.directory / name).write_text(text)

    def _java(self, main_class: str, *arguments: str) -> list[str]:
        logging = f"-Dlog4j.configuration=file:{self.directory / 'log4j.properties'}"
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        return ["java", "-Xmx256m", logging, *opened, "-cp", f"{self.libs}/*", main_class, *arguments]

    def _start(self, main_class: str, properties: str, *, until: str) -> None:
        output = self.directory / f"{main_class}.out"
        with output.open("wb") as sink:
            command = self._java(main_class, str(self.directory / properties))
            process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
        self.processes.append(process)
        deadline = time.monotonic() + WAIT_SECONDS
        while until not in output.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{main_class} did not start:\n{output.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)
