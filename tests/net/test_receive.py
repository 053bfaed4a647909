"""Receiving a large response in one step ends when it is complete, when other connections are due, or at the end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from stratalog.net._receive import receive_now, receive_rest


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_response_in_pieces_is_received_completely(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    content = bytes(range(256)) * 8192
    sender = threading.Thread(target=theirs.sendall, args=(content[5:],))
    sender.start()
    memory = bytearray(content[:5]) + bytes(len(content) - 5)
    assert receive_rest(ours.fileno(), memory, 5, 10_000, 60_000) == (len(content), False)
    sender.join()
    assert memory == content


def test_available_bytes_are_received_without_waiting(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    memory = bytearray(b"0123456789")
    assert receive_now(ours.fileno(), memory, 0) == -1
    theirs.sendall(b"abc")
    assert receive_now(ours.fileno(), memory, 8) == 2
    assert receive_now(ours.fileno(), memory, 0) == 1
    assert memory == b"c1234567ab"
    with pytest.raises(ValueError, match="10 is not a position in 10 bytes"):
        receive_now(ours.fileno(), memory, 10)
    theirs.close()
    assert receive_now(ours.fileno(), memory, 0) == 0
    ours.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        receive_now(ours.fileno(), memory, 0)


def test_pause_ends_the_call(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"abc")
    memory = bytearray(10)
    assert receive_rest(ours.fileno(), memory, 0, 1, 1000) == (3, False)
    assert memory[:3] == b"abc"


def test_trickle_without_pauses_ends_the_call_after_the_limit(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    stopping = threading.Event()

    def trickle() -> None:
        while not stopping.wait(0.001):
            theirs.sendall(b"x")

    sender = threading.Thread(target=trickle)
    sender.start()
    memory = bytearray(10_000_000)
    filled, is_closed = receive_rest(ours.fileno(), memory, 0, 60_000, 20)
    stopping.set()
    sender.join()
    assert filled < len(memory)
    assert not is_closed


def test_closed_connection_is_reported(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"abc")
    theirs.close()
    assert receive_rest(ours.fileno(), bytearray(10), 0, 1000, 1000) == (3, True)


def test_system_error_is_raised() -> None:
    with pytest.raises(OSError, match="descriptor"):
        receive_rest(-1, bytearray(10), 0, 1, 1)
