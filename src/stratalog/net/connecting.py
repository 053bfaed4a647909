"""Connecting to a broker: tries the addresses of its host one after the other.

It never blocks the event loop, and uses no thread that the interpreter waits for when it exits.
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
        except (OSError, OverflowError) as error:  # OverflowError: a port above 65535, which a broker may advertise
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    number = getattr(failure, "errno", None)  # asyncio's message would repeat the address
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
    """Return the addresses of a host in the order in which to try them. Raises OSError."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return await _look_up(host, port)
    return [(socket.AF_INET if version == 4 else socket.AF_INET6, (host, port))]


async def _look_up(host: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    addresses: asyncio.Future[list[Address]] = loop.create_future()

    def finish(outcome: list[Address] | Exception) -> None:
        if addresses.done():
            return
        if isinstance(outcome, Exception):
            addresses.set_exception(outcome)
        else:
            addresses.set_result(outcome)

    def resolve() -> None:
        outcome: list[Address] | Exception
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            outcome = [(info[0], info[4]) for info in infos]
        except Exception as error:  # UnicodeError and OverflowError too, for names and ports that are not valid
            outcome = error if isinstance(error, OSError) else OSError(str(error))
        try:
            loop.call_soon_threadsafe(finish, outcome)
        except RuntimeError:
            pass  # the loop was closed meanwhile

    # Not in the loop's thread pool: at exit the interpreter waits for that one, even for a silent name server.
    threading.Thread(target=resolve, name=f"stratalog-resolve-{host[:40]}", daemon=True).start()
    return await addresses
