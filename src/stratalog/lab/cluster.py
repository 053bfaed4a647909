"""ZooKeeper and several brokers on the loopback address, for demonstrations and tests.

    with LabCluster(directory, brokers=3) as cluster:
        ... any Kafka client, with cluster.bootstrap_servers ...
        cluster.broker(2).kill()
        cluster.broker(2).start()

Everything keeps its ports and its data over restarts. The `with` block stops the brokers at its end, then ZooKeeper.
With `links=True`, each broker can be cut off from ZooKeeper, and from the clients and brokers that connect to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from stratalog.lab.link import Link
from stratalog.lab.serve_process import ServeProcess
from stratalog.lab.zookeeper import ZooKeeperServer

QUICK_FAILOVER: Mapping[str, object] = {"zookeeper.session.timeout.ms": 3000, "replica.lag.time.max.ms": 3000}
"""Settings with which a dead broker is noticed in seconds, for clusters whose machine is not under load."""


class BrokerLinks(NamedTuple):
    """The links of one broker. `listener` is its advertised address: clients and the other brokers connect through it.
    Connections to the broker's own port bypass the link."""

    listener: Link
    zookeeper: Link

    def restore(self) -> None:
        for link in self:
            link.restore()

    def close(self) -> None:
        for link in self:
            link.close()


class LabCluster:
    """A ZooKeeper server and brokers with the node ids 1, 2, ..."""

    def __init__(
        self,
        directory: Path,
        brokers: int = 3,
        settings: Mapping[str, object] | None = None,
        *,
        zookeeper: ZooKeeperServer | None = None,
        chroot: str = "",
        own_settings: Mapping[int, Mapping[str, object]] | None = None,
        dies_with_thread: bool = False,
        links: bool = False,
    ) -> None:
        """`settings` are those of all brokers, `own_settings` those of some, by node id. With a `zookeeper` that runs
        already, the cluster uses it under the path `chroot`, and does not stop it. With `links`, `self.links` has the
        links of each broker."""
        self._owns_zookeeper = zookeeper is None
        self.zookeeper = zookeeper or ZooKeeperServer(directory / "zookeeper", dies_with_thread=dies_with_thread)
        self.brokers: dict[int, ServeProcess] = {}
        self.links: dict[int, BrokerLinks] = {}
        for node_id in range(1, brokers + 1):
            of_broker = {
                "zookeeper.connect": self.zookeeper.address + chroot,
                "node.id": node_id,
                **(settings or {}),
                **(own_settings or {}).get(node_id, {}),
            }
            if links:
                listener = Link()
                self.links[node_id] = BrokerLinks(listener, Link(self.zookeeper.address))
                of_broker["advertised.listeners"] = f"PLAINTEXT://{listener.address}"
                of_broker["zookeeper.connect"] = self.links[node_id].zookeeper.address + chroot
            self.brokers[node_id] = ServeProcess(
                directory / f"broker-{node_id}", of_broker, dies_with_thread=dies_with_thread
            )

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, also of those that are down or cut off."""
        return ",".join(self.advertised_address(node_id) for node_id, each in self.brokers.items() if each.port)

    def advertised_address(self, node_id: int) -> str:
        """Return the address that clients and the other brokers connect to."""
        links = self.links.get(node_id)
        return self.brokers[node_id].bootstrap_servers if links is None else links.listener.address

    def broker(self, node_id: int) -> ServeProcess:
        return self.brokers[node_id]

    def start(self) -> Self:
        """Start everything, and return when clients can connect to every broker."""
        try:
            if self._owns_zookeeper:
                self.zookeeper.start()
            self.start_brokers(self.brokers)
        except BaseException:
            self.kill()
            raise
        return self

    def start_brokers(self, node_ids: Iterable[int]) -> None:
        """Start these brokers side by side."""
        chosen = [self.brokers[node_id] for node_id in node_ids]
        if any(broker.dies_with_thread for broker in chosen):  # their thread must live as long as they do
            for broker in chosen:
                broker.start()
        else:
            with ThreadPoolExecutor(len(self.brokers)) as threads:
                list(threads.map(ServeProcess.start, chosen))
        for node_id, links in self.links.items():
            if self.brokers[node_id].port:
                links.listener.lead_to(self.brokers[node_id].bootstrap_servers)

    def stop(self) -> None:
        """Stop the brokers one after the other, each of which gives its partitions to the others, and ZooKeeper."""
        for broker in self.brokers.values():
            if broker.is_running:
                broker.stop()
        if self._owns_zookeeper:
            self.zookeeper.stop()
        self._close_links()

    def kill(self) -> None:
        """Kill everything with SIGKILL."""
        for broker in self.brokers.values():
            broker.kill()
        if self._owns_zookeeper:
            self.zookeeper.kill()
        self._close_links()

    def _close_links(self) -> None:
        for links in self.links.values():
            links.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()
