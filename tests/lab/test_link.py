from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from stratalog.lab.link import Link

BRIEF_SECONDS = 0.05  # how long a test waits for bytes that must not come
LONG_SECONDS = 30.0


@pytest.fixture
def echo() -> Iterator[socket.socket]:
    """The listener of a server that returns the bytes of each connection in upper case."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(connection: socket.socket) -> None:
            with connection:
                try:
                    while piece := connection.recv(1 << 16):
                        connection.sendall(piece.upper())
                except OSError:
                    pass

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def link(echo: socket.socket) -> Iterator[Link]:
    with Link(f"127.0.0.1:{echo.getsockname()[1]}") as link:
        yield link


def connect(link: Link) -> socket.socket:
    host, _, port = link.address.rpartition(":")
    return socket.create_connection((host, int(port)), LONG_SECONDS)


def receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        assert piece, f"the connection ended after {received!r}"
        received += piece
    return received


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(BRIEF_SECONDS)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(LONG_SECONDS)


def test_bytes_pass_in_both_directions(link: Link) -> None:
    with connect(link) as connection:
        connection.sendall(b"ping")
        assert receive(connection, 4) == b"PING"
        assert link.connection_count == 1


def test_large_transfers_are_complete(link: Link) -> None:
    data = bytes(range(97, 123)) * 100_000
    with connect(link) as connection:
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert receive(connection, len(data)) == data.upper()
        sender.join()


def test_cut_link_delivers_nothing_until_it_is_restored(link: Link) -> None:
    with connect(link) as connection:
        connection.sendall(b"before")
        receive(connection, 6)
        link.cut()
        connection.sendall(b"during")
        assert is_silent(connection)
        link.restore()
        assert receive(connection, 6) == b"DURING"


def test_new_connection_waits_while_the_link_is_cut(link: Link) -> None:
    link.cut()
    with connect(link) as connection:
        connection.sendall(b"hello")
        assert is_silent(connection)
        assert link.connection_count == 0
        link.restore()
        assert receive(connection, 5) == b"HELLO"


def test_requests_pass_when_only_responses_are_cut(echo: socket.socket) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Link(f"127.0.0.1:{listener.getsockname()[1]}") as link,
        connect(link) as client,
    ):
        server, _ = listener.accept()
        with server:
            server.settimeout(LONG_SECONDS)
            link.cut(requests=False)
            client.sendall(b"request")
            assert receive(server, 7) == b"request"
            server.sendall(b"response")
            assert is_silent(client)
            link.restore()
            assert receive(client, 8) == b"response"


def test_reset_closes_connections_and_allows_new_ones(link: Link) -> None:
    with connect(link) as connection:
        connection.sendall(b"ping")
        receive(connection, 4)
        link.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with connect(link) as connection:
        connection.sendall(b"again")
        assert receive(connection, 5) == b"AGAIN"


def test_end_of_one_side_reaches_the_other(link: Link) -> None:
    with connect(link) as connection:
        connection.sendall(b"last")
        connection.shutdown(socket.SHUT_WR)
        assert receive(connection, 4) == b"LAST"
        assert connection.recv(1) == b""


def test_connection_is_reset_if_nothing_listens_at_the_target(echo: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Link(f"127.0.0.1:{port}") as link, pytest.raises(ConnectionResetError), connect(link) as connection:
        connection.recv(1)


def test_no_thread_is_left_after_close(echo: socket.socket) -> None:
    before = set(threading.enumerate())
    link = Link(f"127.0.0.1:{echo.getsockname()[1]}")
    with connect(link) as connection:
        connection.sendall(b"ping")
        receive(connection, 4)
        link.close()
        link.close()
    assert {thread for thread in threading.enumerate() if thread.name.startswith("link")} <= before


def test_link_without_a_target_never_gets_one(echo: socket.socket) -> None:
    with Link() as link:
        with pytest.raises(ConnectionError), connect(link) as connection:
            while connection.recv(1):
                pass
            raise ConnectionError("the connection is closed")
        link.lead_to(f"127.0.0.1:{echo.getsockname()[1]}")
        with connect(link) as connection:
            connection.sendall(b"word")
            assert receive(connection, 4) == b"WORD"
