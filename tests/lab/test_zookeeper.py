from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from stratalog.lab import zookeeper
from stratalog.lab.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, ZooKeeperStartError, free_ports


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


def read(address: str, path: str) -> bytes:
    with connected(address) as client:
        data: bytes = client.get(path)[0]
        return data


@contextlib.contextmanager
def connected(address: str) -> Iterator[KazooClient]:
    client = KazooClient(address)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_data_survives_kill_and_restart_on_the_same_port(server: ZooKeeperServer) -> None:
    with connected(server.address) as client:
        client.create("/kept", b"before the kill")
    address = server.address
    server.kill()
    assert not server.is_running
    assert server.mode() is None
    server.start()
    assert server.address == address
    assert read(server.address, "/kept") == b"before the kill"
    server.restart()
    assert read(server.address, "/kept") == b"before the kill"


def test_paused_server_answers_nothing_until_it_resumes(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "_STATUS_SECONDS", 0.05)
    server.pause()
    try:
        assert server.mode() is None
    finally:
        server.resume()
    server.wait_until_serving()
    assert server.mode() == "standalone"


def test_server_that_can_not_start_says_why(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").write_text("not a directory")
    with pytest.raises(ZooKeeperStartError, match="did not start; its log ends:\n"):
        server.start()
    assert not server.is_running


def test_missing_jar_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(zookeeper, "_JARS", ("zookeeper-of-another-day.jar",))
    with pytest.raises(ZooKeeperStartError, match=r"has no zookeeper-of-another-day\.jar"):
        ZooKeeperServer(tmp_path).start()


def test_server_that_was_not_started_can_be_stopped_and_killed(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path)
    assert server.stop() == 0
    server.kill()


def test_stopped_server_ends_by_sigterm(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path).start()
    assert server.stop() in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    assert not server.is_running


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(9))) == 9


@pytest.mark.slow
def test_ensemble_serves_while_most_of_it_runs(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path) as ensemble:
        with connected(ensemble.address) as client:
            client.create("/kept", b"by most")
        leader = ensemble.leader()
        leader.kill()
        assert read(ensemble.address, "/kept") == b"by most"
        leader.start()
        assert leader.mode() == "follower"
