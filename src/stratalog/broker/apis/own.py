"""Stratalog's own API (key 20000, version 0): methods for which Kafka has no request, used by the command line and the
console.

The body of a request is a JSON object, {"method": "compaction.status", ...arguments}. The body of a response is
{"result": ...} or {"error": {"code": ..., "message": ...}} with one of Kafka's error codes. A method may read whole
logs, so methods run in a thread of their own, one at a time, and only a few requests may wait for it. Short methods
that need the event loop run there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stratalog.errors import MalformedRequestError, StratalogError
from stratalog.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

Method = Callable[[Mapping[str, Any]], Any]
"""Takes the arguments and returns a value for JSON. Runs in the thread of this API; raises StratalogError."""

LoopMethod = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Takes the arguments and returns a value for JSON. Runs on the event loop; raises StratalogError."""

_MOST_WAITING = 16
_LONGEST_MESSAGE = 2_000
_PARSED_AT_ONCE = 64 * 1024  # bytes; a larger request would block the event loop, so a thread parses it


class MethodError(StratalogError):
    """A failed method, with the error code for the response."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


class OwnApi:
    def __init__(self, methods: Mapping[str, Method], on_loop: Mapping[str, LoopMethod] | None = None) -> None:
        self._methods = methods
        self._on_loop = on_loop or {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stratalog-own")
        self._waiting = 0

    def close(self) -> None:
        """Stop the thread, without waiting for a running method."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def answer(self, body: bytes) -> bytes:
        """Run the method of a request and return the body of the response. Never raises: errors are in the response."""
        loop = asyncio.get_running_loop()
        try:
            small = len(body) <= _PARSED_AT_ONCE
            name, arguments = _parsed(body) if small else await loop.run_in_executor(None, _parsed, body)
            on_loop = self._on_loop.get(name) if isinstance(name, str) else None
            if on_loop is not None:
                return _succeeded(await on_loop(arguments))
            method = self._methods.get(name) if isinstance(name, str) else None
            if method is None:
                known = ", ".join(sorted([*self._methods, *self._on_loop]))
                raise MalformedRequestError(f"method is {name!r}; the methods are {known}")
            return await self._in_turn(method, arguments)
        except MethodError as error:
            return _failed(error.error, str(error))
        except StratalogError as error:
            return _failed(error.code, str(error))
        except Exception as error:
            logger.exception("a request of Stratalog's own API failed")
            return _failed(ErrorCode.unknown_server_error, f"{type(error).__name__}; see the broker's log")

    async def _in_turn(self, method: Method, arguments: Mapping[str, Any]) -> bytes:
        if self._waiting >= _MOST_WAITING:
            waiting = f"{self._waiting} requests wait already, the most that may; retry later"
            raise MethodError(ErrorCode.throttling_quota_exceeded, waiting)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: _succeeded(method(arguments)))
        finally:
            self._waiting -= 1


def _parsed(body: bytes) -> tuple[Any, Mapping[str, Any]]:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError(f"the request is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise MalformedRequestError(f"the request is a {type(request).__name__}; it must be a JSON object")
    return request.pop("method", None), request


def _succeeded(result: Any) -> bytes:
    return json.dumps({"result": result}).encode()


def _failed(code: int, message: str) -> bytes:
    if len(message) > _LONGEST_MESSAGE:  # it quotes the request, which may be large
        message = message[:_LONGEST_MESSAGE] + "..."
    return json.dumps({"error": {"code": int(code), "message": message}}).encode()
