"""The scratch directory of the crash tests, which is in memory if possible, as in the tests of the storage engine; and
a real ZooKeeper."""

from tests.broker.metadata.cluster_lab import zookeeper_address
from tests.storage.faults.conftest import scratch

__all__ = ["scratch", "zookeeper_address"]
