"""What has come is acknowledged at once, in tasks and only there."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from stratalog.spark.worker_socket import acknowledge

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="an option of Linux")


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """One that takes its time to acknowledge, beside files and sockets of other kinds."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        left, right = socket.socketpair()
        with other, left, right, tempfile.TemporaryFile():
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            yield one
            one.sendall(b"still open")
            assert other.recv(100) == b"still open"


def acknowledges_quickly(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1


def test_a_task_acknowledges_what_has_come(connection: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", object())
    acknowledge()
    assert acknowledges_quickly(connection)


def test_a_process_without_a_task_is_left_alone(connection: socket.socket) -> None:
    acknowledge()
    assert not acknowledges_quickly(connection)
