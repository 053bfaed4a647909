"""A real Apache Kafka of several KRaft nodes, each of them broker and controller, on free loopback ports.

    with KafkaCluster(directory, nodes=3) as cluster:
        ... any Kafka client, with cluster.bootstrap_servers ...
        cluster.node(2).kill()
        cluster.node(2).start()

Each node keeps its ports and its data over restarts. No process outlives the `with` block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from stratalog.lab.zookeeper import free_ports
from tests.compat.kafka_server import SMALL_HEAP, KafkaServer


class KafkaNode(KafkaServer):
    """One node of a cluster."""

    def __init__(
        self,
        directory: Path,
        node_id: int,
        port: int,
        controllers: Mapping[int, str],
        settings: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = SMALL_HEAP,
    ) -> None:
        """`controllers` has the controller addresses of all nodes, by node id."""
        super().__init__(directory, settings, jvm_options)
        self.node_id = node_id
        self.port = port
        self._controllers = controllers

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def _write_properties(self) -> Path:
        voters = ",".join(f"{node_id}@{address}" for node_id, address in self._controllers.items())
        return self._write_node(self.node_id, self._controllers[self.node_id], voters)


class KafkaCluster:
    """Nodes with the ids 1, 2, ..."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        settings: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = SMALL_HEAP,
        *,
        own_settings: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        """`settings` are those of all nodes, `own_settings` those of some, by node id."""
        node_ids = range(1, nodes + 1)
        ports = free_ports(2 * nodes)
        controllers = {node_id: f"127.0.0.1:{port}" for node_id, port in zip(node_ids, ports[nodes:], strict=True)}
        self.nodes = {
            node_id: KafkaNode(
                directory / f"node-{node_id}",
                node_id,
                ports[node_id - 1],
                controllers,
                {**(settings or {}), **(own_settings or {}).get(node_id, {})},
                jvm_options,
            )
            for node_id in node_ids
        }

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, also of those that are down."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def node(self, node_id: int) -> KafkaNode:
        return self.nodes[node_id]

    def start(self) -> Self:
        """Start all nodes, and return when each serves requests."""
        try:
            self.start_nodes(self.nodes)
        except BaseException:
            self.kill()
            raise
        return self

    def start_nodes(self, node_ids: Iterable[int]) -> None:
        """Start these nodes side by side: none is ready before most of the cluster's nodes run."""
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(KafkaNode.start, [self.nodes[node_id] for node_id in node_ids]))

    def kill(self) -> None:
        """Kill all nodes with SIGKILL."""
        for node in self.nodes.values():
            node.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
