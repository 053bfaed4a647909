"""A real ZooKeeper on the loopback address, out of the jars in PySpark's wheel: one server, or an ensemble.

    with ZooKeeperServer(directory) as zookeeper:
        ... any ZooKeeper client, with zookeeper.address ...

The port and the data stay the same over restarts. The servers do not sync their files (forceSync=no), so their data
survives a kill, but not a power cut: this is a ZooKeeper for tests and demonstrations.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from stratalog.errors import StratalogError
from stratalog.lab.broker_child import BrokerChild
from stratalog.spark.java import find_java

START_SECONDS = 60.0
_POLL_SECONDS = 0.02
_STATUS_SECONDS = 1.0
_STATUS_BYTES = 64 * 1024
_HOST = "127.0.0.1"
_PORTS = range(15_000, 32_000)
"""Below the range from which Linux takes the ports of outgoing connections: one of those could occupy the port of a
server that is being restarted."""
_JARS = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "slf4j-api-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
)
_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JAVA_OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.preAllocSize=1024",  # KiB of each new log file, instead of 64 MiB
    "-Dzookeeper.jmx.log4j.disable=true",
)
_SETTINGS = """tickTime=500
minSessionTimeout=1000
maxSessionTimeout=120000
initLimit=20
syncLimit=10
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr
"""
_LOGGING = """status = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %-5p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
"""


class ZooKeeperStartError(StratalogError):
    """A ZooKeeper server did not start. The message has the end of its log."""


class EnsembleMember(NamedTuple):
    """The ports of one server of an ensemble."""

    client_port: int
    peer_port: int
    election_port: int


class ZooKeeperServer(BrokerChild):
    """A process of a ZooKeeper server, with its data in a directory."""

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        members: Sequence[EnsembleMember] = (),
        member_id: int = 0,
        dies_with_thread: bool = True,
    ) -> None:
        """Without a port, a free one is chosen. `members` are all servers of an ensemble, and `member_id` counts them
        from 1. With `dies_with_thread`, the kernel kills the server when the thread that started it ends."""
        super().__init__(directory / "zookeeper.log")
        self.directory = directory
        self.members = tuple(members)
        self.member_id = member_id
        self.port = port or (self.members[member_id - 1].client_port if members else free_ports(1)[0])
        self._dies_with_thread = dies_with_thread

    @property
    def address(self) -> str:
        return f"{_HOST}:{self.port}"

    def start(self) -> Self:
        """Start the server, and return when it serves clients."""
        self.launch()
        self.wait_until_serving()
        return self

    def launch(self) -> None:
        """Start the process and return at once. A server of an ensemble serves no client until most servers run."""
        self._write_files()
        classpath = os.pathsep.join(str(jar) for jar in _jars())
        options = [*_JAVA_OPTIONS, f"-Dlog4j2.configurationFile={self._file('log4j2.properties')}"]
        java = find_java(os.environ).home / "bin" / "java"
        command = [str(java), *options, "-cp", classpath, _MAIN_CLASS, str(self._file("zoo.cfg"))]
        self.spawn(command, dies_with_thread=self._dies_with_thread)

    def wait_until_serving(self, seconds: float = START_SECONDS) -> None:
        """Return when the server serves clients. Raises ZooKeeperStartError after `seconds`, or if its process ends."""
        deadline = time.monotonic() + seconds
        while self.mode() is None:
            if not self.is_running or time.monotonic() > deadline:
                self.kill()
                raise ZooKeeperStartError(f"ZooKeeper on {self.address} did not start{self.last_log_lines()}")
            time.sleep(_POLL_SECONDS)

    def mode(self) -> str | None:
        """Return `standalone`, `leader` or `follower`; None if the server does not serve clients."""
        status = self._status()
        return next((line[6:].strip() for line in status.splitlines() if line.startswith("Mode: ")), None)

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = START_SECONDS) -> int:
        """Stop the server and return its exit code; 0 if it was not running."""
        return super().stop(number, seconds) if self.process is not None else 0

    def pause(self) -> None:
        """Pause the server with SIGSTOP, and return when all its threads have stopped."""
        super().pause()
        os.waitid(os.P_PID, self._started().pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def restart(self) -> Self:
        """Stop the server, and start it again with its data."""
        self.stop()
        return self.start()

    def _write_files(self) -> None:
        data = self._file("data")
        data.mkdir(parents=True, exist_ok=True)
        lines = [f"dataDir={data}", f"clientPort={self.port}", f"clientPortAddress={_HOST}"]
        for number, member in enumerate(self.members, 1):
            lines.append(f"server.{number}={_HOST}:{member.peer_port}:{member.election_port}")
        if self.members:
            (data / "myid").write_text(f"{self.member_id}\n")
        self._file("zoo.cfg").write_text(_SETTINGS + "\n".join(lines) + "\n")
        self._file("log4j2.properties").write_text(_LOGGING)

    def _file(self, name: str) -> Path:
        return self.directory.absolute() / name

    def _status(self) -> str:
        """Return the response to the command `srvr`; empty if it does not come."""
        received = b""
        with contextlib.suppress(OSError), socket.create_connection((_HOST, self.port), _STATUS_SECONDS) as connection:
            connection.sendall(b"srvr")
            while len(received) < _STATUS_BYTES and (piece := connection.recv(4096)):
                received += piece
        return received.decode(errors="replace")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class ZooKeeperEnsemble:
    """Several ZooKeeper servers that elect a leader. They serve clients while most of them run."""

    def __init__(self, directory: Path, size: int = 3, *, dies_with_thread: bool = True) -> None:
        ports = iter(free_ports(3 * size))
        members = [EnsembleMember(next(ports), next(ports), next(ports)) for _ in range(size)]
        self.servers = [
            ZooKeeperServer(
                directory / f"server-{number}", members=members, member_id=number, dies_with_thread=dies_with_thread
            )
            for number in range(1, size + 1)
        ]

    @property
    def address(self) -> str:
        """The connect string with all servers."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> Self:
        """Start all servers, and return when each of them serves clients."""
        try:
            for server in self.servers:
                server.launch()
            for server in self.servers:
                server.wait_until_serving()
        except BaseException:
            self.kill()
            raise
        return self

    def leader(self) -> ZooKeeperServer:
        """Return the leader. Raises LookupError while the servers have not elected it."""
        leader = next((server for server in self.servers if server.mode() == "leader"), None)
        if leader is None:
            raise LookupError(f"the ZooKeeper ensemble {self.address} has no leader now")
        return leader

    def followers(self) -> list[ZooKeeperServer]:
        return [server for server in self.servers if server.mode() == "follower"]

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address that are free now, each of them once."""
    ports: list[int] = []
    candidates = random.SystemRandom().sample(_PORTS, k=len(_PORTS))
    for port in candidates:
        if len(ports) == count:
            return ports
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((_HOST, port))
            ports.append(port)
    raise ZooKeeperStartError(f"{_HOST} has fewer than {count} free ports from {_PORTS[0]} to {_PORTS[-1]}")


def _jars() -> list[Path]:
    """Return the jars that ZooKeeper needs. Raises ZooKeeperStartError if one of them is missing."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ZooKeeperStartError("ZooKeeper comes with PySpark, which is missing: pip install 'stratalog[spark]'")
    directory = Path(spec.origin).parent / "jars"
    jars = []
    for pattern in _JARS:
        matches = sorted(directory.glob(pattern))
        if not matches:
            raise ZooKeeperStartError(f"{directory} has no {pattern}, which ZooKeeper needs; install PySpark 4.3")
        jars.append(matches[-1])
    return jars
