"""Receiving a large answer in one go: it is whole, or others have their turn, or the connection is over."""

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


def test_answer_that_comes_in_pieces_is_whole_at_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    content = bytes(range(256)) * 8192
    sender = threading.Thread(target=theirs.sendall, args=(content[5:],))
    sender.start()
    memory = bytearray(content[:5]) + bytes(len(content) - 5)
    assert receive_rest(ours.fileno(), memory, 5, 10_000, 60_000) == (len(content), False)
    sender.join()
    assert memory == content


def test_what_is_there_is_received_and_nothing_is_waited_for(pair: tuple[socket.socket, socket.socket]) -> None:
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


def test_pause_gives_others_their_turn(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"abc")
    memory = bytearray(10)
    assert receive_rest(ours.fileno(), memory, 0, 1, 1000) == (3, False)
    assert memory[:3] == b"abc"


def test_trickle_that_never_pauses_gives_others_their_turn_all_the_same(
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


def test_end_of_the_connection_is_told(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"abc")
    theirs.close()
    assert receive_rest(ours.fileno(), bytearray(10), 0, 1000, 1000) == (3, True)


def test_error_of_the_system_is_raised() -> None:
    with pytest.raises(OSError, match="descriptor"):
        receive_rest(-1, bytearray(10), 0, 1, 1)
