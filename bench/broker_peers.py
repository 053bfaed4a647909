"""The bare peers: the least that a Python process can do with the same bytes, on the same kind of socket and file.

    python -m bench.broker_peers receive FILE REQUEST_BYTES ANSWER_IN_HEX     recv_into, os.write, a fixed response
    python -m bench.broker_peers send FILE REQUEST_BYTES ANSWER_BYTES         recv_into, os.sendfile of the next range

A peer is one process with one loop. It serves one connection after the other with blocking calls, and treats a request
as a number of bytes. It prints `ready PORT` and serves until it is stopped.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path


def receive(connection: socket.socket, fd: int, request_bytes: int, response: bytes) -> None:
    view = memoryview(bytearray(request_bytes))
    while fill(connection, view):
        os.write(fd, view)
        connection.send(response)


def send(connection: socket.socket, fd: int, request_bytes: int, response_bytes: int) -> None:
    view = memoryview(bytearray(request_bytes))
    at, end = 0, os.fstat(fd).st_size
    while fill(connection, view):
        stop = at + response_bytes
        while at < stop:
            at += os.sendfile(connection.fileno(), fd, at, stop - at)
        if at == end:
            at = 0


def fill(connection: socket.socket, view: memoryview) -> bool:
    got = connection.recv_into(view)
    while 0 < got < len(view):
        part = connection.recv_into(view[got:])
        if not part:
            return False
        got += part
    return got > 0


def serve(handle: Callable[[socket.socket], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"ready {listener.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                handle(connection)


def main() -> None:
    kind, path, request_bytes, response = sys.argv[1:]
    fd = os.open(Path(path), os.O_RDWR | os.O_CREAT)
    if kind == "receive":
        serve(lambda connection: receive(connection, fd, int(request_bytes), bytes.fromhex(response)))
    else:
        serve(lambda connection: send(connection, fd, int(request_bytes), int(response)))


if __name__ == "__main__":
    main()
