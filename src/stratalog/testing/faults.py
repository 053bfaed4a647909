"""Delayed and dropped responses. They are injected between a broker and its connections, in the broker's process.

The broker handles a request as usual; only its response is held back. A connection serves its requests one by one, so
the responses after a delayed one are delayed, too, and after a dropped response the connection is silent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from dataclasses import dataclass, field
from enum import StrEnum

from stratalog.net.connection import RefusedConnectionError
from stratalog.net.response_queue import Response
from stratalog.net.server import Serve


class FaultKind(StrEnum):
    DELAY = "delay"
    DROP = "drop"
    DISCONNECT = "disconnect"


@dataclass
class ArmedFault:
    """A fault in the broker's process, with the responses that it affects."""

    kind: FaultKind
    seconds: float = 0.0
    api_key: int | None = None  # None: all kinds of requests
    left: int | None = None  # the number of responses that it will still affect; None: no limit
    met: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def concerns(self, api_key: int) -> bool:
        return self.left != 0 and self.api_key in (None, api_key)


class Faults:
    """The armed faults. `serve` replaces the method of the server."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._known: dict[int, ArmedFault] = {}
        self._armed: dict[int, ArmedFault] = {}  # the newest first: it wins if several concern a response
        self._numbers = itertools.count(1)

    def arm(self, fault: ArmedFault) -> int:
        number = next(self._numbers)
        self._known[number] = fault
        self._armed = {number: fault, **self._armed}
        return number

    def met(self, number: int) -> int:
        """Return how many responses a fault has affected, also after its end."""
        return self._known[number].met if number in self._known else 0

    def end(self, number: int) -> None:
        """End a fault: send delayed responses now, and close connections whose responses were dropped."""
        fault = self._armed.pop(number, None)
        if fault is not None:
            fault.ended.set()

    def end_all(self) -> None:
        for number in list(self._armed):
            self.end(number)

    def serve(self, frame: memoryview, host: str) -> Response | Awaitable[Response]:
        if not self._armed:
            return self._serve(frame, host)
        api_key = int.from_bytes(frame[:2], signed=True)  # read before the call, after which the frame is not valid
        response = self._serve(frame, host)
        if response is None:
            return None
        fault = next((fault for fault in self._armed.values() if fault.concerns(api_key)), None)
        if fault is None:
            return response
        fault.met += 1
        if fault.left is not None:
            fault.left -= 1
        return _spoil(fault, response)


async def _spoil(fault: ArmedFault, response: Response | Awaitable[Response]) -> Response:
    result = response if response is None or isinstance(response, list) else await response
    if result is None:
        return None
    if fault.kind is FaultKind.DELAY:
        try:
            await asyncio.wait_for(fault.ended.wait(), fault.seconds)
        except TimeoutError:
            pass
        return result
    if fault.kind is FaultKind.DROP:
        await fault.ended.wait()
    raise RefusedConnectionError(f"a test armed the fault {fault.kind}")
