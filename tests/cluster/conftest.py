"""Clusters of three broker processes and a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.lab.cluster import QUICK_FAILOVER, LabCluster

SETTINGS = {
    **QUICK_FAILOVER,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "log.retention.check.interval.ms": 365 * 24 * 60 * 60 * 1000,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LabCluster]:
    running = LabCluster(tmp_path, settings=SETTINGS, dies_with_thread=True)
    try:
        yield running.start()
    finally:
        running.kill()


@pytest.fixture(scope="module")
def linked_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabCluster]:
    """A cluster whose brokers can be cut off, for the tests of a module: each leaves it as it was."""
    running = LabCluster(tmp_path_factory.mktemp("cluster"), settings=SETTINGS, dies_with_thread=True, links=True)
    try:
        yield running.start()
    finally:
        running.kill()
