"""A real ZooKeeper."""

from tests.broker.metadata.cluster_lab import zookeeper_address

__all__ = ["zookeeper_address"]
