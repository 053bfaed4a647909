"""One client's connection: frames in, responses out, one request at a time and in order, as Kafka serves them.

A frame is four bytes of size and that many bytes. It is handed out where it was received, and is gone when the call
returns. A response is a list of bytes and FileSlices; slices go from the file to the socket without passing through
user space. While a response is not written, or not there yet, nothing more is read: a client that does not read its
responses gets no more of them, and holds no memory but for its last. What a connection holds when its turn is over is
counted, and while all of them hold too much it waits with reading (held_memory.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Awaitable
from struct import Struct
from typing import TYPE_CHECKING

from stratalog.net.buffers import LARGEST_KEPT, NORMAL
from stratalog.storage.file_slice import FileSlice

if TYPE_CHECKING:
    from stratalog.net.server import Server

logger = logging.getLogger(__name__)

Part = bytes | bytearray | memoryview | FileSlice
Response = list[Part] | None  # None: the client wants none

_SIZE = Struct(">i")
_PREFIX = _SIZE.size
_SMALLEST_FRAME = 8  # API key, version, correlation id
_SMALL = 4096  # so much of an incomplete frame is kept apart, and its buffer is free for others
_WRITE_AT = 64 * 1024  # responses of pipelined requests are gathered up to here
_FEW = 64  # bytes behind a slice
_RECEIVES = 64  # a turn; then others have theirs
_WAKE_AT = 256 * 1024  # bytes of a large frame
_HEAVY = 64 * 1024  # a request of this size may take long
_HUNG_UP = (7, 8)  # TCP_CLOSE and TCP_CLOSE_WAIT of Linux's tcp_states.h, which the first byte of TCP_INFO holds
_GREETINGS = {b"GET ": "HTTP", b"POST": "HTTP", b"HEAD": "HTTP", b"PUT ": "HTTP", b"\x16\x03": "TLS"}


class RefusedConnectionError(Exception):
    """The client broke the protocol so that no response can be made: its connection is closed, for this reason."""


class Connection:
    def __init__(self, sock: socket.socket, host: str, server: Server) -> None:
        self.host = host
        self.last_active = server.loop.time()
        self.is_closed = False
        self._sock = sock
        self._fd = sock.fileno()
        self._server = server
        self._loop = server.loop
        self._buffer: memoryview | None = None  # held while a frame is incomplete, or waits for its turn
        self._start = 0  # of what is not handled yet in the buffer
        self._filled = 0
        self._pending = b""  # a small piece of an incomplete frame
        self._expected = NORMAL  # the size of the last frame: the next is likely as large
        self._out: deque[Part] = deque()
        self._out_size = 0
        self._unsent = 0  # bytes of it in memory, once the socket takes no more
        self._holds = False  # whether the server counts what this connection holds
        self._waits_for_room = False  # before it reads on
        self._reply: asyncio.Future[Response] | None = None
        self._is_served_to_the_end = False  # the request that is being answered, even if its client has gone
        self._answering = 0  # bytes of the request that is being answered, where it is large: its handler has them
        self._wakes_at = 1
        self._turn_is_over = False  # there are whole frames left, for the next one
        self._may_be_heavy = False  # it is this connection's turn with a request that may take long
        self._reads = True
        self._writes = False
        self._loop.add_reader(self._fd, self._on_readable)

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._reply is not None or bool(self._out)

    @property
    def waits_for_the_broker(self) -> bool:
        """True while the client waits for the broker, so that it is not idle."""
        return self._reply is not None or self._waits_for_room or self._turn_is_over

    def close(self, reason: str = "") -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if reason:
            self._server.note(logging.INFO, f"connection of {self.host} closed: {reason}")
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        if self._reply is not None:
            self._reply.cancel()
        self._out.clear()
        self._release_buffer()
        self._pending = b""
        self._server.memory.forget(self)
        self._server.forget(self)

    # Reading

    def _on_readable(self) -> None:
        if self.is_busy or self._turn_is_over:
            self._watch_for_the_end()
            return
        memory = self._server.memory
        if memory.held >= memory.limit and not memory.most_to_read(self):
            self._pause_reading()
            self._waits_for_room = True
            memory.wait(self)
            return
        if self._waits_for_room:
            self._waits_for_room = False
            memory.stop_waiting(self)
        try:
            self._receive()
        except OSError as error:
            self.close(f"{error}" if self._filled else "")  # a client that just goes is nothing to write about
        self._count_what_is_held()

    def read_again(self) -> None:
        """There may be room for what it sends."""
        if not self.is_closed and not self.is_busy and not self._turn_is_over:
            self._resume_reading()

    def _watch_for_the_end(self) -> None:
        """A client that sends more has to wait for its answer."""
        if not self.close_if_client_is_gone():
            self._pause_reading()

    def close_if_client_is_gone(self) -> bool:
        """A client that hung up needs no answer. What it sent without waiting for answers is served first."""
        if self._reply is None or self._is_served_to_the_end or not self._has_hung_up():
            return False
        self.close()
        return True

    def _has_hung_up(self) -> bool:
        """Whether the client has closed or reset the connection, also where bytes that it sent before are unread."""
        try:
            return bool(self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _HUNG_UP)
        except OSError:
            return True

    def _receive(self) -> None:
        buffer = self._buffer or self._take_buffer()
        memory = self._server.memory
        most = len(buffer) if memory.held < memory.limit else memory.most_to_read(self)
        for _ in range(_RECEIVES):
            try:
                count = self._sock.recv_into(buffer[self._filled : min(self._wanted(buffer), self._filled + most)])
            except BlockingIOError:
                if self._filled <= _SMALL and not self.is_busy:
                    self._keep_apart()
                elif self._filled - self._start >= _PREFIX:
                    self._wake_at(self._start + _PREFIX + _SIZE.unpack_from(buffer, self._start)[0] - self._filled)
                return
            if not count:
                self.close("in the middle of a request" if self._filled else "")
                return
            self._server.received += count
            self._filled += count
            self.last_active = self._loop.time()
            incomplete = self._handle_frames()
            if not incomplete:
                return
            assert self._buffer is not None
            buffer = self._buffer
            self._count_what_is_held()
            most = len(buffer) if memory.held < memory.limit else memory.most_to_read(self)
            if not most:
                return

    def _wake_at(self, count: int) -> None:
        """Be called when so many bytes are there: a large frame comes in many pieces, and each call costs."""
        count = min(count, _WAKE_AT)
        if count != self._wakes_at:
            self._wakes_at = count
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _take_buffer(self) -> memoryview:
        """With what was kept apart in it."""
        buffer = self._server.buffers.take(max(self._expected, len(self._pending) + NORMAL // 2))
        self._start, self._filled = 0, len(self._pending)
        buffer[: self._filled] = self._pending
        self._pending = b""
        self._buffer = buffer
        return buffer

    def _wanted(self, buffer: memoryview) -> int:
        """Up to where to receive. Of a large frame just its rest, so that the next begins where the buffer does."""
        if self._filled - self._start >= _PREFIX:
            end: int = self._start + _PREFIX + _SIZE.unpack_from(buffer, self._start)[0]
            if end - self._start > NORMAL:
                return end
        elif self._expected > NORMAL and not self._filled:
            return self._expected
        return len(buffer)

    def _handle_frames(self) -> bool:
        """Handle all whole frames in the buffer. Says whether a large one is incomplete, of which more may be there."""
        buffer = self._buffer
        assert buffer is not None
        end_of_turn = self._loop.time() + self._server.turn_seconds
        while self._reply is None and not self._writes:
            left = self._filled - self._start
            if left < _PREFIX:
                break
            size = _SIZE.unpack_from(buffer, self._start)[0]
            if not _SMALLEST_FRAME <= size <= self._server.small_frame and not self._accept_size(size, buffer):
                return False
            if left - _PREFIX < size:
                break
            start = self._start + _PREFIX
            if size > _HEAVY and not self._may_be_heavy and self._server.is_heavy(buffer[start : start + size]):
                self._turn_is_over = True
                self._server.wait_for_turn(self)
                break
            self._may_be_heavy = False
            self._start = start + size
            self._expected = size + _PREFIX
            if self._wakes_at > 1:
                self._wake_at(1)
            if not self._handle(buffer[start : self._start]):
                return False
            if self._out_size >= _WRITE_AT:
                self._write(but_the_end=self._has_whole_frame(buffer))
            if self._filled - self._start > _PREFIX and self._loop.time() > end_of_turn:
                self._turn_is_over = True
                self._loop.call_soon(self._next_turn)
                break
        if self._out and not self._writes:
            self._write()
        return False if self._turn_is_over else self._make_room()

    def _has_whole_frame(self, buffer: memoryview) -> bool:
        left = self._filled - self._start - _PREFIX
        return left > 0 and bool(left >= _SIZE.unpack_from(buffer, self._start)[0])

    def take_turn(self) -> None:
        """With a request that may take long."""
        self._may_be_heavy = True
        self._next_turn()

    def _next_turn(self) -> None:
        self._turn_is_over = False
        if not self.is_closed and not self.is_busy:
            self._resume()

    def _accept_size(self, size: int, buffer: memoryview) -> bool:
        first = buffer[self._start + _PREFIX : self._filled]
        if _SMALLEST_FRAME <= size <= self._server.largest_frame(first):
            return True
        greeting = bytes(buffer[self._start : self._start + _PREFIX])
        spoken = next((name for start, name in _GREETINGS.items() if greeting.startswith(start)), None)
        if spoken is not None:
            self._refuse(f"it speaks {spoken} where Kafka's protocol is spoken, in plain text")
        else:
            self._refuse(f"its frame of {size} bytes is outside the limits (socket.request.max.bytes and the others)")
        return False

    def _handle(self, frame: memoryview) -> bool:
        """Says whether the connection is still there."""
        try:
            response = self._server.serve(frame, self.host)
        except RefusedConnectionError as refusal:
            self._refuse(str(refusal))
            return False
        except Exception:
            logger.exception("a request of %s failed; its connection is closed", self.host)
            self._refuse("")
            return False
        if isinstance(response, list):
            self._queue(response)
        elif response is not None:
            self._answering = len(frame) if len(frame) > _HEAVY else 0
            self._is_served_to_the_end = self._server.outlives_its_client(frame)
            self._wait_for(response)
        return True

    def _refuse(self, reason: str) -> None:
        """Close, but for the answers to what came before."""
        if self._out and not self._writes:
            self._write()
        self.close(reason)

    def _make_room(self) -> bool:
        """What is left is moved to where the rest of it finds room, or kept apart if it is little."""
        buffer = self._buffer
        if buffer is None or self.is_closed:
            return False
        left = self._filled - self._start
        if left == 0:
            self._release_buffer()
            return False
        if self.is_busy:
            return False  # it may be more than one frame, and has to wait
        size = NORMAL if left < _PREFIX else _PREFIX + _SIZE.unpack_from(buffer, self._start)[0]
        if left <= _SMALL and size <= NORMAL:
            self._keep_apart()
            return False
        if size > len(buffer):
            larger = self._server.buffers.take(size)
            larger[:left] = buffer[self._start : self._filled]
            self._server.buffers.give_back(buffer)
            self._buffer = larger
        elif self._start:
            buffer[:left] = bytes(buffer[self._start : self._filled])  # bytes(): the two may overlap
        self._start, self._filled = 0, left
        return size > NORMAL

    def _keep_apart(self) -> None:
        buffer = self._buffer
        assert buffer is not None
        self._pending = bytes(buffer[self._start : self._filled])
        self._release_buffer()

    def _release_buffer(self) -> None:
        if self._buffer is not None:
            self._server.buffers.give_back(self._buffer)
            self._buffer = None
        self._start = self._filled = 0

    def _pause_reading(self) -> None:
        if self._reads:
            self._loop.remove_reader(self._fd)
            self._reads = False

    def _resume_reading(self) -> None:
        if not self._reads:
            self._loop.add_reader(self._fd, self._on_readable)
            self._reads = True

    def _resume(self) -> None:
        """The answer is written: go on with what came meanwhile."""
        self._resume_reading()
        try:
            if self._pending:
                self._take_buffer()
            if self._buffer is not None:
                self._handle_frames()
        except OSError as error:  # no memory
            self.close(str(error))
        self._count_what_is_held()

    # Memory

    def let_go_of_buffer(self) -> None:
        """What it holds is little, and the rest takes its time: the buffer is for others."""
        if self._buffer is not None and len(self._buffer) == NORMAL and not self._turn_is_over:
            self._keep_apart()
            self._count_what_is_held()

    def _count_what_is_held(self) -> None:
        if self.is_closed:
            return
        size = self._unsent + self._answering
        buffer = self._buffer
        if buffer is not None:
            if len(buffer) == NORMAL and self._server.memory.is_scarce:
                self.let_go_of_buffer()
                return
            # A large buffer takes up memory as it is filled, unless it was used before.
            size += len(buffer) if len(buffer) <= LARGEST_KEPT else self._filled
        elif len(self._pending) > _SMALL:
            size += len(self._pending)
        if size or self._holds:
            self._holds = size > 0
            self._server.memory.hold(self, size, is_sending=not self.is_busy and not self._turn_is_over)

    # Answering

    def _wait_for(self, response: Awaitable[Response]) -> None:
        self._reply = asyncio.ensure_future(response, loop=self._loop)
        self._reply.add_done_callback(self._on_reply)

    def _on_reply(self, reply: asyncio.Future[Response]) -> None:
        if self.is_closed:
            if not reply.cancelled():
                reply.exception()  # or it would be complained about
            return
        self._reply = None
        self._answering = 0
        self.last_active = self._loop.time()
        try:
            response = reply.result()
        except (asyncio.CancelledError, RefusedConnectionError) as error:
            self.close(str(error))
            return
        except Exception:
            logger.exception("a request of %s failed; its connection is closed", self.host)
            self.close()
            return
        if response is not None:
            self._queue(response)
            self._write()
        self._after_writing()

    def _queue(self, response: list[Part]) -> None:
        self._out.extend(response)
        self._out_size += sum(map(len, response))

    def _write(self, *, but_the_end: bool = False) -> None:
        """`but_the_end`: the few bytes behind a slice wait for the next answer, which is about to be there. Each call
        costs, and wakes the client."""
        least = 1 if but_the_end and len(self._out) > 1 and len(self._out[-1]) <= _FEW else 0
        try:
            while len(self._out) > least:
                self._write_some()
        except BlockingIOError:
            self._unsent = sum(len(part) for part in self._out if not isinstance(part, FileSlice))
            if not self._writes:
                self._writes = True
                self._loop.add_writer(self._fd, self._on_writable)
        except OSError:
            self.close()
        else:
            self._unsent = 0
            self._out_size = sum(map(len, self._out))
            if self._writes:
                self._writes = False
                self._loop.remove_writer(self._fd)

    def _write_some(self) -> None:
        part = self._out.popleft()
        if isinstance(part, FileSlice):
            try:
                count = os.sendfile(self._fd, part.fileno(), part.position, part.length) if part.length else 0
            except BlockingIOError:
                self._out.appendleft(part)
                raise
            if count == 0 and part.length:
                self.close(f"{part}: the file is shorter than it was")
                return
            rest: Part = FileSlice(part.file, part.position + count, part.length - count)
        else:
            if self._out and not isinstance(self._out[0], FileSlice):
                part = self._join(part)
            more = socket.MSG_MORE if self._out else 0
            try:
                count = self._sock.send(part, more)
            except BlockingIOError:
                self._out.appendleft(part)
                raise
            rest = memoryview(part)[count:]
        self._server.sent += count
        if len(rest):
            self._out.appendleft(rest)

    def _join(self, first: bytes | bytearray | memoryview) -> bytes:
        parts = [first]
        while self._out and not isinstance(self._out[0], FileSlice):
            parts.append(self._out.popleft())  # type: ignore[arg-type]
        return b"".join(parts)

    def _on_writable(self) -> None:
        sent = self._server.sent
        self._write()
        if self._server.sent > sent:  # a client that reads slowly is not idle
            self.last_active = self._loop.time()
        self._after_writing()

    def _after_writing(self) -> None:
        if self.is_closed:
            return
        if self.is_busy:
            self._count_what_is_held()
        elif not self._turn_is_over:
            self._resume()
