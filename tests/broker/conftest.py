from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.lab.zookeeper import ZooKeeperServer
from tests.broker.data_lab import DataLab


@pytest.fixture
def data_lab(tmp_path: Path) -> Iterator[DataLab]:
    with DataLab(tmp_path / "data") as lab:
        yield lab


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A real ZooKeeper for all tests of the process. A test that stops it starts it again."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper_root() -> str:
    """The path that a test adds to the address of the ZooKeeper, so that it finds no znode of other tests."""
    return f"/test-{uuid.uuid4().hex}"
