"""From a frame to its handler, and from the handler's reply to a response.

Produce and Fetch requests are read in place and answered by hand. All others go through kio and their handler's dict.
A request that can't be read, or has a key or version that is not served, closes the connection, as in Kafka: there is
no response that its client would understand. Only ApiVersions is always answered.

A response is not sent before the coordinators' state that was appended for it is durable, if flush.messages requires
that (due_flushes.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from functools import partial
from struct import Struct

from stratalog.broker.answer_turns import AnswerTurns
from stratalog.broker.apis import versions
from stratalog.broker.apis.fetch import FetchApi
from stratalog.broker.apis.own import OwnApi
from stratalog.broker.apis.produce import ProduceApi
from stratalog.broker.counters import Counters
from stratalog.broker.due_flushes import DueFlushes
from stratalog.broker.requests import Handler, LongReply, Reply, RequestContext
from stratalog.broker.worker_threads import WorkerThreads
from stratalog.clock import Clock
from stratalog.errors import MalformedRequestError, StratalogError
from stratalog.net.connection import RefusedConnectionError
from stratalog.net.response_queue import Part, Response
from stratalog.protocol._wire import parse_request_header
from stratalog.protocol.api_keys import VERSIONS, ApiKey, OwnApiKey
from stratalog.protocol.frames import frame_response, response_start
from stratalog.protocol.messages import decode_request, encode_reply, encode_reply_in_portions

LARGEST_CONTROL_REQUEST = 4 * 1024 * 1024
"""Requests without records become objects, which take up to a hundred times as many bytes."""

WITH_LONG_ANSWERS = frozenset((ApiKey.DESCRIBE_CONFIGS, ApiKey.CREATE_TOPICS))
"""APIs whose responses may be thirty times as long as their requests, or longer."""

LARGEST_WITHOUT_TURN = 2048
"""A request for one of these APIs waits its turn if it is larger than this."""

_PORTION = 20  # elements of a response that are encoded before other work runs
_KEY = Struct(">h")


class Dispatcher:
    def __init__(
        self,
        produce: ProduceApi,
        fetch: FetchApi,
        routes: dict[ApiKey, Handler],
        own: OwnApi,
        counters: Counters,
        clock: Clock,
        worker_threads: WorkerThreads,
        due_flushes: DueFlushes,
        *,
        largest_request: int,
    ) -> None:
        self._produce = produce
        self._fetch = fetch
        self._routes = routes
        self._own = own
        self._counters = counters
        self._clock = clock
        self._worker_threads = worker_threads
        self._due_flushes = due_flushes
        self.turns = AnswerTurns()
        self._largest_request = largest_request
        self._served = {int(key): (key, *VERSIONS[key]) for key in VERSIONS}

    @property
    def small_frame(self) -> int:
        """The size up to which every frame is accepted, whatever it holds."""
        return min(self._largest_request, LARGEST_CONTROL_REQUEST)

    def largest_frame(self, start: memoryview) -> int:
        """Return how large a frame with this start may be. The start may have four bytes, or fewer."""
        if len(start) >= _KEY.size and _KEY.unpack_from(start)[0] != ApiKey.PRODUCE:
            return self.small_frame
        return self._largest_request

    def is_heavy(self, frame: memoryview) -> bool:
        """Return whether a large frame may take long to decode: all but records become objects."""
        return bool(_KEY.unpack_from(frame)[0] != ApiKey.PRODUCE)

    def outlives_its_client(self, frame: memoryview) -> bool:
        """Return whether a request is served though its client has closed the connection: a producer with acks=0 may
        close it right after its last request."""
        return bool(_KEY.unpack_from(frame)[0] == ApiKey.PRODUCE)

    def serve(self, frame: memoryview, host: str) -> Response | Awaitable[Response]:
        started = self._clock.monotonic()
        try:
            return self._serve(frame, host, started)
        except MalformedRequestError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: MalformedRequestError) -> RefusedConnectionError:
        self._counters.refused_requests += 1
        return RefusedConnectionError(f"a request that can't be read: {error}")

    def _serve(self, frame: memoryview, host: str, started: float) -> Response | Awaitable[Response]:
        number, version, correlation_id, client_id, position = parse_request_header(frame)
        served = self._served.get(number)
        if served is None:
            if number == OwnApiKey.STRATALOG and version == 0:
                return self._answer_own(bytes(frame[position:]), correlation_id)
            raise self._not_served(number)
        key, lowest, highest, first_flexible = served
        if not lowest <= version <= highest:
            return self._answer_unknown_version(key, version, correlation_id)
        flexible = version >= first_flexible
        self._counters.requests[number] += 1
        response: Response | Awaitable[Response] | Awaitable[list[Part]]
        if key is ApiKey.PRODUCE:
            response = self._produce.serve(frame, position, version, correlation_id)
        elif key is ApiKey.FETCH:
            response = self._fetch.serve(frame, position, version, correlation_id)
        elif key not in self._routes:
            raise self._not_served(number)
        else:
            # ApiVersions' response has tags in its body only: its reader may not know about tags yet.
            flexible = flexible and key is not ApiKey.API_VERSIONS
            context = RequestContext(key, version, client_id, host)
            if key in WITH_LONG_ANSWERS and len(frame) > LARGEST_WITHOUT_TURN:
                response = self._answer_in_turn(bytes(frame[position:]), context, correlation_id, flexible)
            else:
                reply = self._routes[key](decode_request(key, version, frame[position:]), context)
                if not isinstance(reply, dict | bytearray):
                    response = self._answer_later(reply, key, version, correlation_id, flexible)
                elif isinstance(reply, LongReply):
                    response = _begin(_frame_in_portions(reply, key, version, correlation_id, flexible))
                else:
                    response = [_frame(reply, key, version, correlation_id, flexible)]
                    if (pending := self._due_flushes.pending()) is not None:
                        response = _send_after(pending, response)
        if response is not None and not isinstance(response, list):
            return self._timed(response, number, started)
        self._counters.request_seconds[number] += self._clock.monotonic() - started
        return response

    def _not_served(self, number: int) -> RefusedConnectionError:
        self._counters.refused_requests += 1
        return RefusedConnectionError(f"a request with API key {number}, which is not served")

    def _timed(
        self, response: Awaitable[Response] | Awaitable[list[Part]], number: int, started: float
    ) -> asyncio.Future[Response]:
        """Count the time of a response that comes later. This is no coroutine around a future: a coroutine that is
        cancelled before its first step would not cancel the future."""
        future: asyncio.Future[Response] = asyncio.ensure_future(response)
        future.add_done_callback(lambda _: self._count_seconds(number, started))
        return future

    def _count_seconds(self, number: int, started: float) -> None:
        self._counters.request_seconds[number] += self._clock.monotonic() - started

    async def _answer_later(
        self, reply: Awaitable[Reply | bytearray], key: ApiKey, version: int, correlation_id: int, flexible: bool
    ) -> Response:
        try:
            finished = await reply
            if (pending := self._due_flushes.pending()) is not None:
                await _finish_flush(pending)
            return await _frame_later(finished, key, version, correlation_id, flexible)
        except MalformedRequestError as error:
            raise self._unreadable(error) from error

    async def _answer_in_turn(
        self, body: bytes, context: RequestContext, correlation_id: int, flexible: bool
    ) -> Response:
        """Hold no more than the request's bytes until the request gets its turn. A handler waits without the turn."""
        key, version = context.api_key, context.api_version
        try:
            async with self.turns.take(len(body)):
                decode = partial(decode_request, key, version, memoryview(body))
                reply = self._routes[key](await self._worker_threads.decode(decode), context)
                if isinstance(reply, dict | bytearray):
                    return await _frame_later(reply, key, version, correlation_id, flexible)
            finished = await reply
            async with self.turns.take(len(body)):
                return await _frame_later(finished, key, version, correlation_id, flexible)
        except MalformedRequestError as error:
            raise self._unreadable(error) from error

    async def _answer_own(self, body: bytes, correlation_id: int) -> Response:
        response: Response = [frame_response(correlation_id, await self._own.answer(body), flexible=False)]
        pending = self._due_flushes.pending()
        return response if pending is None else await _send_after(pending, response)

    def _answer_unknown_version(self, key: ApiKey, version: int, correlation_id: int) -> Response:
        if key is not ApiKey.API_VERSIONS:
            self._counters.refused_requests += 1
            lowest, highest, _ = VERSIONS[key]
            raise RefusedConnectionError(f"{key.name} v{version} is not served; {lowest} to {highest} are")
        return [frame_response(correlation_id, versions.unsupported(), flexible=False)]


async def _send_after(pending: Awaitable[StratalogError | None], response: Response) -> Response:
    await _finish_flush(pending)
    return response


async def _finish_flush(pending: Awaitable[StratalogError | None]) -> None:
    error = await pending
    if error is not None:
        raise RefusedConnectionError(f"a change of a group or a transaction can't be made durable: {error}")


def _frame(reply: Reply | bytearray, key: ApiKey, version: int, correlation_id: int, flexible: bool) -> bytes:
    body = reply if isinstance(reply, bytearray) else encode_reply(key, version, reply)
    return frame_response(correlation_id, body, flexible=flexible)


async def _frame_later(
    reply: Reply | bytearray, key: ApiKey, version: int, correlation_id: int, flexible: bool
) -> Response:
    if isinstance(reply, LongReply):
        return await _finish(_frame_in_portions(reply, key, version, correlation_id, flexible))
    return [_frame(reply, key, version, correlation_id, flexible)]


def _frame_in_portions(
    reply: LongReply, key: ApiKey, version: int, correlation_id: int, flexible: bool
) -> Generator[None, None, bytearray]:
    """Write a long response where it will be sent from: a copy would be as large."""
    out = bytearray(response_start(correlation_id, 0, flexible=flexible))
    start = len(out)
    for number, _ in enumerate(encode_reply_in_portions(out, key, version, reply), 1):
        if number % _PORTION == 0:
            yield
    out[:start] = response_start(correlation_id, len(out) - start, flexible=flexible)
    return out


def _begin(work: Generator[None, None, bytearray]) -> Response | Awaitable[Response]:
    """Return the response if it has one portion, else the awaitable that writes the rest."""
    try:
        next(work)
    except StopIteration as done:
        return [done.value]
    return _finish(work)


async def _finish(work: Generator[None, None, bytearray]) -> Response:
    while True:
        await asyncio.sleep(0)  # other clients are served
        try:
            next(work)
        except StopIteration as done:
            return [done.value]
