"""Addresses of a host, without holding up the loop, and without a thread that an exit would have to wait for."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from typing import Any

Address = tuple[socket.AddressFamily, tuple[Any, ...]]


async def addresses_of(host: str, port: int) -> list[Address]:
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
