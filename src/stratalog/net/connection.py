"""One client's connection: frames in, responses out, one request at a time and in order, as Kafka serves them.

A frame is four bytes of size and that many bytes. The handler gets it as a view of the receive buffer, valid until the
call returns. A response is a list of bytes and FileSlices; slices go from the file to the socket without passing
through user space. While a response is not ready or not written, nothing more is read. So a client that does not read
its responses gets no more of them, and holds only the memory of the last one. At the end of its turn, a connection
reports what it holds. It stops reading while all connections together hold too much (held_memory.py).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from stratalog.net.framing import SMALLEST_FRAME, FrameReader, FrameSizeError
from stratalog.net.response_queue import FileTooShortError, Response, ResponseQueue

if TYPE_CHECKING:
    from stratalog.net.server import Server

logger = logging.getLogger(__name__)

_WRITE_AT = 64 * 1024  # responses to pipelined requests are collected up to this size
_ANY = 1 << 62
_RECEIVES = 64  # per turn
_WAKE_AT = 256 * 1024  # bytes of a large frame
_HEAVY = 64 * 1024  # a request of this size may take long
_HUNG_UP = (7, 8)  # TCP_CLOSE and TCP_CLOSE_WAIT of Linux's tcp_states.h, which the first byte of TCP_INFO holds
_GREETINGS = {b"GET ": "HTTP", b"POST": "HTTP", b"HEAD": "HTTP", b"PUT ": "HTTP", b"\x16\x03": "TLS"}


class RefusedConnectionError(Exception):
    """The client broke the protocol so that no response is possible. The message says why it is closed."""


class Connection:
    def __init__(self, sock: socket.socket, host: str, server: Server) -> None:
        self.host = host
        self.last_active = server.loop.time()
        self.is_closed = False
        self._sock = sock
        self._fd = sock.fileno()
        self._server = server
        self._loop = server.loop
        self._frames = FrameReader(server.buffers)
        self._out = ResponseQueue(sock)
        self._holds = False  # the server counts bytes that this connection holds
        self._waits_for_room = False  # for memory, before it continues to read
        self._reply: asyncio.Future[Response] | None = None
        self._is_served_to_the_end = False  # the current request is served even if its client hangs up
        self._answering = 0  # size of the current request if it is large, since its handler holds it
        self._wakes_at = 1
        self._turn_is_over = False  # complete frames are left for the next turn
        self._may_be_heavy = False  # a request that may take long is allowed now
        self._reads = True
        self._watches_for_room = False  # for room in the socket for the rest of the output
        self._loop.add_reader(self._fd, self._on_readable)

    @property
    def is_busy(self) -> bool:
        """True while a request is being served."""
        return self._reply is not None or bool(self._out.parts)

    @property
    def waits_for_the_broker(self) -> bool:
        """True while the client waits for the broker, so that it is not idle."""
        return self._reply is not None or self._waits_for_room or self._turn_is_over

    def close(self, reason: str = "") -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if reason:
            self._server.note(logging.INFO, f"connection from {self.host} closed: {reason}")
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        if self._reply is not None:
            self._reply.cancel()
        self._out.clear()
        self._frames.close()
        self._server.memory.forget(self)
        self._server.forget(self)

    # Reading

    def _on_readable(self) -> None:
        if self.is_busy or self._turn_is_over:
            self._watch_for_the_end()
            return
        memory = self._server.memory
        if memory.held >= memory.limit and not memory.read_limit(self):
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
            self.close(
                "" if self._frames.is_empty else f"{error}"
            )  # a client that hangs up between requests is not logged
        self._count_what_is_held()

    def read_again(self) -> None:
        """Read again, since there may be memory now."""
        if not self.is_closed and not self.is_busy and not self._turn_is_over:
            self._resume_reading()

    def _watch_for_the_end(self) -> None:
        """Act on input during a request. A client that sends more has to wait for its response."""
        if not self.close_if_client_is_gone():
            self._pause_reading()

    def close_if_client_is_gone(self) -> bool:
        """Close the connection if the client has hung up while its request is served, because it needs no response.
        Requests that it sent without waiting for responses are served first. Return whether it was closed."""
        if self._reply is None or self._is_served_to_the_end or not self._has_hung_up():
            return False
        self.close()
        return True

    def _has_hung_up(self) -> bool:
        """Return whether the client has closed or reset the connection, even with unread bytes."""
        try:
            return bool(self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _HUNG_UP)
        except OSError:
            return True

    def _receive(self) -> None:
        frames, memory = self._frames, self._server.memory
        limit = _ANY if memory.held < memory.limit else memory.read_limit(self)
        for _ in range(_RECEIVES):
            try:
                count = self._sock.recv_into(frames.room(limit))
            except BlockingIOError:
                if frames.has_little and not self.is_busy:
                    frames.keep_apart()
                else:
                    self._wake_at(frames.missing)
                return
            if not count:
                self.close("" if frames.is_empty else "in the middle of a request")
                return
            self._server.received += count
            frames.received(count)
            self.last_active = self._loop.time()
            is_incomplete = self._handle_frames()
            if not is_incomplete:
                return
            self._count_what_is_held()
            limit = _ANY if memory.held < memory.limit else memory.read_limit(self)
            if not limit:
                return

    def _wake_at(self, count: int) -> None:
        """Wake when so many bytes have arrived. A large frame arrives in many pieces, and each call costs time."""
        count = min(count, _WAKE_AT)
        if count > 0 and count != self._wakes_at:
            self._wakes_at = count
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _handle_frames(self) -> bool:
        """Handle all complete frames. Return True if a large frame is incomplete and more of it may have arrived."""
        frames, out, server = self._frames, self._out, self._server
        end_of_turn = 0.0
        while self._reply is None and not out.is_blocked:
            try:
                frame = frames.next_frame(server.small_frame)
            except FrameSizeError as error:
                if not self._accept_size(error):
                    return False
                frame = frames.next_frame(error.size)
            if frame is None:
                break
            if not end_of_turn:
                end_of_turn = self._loop.time() + server.turn_seconds
            elif self._loop.time() > end_of_turn:
                frames.put_back(frame)
                self._turn_is_over = True
                self._loop.call_soon(self._next_turn)
                break
            if len(frame) > _HEAVY and not self._may_be_heavy and server.is_heavy(frame):
                frames.put_back(frame)
                self._turn_is_over = True
                server.wait_for_turn(self)
                break
            self._may_be_heavy = False
            if self._wakes_at > 1:
                self._wake_at(1)
            if not self._handle(frame):
                return False
            if out.size >= _WRITE_AT:
                self._write(except_last=frames.has_complete_frame)
        if out.parts and not out.is_blocked:
            self._write()
        if self._turn_is_over or self.is_closed or (self.is_busy and not frames.is_empty):
            return False  # more than one frame may be left, and has to wait
        return frames.make_room()

    def take_turn(self) -> None:
        """Serve a request that may take long."""
        self._may_be_heavy = True
        self._next_turn()

    def _next_turn(self) -> None:
        self._turn_is_over = False
        if not self.is_closed and not self.is_busy:
            self._resume()

    def _accept_size(self, error: FrameSizeError) -> bool:
        if SMALLEST_FRAME <= error.size <= self._server.largest_frame(error.first):
            return True
        greeting = error.size.to_bytes(4, "big", signed=True)
        protocol = next((name for start, name in _GREETINGS.items() if greeting.startswith(start)), None)
        if protocol is not None:
            self._refuse(f"it uses {protocol}, but this port expects Kafka's protocol in plain text")
        else:
            allowed = "the allowed range (socket.request.max.bytes and other limits)"
            self._refuse(f"its frame of {error.size} bytes is outside {allowed}")
        return False

    def _handle(self, frame: memoryview) -> bool:
        """Serve a request. Return whether the connection is still open."""
        try:
            response = self._server.serve(frame, self.host)
        except RefusedConnectionError as refusal:
            self._refuse(str(refusal))
            return False
        except Exception:
            logger.exception("a request from %s failed; closing its connection", self.host)
            self._refuse("")
            return False
        if isinstance(response, list):
            self._out.add(response)
        elif response is not None:
            self._answering = len(frame) if len(frame) > _HEAVY else 0
            self._is_served_to_the_end = self._server.outlives_its_client(frame)
            self._wait_for(response)
        return True

    def _refuse(self, reason: str) -> None:
        """Close the connection after writing the responses to earlier requests."""
        if self._out.parts and not self._out.is_blocked:
            self._write()
        self.close(reason)

    def _pause_reading(self) -> None:
        if self._reads:
            self._loop.remove_reader(self._fd)
            self._reads = False

    def _resume_reading(self) -> None:
        if not self._reads:
            self._loop.add_reader(self._fd, self._on_readable)
            self._reads = True

    def _resume(self) -> None:
        """Continue with the frames that arrived while the last request was served."""
        self._resume_reading()
        try:
            if not self._frames.is_empty:
                self._handle_frames()
        except OSError as error:  # no memory
            self.close(str(error))
        self._count_what_is_held()

    # Memory

    def free_buffer(self) -> None:
        """Copy a small piece of a frame that arrives slowly, so that other connections can use the buffer."""
        if self._frames.can_free_buffer and not self._turn_is_over:
            self._frames.keep_apart()
            self._count_what_is_held()

    def _count_what_is_held(self) -> None:
        if self.is_closed:
            return
        frames = self._frames
        size = self._out.unsent + self._answering
        if not frames.is_empty:
            if frames.can_free_buffer and self._server.memory.is_scarce and not self._turn_is_over:
                frames.keep_apart()
            size += frames.held
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
                reply.exception()  # otherwise asyncio would log it
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
            logger.exception("a request from %s failed; closing its connection", self.host)
            self.close()
            return
        if response is not None:
            self._out.add(response)
            self._write()
        self._after_writing()

    def _write(self, *, except_last: bool = False) -> None:
        try:
            self._server.sent += self._out.write(except_last=except_last)
        except FileTooShortError as error:
            self.close(str(error))
        except OSError:
            self.close()
        else:
            if self._out.is_blocked is not self._watches_for_room:
                self._watch_for_room()

    def _watch_for_room(self) -> None:
        self._watches_for_room = self._out.is_blocked
        if self._watches_for_room:
            self._loop.add_writer(self._fd, self._on_writable)
        else:
            self._loop.remove_writer(self._fd)

    def _on_writable(self) -> None:
        sent = self._server.sent
        self._write()
        if self._server.sent > sent:  # a slow reader is not idle
            self.last_active = self._loop.time()
        self._after_writing()

    def _after_writing(self) -> None:
        if self.is_closed:
            return
        if self.is_busy:
            self._count_what_is_held()
        elif not self._turn_is_over:
            self._resume()
