"""Answers that come late, or not at all: put between a broker and its connections, in the broker's process.

A request is handled first, as always; only its answer is held back. A connection serves one request after the other, so
what is behind a late answer is late too, and behind one that never comes nothing comes: as with a lost packet.
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
    kind: FaultKind
    seconds: float = 0.0
    api_key: int | None = None  # None: answers of all
    left: int | None = None  # how many answers more it meets; None: all that come
    met: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def concerns(self, api_key: int) -> bool:
        return self.left != 0 and self.api_key in (None, api_key)


class Faults:
    """Its `serve` takes the place of the server's."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._known: dict[int, ArmedFault] = {}
        self._armed: dict[int, ArmedFault] = {}  # of several that concern an answer, the last one counts
        self._numbers = itertools.count(1)

    def arm(self, fault: ArmedFault) -> int:
        number = next(self._numbers)
        self._known[number] = fault
        self._armed = {number: fault, **self._armed}
        return number

    def met(self, number: int) -> int:
        """How many answers it has met, also when it is ended."""
        return self._known[number].met if number in self._known else 0

    def end(self, number: int) -> None:
        """Late answers go out at once; connections whose answers were dropped are closed."""
        fault = self._armed.pop(number, None)
        if fault is not None:
            fault.ended.set()

    def end_all(self) -> None:
        for number in list(self._armed):
            self.end(number)

    def serve(self, frame: memoryview, host: str) -> Response | Awaitable[Response]:
        if not self._armed:
            return self._serve(frame, host)
        api_key = int.from_bytes(frame[:2], signed=True)  # before the call: the frame is only lent
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
    answer = response if response is None or isinstance(response, list) else await response
    if answer is None:
        return None
    if fault.kind is FaultKind.DELAY:
        try:
            await asyncio.wait_for(fault.ended.wait(), fault.seconds)
        except TimeoutError:
            pass
        return answer
    if fault.kind is FaultKind.DROP:
        await fault.ended.wait()
    raise RefusedConnectionError(f"a test wants it so ({fault.kind})")
