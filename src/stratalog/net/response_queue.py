"""Responses on their way to a client: bytes, and ranges of files that go from the file to the socket without passing
through user space. What is small is sent together."""

from __future__ import annotations

import os
import socket
from collections import deque

from stratalog.storage.file_slice import FileSlice

Part = bytes | bytearray | memoryview | FileSlice
Response = list[Part] | None  # None: the client wants none

_FEW = 64  # bytes behind a slice


class FileTooShortError(Exception):
    """A file has become shorter than the range of it that was promised."""


class ResponseQueue:
    __slots__ = ("_fd", "_sock", "is_blocked", "parts", "size", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self.parts: deque[Part] = deque()
        self.size = 0  # bytes that were queued since the last write
        self.unsent = 0  # bytes of it in memory, once the socket takes no more
        self.is_blocked = False  # the socket takes no more

    def add(self, response: list[Part]) -> None:
        self.parts.extend(response)
        self.size += sum(map(len, response))

    def clear(self) -> None:
        self.parts.clear()

    def write(self, *, but_the_end: bool = False) -> int:
        """Send what the socket takes; return how many bytes that were. `but_the_end`: the few bytes behind a slice wait
        for the next response, which is about to be there: each call costs, and wakes the client. Raises OSError,
        FileTooShortError."""
        parts, sent = self.parts, 0
        least = 1 if but_the_end and len(parts) > 1 and len(parts[-1]) <= _FEW else 0
        try:
            while len(parts) > least:
                sent += self._write_some()
        except BlockingIOError:
            self.unsent = sum(len(part) for part in parts if not isinstance(part, FileSlice))
            self.is_blocked = True
        else:
            self.unsent = 0
            self.size = sum(map(len, parts))
            self.is_blocked = False
        return sent

    def _write_some(self) -> int:
        part = self.parts.popleft()
        if isinstance(part, FileSlice):
            try:
                count = os.sendfile(self._fd, part.fileno(), part.position, part.length) if part.length else 0
            except BlockingIOError:
                self.parts.appendleft(part)
                raise
            if count == 0 and part.length:
                raise FileTooShortError(f"{part}: the file is shorter than it was")
            rest: Part = FileSlice(part.file, part.position + count, part.length - count)
        else:
            if self.parts and not isinstance(self.parts[0], FileSlice):
                part = self._join(part)
            more = socket.MSG_MORE if self.parts else 0
            try:
                count = self._sock.send(part, more)
            except BlockingIOError:
                self.parts.appendleft(part)
                raise
            rest = memoryview(part)[count:]
        if len(rest):
            self.parts.appendleft(rest)
        return count

    def _join(self, first: bytes | bytearray | memoryview) -> bytes:
        parts = [first]
        while self.parts and not isinstance(self.parts[0], FileSlice):
            parts.append(self.parts.popleft())  # type: ignore[arg-type]
        return b"".join(parts)
