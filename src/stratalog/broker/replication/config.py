"""The settings of a broker that belongs to a cluster, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.errors import ConfigError
from stratalog.settings import INT_MAX, Settings, Values, ValueType, boolean, integer, nullable, one_of, setting, text

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _servers() -> Values:
    """Addresses of ZooKeeper servers, and optionally the znode under which everything is: h1:2181,h2:2181/chroot."""

    def check(name: str, value: object) -> str:
        example = "it must be like zk1:2181,zk2:2181 or zk1:2181/kafka"
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{name} is {value!r}; {example}")
        servers, _, _ = value.strip().partition("/")
        for server in servers.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ConfigError(f"{name} is {value!r}, and {server.strip()!r} is not HOST:PORT; {example}")
        return value.strip()

    return Values(ValueType.STRING, check, "HOST:PORT,...[/znode]")


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(Settings):
    """The settings of replication and of the coordination through ZooKeeper."""

    kind: ClassVar[str] = "a cluster"

    zookeeper_connect: str | None = setting(
        None,
        nullable(_servers()),
        "ZooKeeper servers of the cluster that the broker joins; without them, the broker is alone",
    )
    zookeeper_session_timeout_ms: int = setting(
        18_000, integer(100, INT_MAX), "how long ZooKeeper waits for a broker before it counts as dead"
    )
    zookeeper_connection_timeout_ms: int = setting(
        18_000, integer(1, INT_MAX), "how long a broker that starts tries to connect to ZooKeeper"
    )
    broker_rack: str | None = setting(
        None, nullable(text()), "the broker's rack; the replicas of a partition are spread over racks"
    )
    replica_lag_time_max_ms: int = setting(
        30_000,
        integer(1),
        "a follower that has not caught up with its leader for this long leaves the ISR",
    )
    replica_fetch_max_bytes: int = setting(
        1024**2,
        integer(0, INT_MAX),
        "most bytes of a partition in a follower's fetch, unless its first batch is larger",
    )
    replica_fetch_response_max_bytes: int = setting(
        10 * 1024**2, integer(0, INT_MAX), "most bytes in the response to a follower's fetch"
    )
    replica_fetch_min_bytes: int = setting(
        1, integer(1, INT_MAX), "a leader answers a follower's fetch when it has this many new bytes"
    )
    replica_fetch_wait_max_ms: int = setting(
        500, integer(1, INT_MAX), "how long a leader holds a follower's fetch without enough new bytes"
    )
    replica_fetch_backoff_ms: int = setting(
        1_000, integer(0, INT_MAX), "how long a follower waits after an error before it fetches again"
    )
    replica_socket_timeout_ms: int = setting(
        30_000, integer(1, INT_MAX), "how long a follower waits for its leader's response"
    )
    replica_socket_receive_buffer_bytes: int = setting(
        -1, integer(-1, INT_MAX), "SO_RCVBUF of a follower's connections; -1: the kernel adjusts it"
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5_000, integer(1), "how often the high watermarks are saved"
    )
    num_replica_fetchers: int = setting(
        1, integer(1, 100), "connections from a follower to each leader; partitions are divided among them"
    )
    auto_leader_rebalance_enable: bool = setting(
        True, boolean(), "whether the controller gives partitions back to their preferred leaders"
    )
    leader_imbalance_check_interval_seconds: int = setting(
        300, integer(1), "how often the controller looks for partitions that their preferred leaders don't lead"
    )
    controlled_shutdown_enable: bool = setting(
        True, boolean(), "whether a broker that stops gives its partitions to other leaders first"
    )

    replica_selector_class: str | None = setting(
        None,
        nullable(one_of(RACK_AWARE_SELECTOR)),
        "with this class, consumers that name their rack read from an in-sync replica in that rack",
    )

    @property
    def selects_by_rack(self) -> bool:
        return self.replica_selector_class is not None

    @property
    def is_cluster(self) -> bool:
        return self.zookeeper_connect is not None
