"""Responses on their way to a client: bytes, and ranges of files that go from the file to the socket without passing
through user space. Small parts are sent together."""

from __future__ import annotations

import os
import socket
from collections import deque

from stratalog.storage.file_slice import FileSlice

Part = bytes | bytearray | memoryview | FileSlice
Response = list[Part] | None  # None: the client expects none

_FEW = 64  # bytes after a slice


class FileTooShortError(Exception):
    """A file is shorter than the range of it that was to be sent."""


class ResponseQueue:
    __slots__ = ("_fd", "_sock", "is_blocked", "parts", "size", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self.parts: deque[Part] = deque()
        self.size = 0  # bytes that were queued since the last write
        self.unsent = 0  # bytes of these in memory, when the socket takes no more
        self.is_blocked = False  # the socket takes no more

    def add(self, response: list[Part]) -> None:
        self.parts.extend(response)
        self.size += sum(map(len, response))

    def clear(self) -> None:
        self.parts.clear()

    def write(self, *, except_last: bool = False) -> int:
        """Send what the socket takes, and return the number of bytes. Raises OSError and FileTooShortError.

        With `except_last`, the few bytes after a slice wait for the next response, which is about to follow: each call
        costs time, and wakes the client.
        """
        parts, sent = self.parts, 0
        keep = 1 if except_last and len(parts) > 1 and len(parts[-1]) <= _FEW else 0
        try:
            while len(parts) > keep:
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
                raise FileTooShortError(f"{part}: the file has become shorter")
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
