"""Stratalog's own API (key 20000, version 0): what Kafka has no request for, for our command line and console.

A request's body is a JSON object, {"method": "compaction.status", ...arguments}, an answer's {"result": ...} or
{"error": {"code": ..., "message": ...}} with one of Kafka's codes. What is asked may read whole logs, so it is done in
a thread of its own, one at a time, and only a few may wait for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stratalog.errors import MalformedRequestError, StratalogError
from stratalog.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

Method = Callable[[Mapping[str, Any]], Any]
"""Takes the arguments, gives what JSON can hold. Runs in its own thread; raises StratalogError."""

_MOST_WAITING = 16


class OwnApi:
    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = methods
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stratalog-own")
        self._waiting = 0

    def close(self) -> None:
        """What is under way is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def answer(self, body: bytes) -> bytes:
        """Never raises but for a fault of our own, which is said too."""
        if self._waiting >= _MOST_WAITING:
            return _failed(ErrorCode.throttling_quota_exceeded, f"{self._waiting} requests wait already; ask again")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._answer, body)
        finally:
            self._waiting -= 1

    def _answer(self, body: bytes) -> bytes:
        try:
            method, arguments = self._parsed(body)
            return json.dumps({"result": method(arguments)}).encode()
        except StratalogError as error:
            return _failed(error.code, str(error))
        except Exception as error:
            logger.exception("a request of Stratalog's own API failed")
            return _failed(ErrorCode.unknown_server_error, f"{type(error).__name__}; the broker's log says more")

    def _parsed(self, body: bytes) -> tuple[Method, Mapping[str, Any]]:
        try:
            request = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise MalformedRequestError(f"the request is not JSON: {error}") from error
        if not isinstance(request, dict):
            raise MalformedRequestError(f"the request is a {type(request).__name__}; a JSON object is wanted")
        name = request.pop("method", None)
        method = self._methods.get(name) if isinstance(name, str) else None
        if method is None:
            raise MalformedRequestError(f"method is {name!r}; known are {', '.join(sorted(self._methods))}")
        return method, request


def _failed(code: int, message: str) -> bytes:
    return json.dumps({"error": {"code": int(code), "message": message}}).encode()
