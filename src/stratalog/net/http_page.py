"""One page over HTTP/1.1, for a metrics scraper: GET its path, get text. It supports nothing else.

Clients are limited: to requests of a few KiB, to some seconds, and in number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

_LONGEST_REQUEST = 8192
_SECONDS = 10.0
_MOST_OPEN = 16


class HttpPage:
    """Serves the page. `render() -> (content type, body)` is called on the event loop for each request."""

    def __init__(self, path: str, render: Callable[[], tuple[str, bytes]]) -> None:
        self._path = path
        self._render = render
        self._open = 0
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Listen, and return the port. The system chooses it if `port` is 0."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LONGEST_REQUEST)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _MOST_OPEN:
                async with asyncio.timeout(_SECONDS):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._respond(request))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # a client that is slow, gone, or uses another protocol
        except Exception:
            logger.exception("can't render the page %s", self._path)
        finally:
            self._open -= 1
            writer.close()  # after everything is sent, which a client that does not read could delay without end
            asyncio.get_running_loop().call_later(_SECONDS, writer.transport.abort)

    def _respond(self, request: bytes) -> bytes:
        words = request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response("400 Bad Request", "text/plain", b"this is not HTTP/1.1\n")
        method, target, _ = words
        if target.split(b"?", 1)[0] != self._path.encode():
            return _response("404 Not Found", "text/plain", f"the only page is {self._path}\n".encode())
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "text/plain", b"use GET\n")
        content_type, body = self._render()
        return _response("200 OK", content_type, body, head_only=method == b"HEAD")


def _response(status: str, content_type: str, body: bytes, *, head_only: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() if head_only else head.encode() + body
