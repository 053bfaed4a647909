"""Tasks acknowledge received bytes immediately; other processes do not."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from stratalog.spark.worker_process import acknowledge

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="an option of Linux")


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """Yield a connection with delayed acknowledgements, next to files and other kinds of sockets."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as each:
        other, _ = server.accept()
        left, right = socket.socketpair()
        with other, left, right, tempfile.TemporaryFile():
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            yield each
            each.sendall(b"still open")
            assert other.recv(100) == b"still open"


def acknowledges_quickly(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1


def test_task_acknowledges_received_bytes(connection: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", object())
    acknowledge()
    assert acknowledges_quickly(connection)


def test_process_without_a_task_does_nothing(connection: socket.socket) -> None:
    acknowledge()
    assert not acknowledges_quickly(connection)
