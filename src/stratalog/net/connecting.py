"""Connecting to a broker: the addresses of its host, tried one after the other.

Nothing blocks the event loop, and no thread is used that the interpreter's exit would wait for.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import threading
from typing import Any

from stratalog.errors import ConnectError, UnknownHostError

Address = tuple[socket.AddressFamily, tuple[Any, ...]]


async def connect(host: str, port: int, send_buffer: int, receive_buffer: int) -> socket.socket:
    """Connect to the first of the host's addresses that accepts. Raises BrokerUnreachableError."""
    loop = asyncio.get_running_loop()
    try:
        addresses = await _addresses_of(host, port)
    except OSError as error:
        raise UnknownHostError(f"the name of {host}:{port} can't be resolved: {error.strerror or error}") from error
    failure: Exception | None = None
    for family, address in addresses:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            _set_options(sock, send_buffer, receive_buffer)
            await loop.sock_connect(sock, address)
        except (OSError, OverflowError) as error:  # OverflowError: a port past 65535, which a broker can tell us
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    number = getattr(failure, "errno", None)  # asyncio's own words for it have the address once more
    why = os.strerror(number) if number else failure or "it has no address"
    raise ConnectError(f"{host}:{port}", str(why)) from failure


def _set_options(sock: socket.socket, send_buffer: int, receive_buffer: int) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if send_buffer >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    if receive_buffer >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)


async def _addresses_of(host: str, port: int) -> list[Address]:
    """In the order in which to try them. Raises OSError."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return await _looked_up(host, port)
    return [(socket.AF_INET if version == 4 else socket.AF_INET6, (host, port))]


async def _looked_up(host: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Address]] = loop.create_future()

    def tell(outcome: list[Address] | Exception) -> None:
        if found.done():
            return
        if isinstance(outcome, Exception):
            found.set_exception(outcome)
        else:
            found.set_result(outcome)

    def look_up() -> None:
        outcome: list[Address] | Exception
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            outcome = [(info[0], info[4]) for info in infos]
        except Exception as error:  # UnicodeError and OverflowError too, for names and ports that can't be
            outcome = error if isinstance(error, OSError) else OSError(str(error))
        try:
            loop.call_soon_threadsafe(tell, outcome)
        except RuntimeError:
            pass  # the loop was closed meanwhile

    # Not the loop's own pool: the interpreter's exit waits for that one, however long a name server is silent.
    threading.Thread(target=look_up, name=f"stratalog-resolve-{host[:40]}", daemon=True).start()
    return await found
