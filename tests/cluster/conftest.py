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
