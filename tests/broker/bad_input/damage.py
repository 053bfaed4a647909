"""Ways to damage bytes: flipped bits, cuts, insertions, extreme numbers, and extreme values in place of lengths."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

from stratalog.protocol._shape import Operation
from stratalog.protocol.fields import write_varint
from stratalog.protocol.shapes import compile_shape

_EXTREMES = (0, 1, -1, -2, 2**7 - 1, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 100_001)
_COMPACT_EXTREMES = (0, 1, 2, 127, 128, 100_001, 2**31 - 1, 2**31, 2**32 - 1, 2**35 - 1)


def damage(chance: random.Random, data: bytes) -> bytes:
    """Damage bytes once or several times."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if out:
            chance.choice(_WAYS)(chance, out)
    return bytes(out)


def damage_lengths(chance: random.Random, body: bytes, schema: type[Any]) -> bytes:
    """Replace one count or length of a valid request."""
    found = _Lengths(body, _shape(schema)).found  # type: ignore[arg-type]
    if not found:
        return body
    position, size, operation = chance.choice(found)
    if operation in (Operation.COMPACT, Operation.COMPACT_ARRAY):
        written = bytearray()
        write_varint(written, chance.choice(_COMPACT_EXTREMES))
    else:
        written = bytearray(_fitted(chance.choice(_EXTREMES), size))
    return body[:position] + bytes(written) + body[position + size :]


@cache
def _shape(schema: type[Any]) -> list[int]:
    return list(compile_shape(schema))


def _flip(chance: random.Random, out: bytearray) -> None:
    for _ in range(chance.choice((1, 1, 3, 10))):
        out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)


def _cut(chance: random.Random, out: bytearray) -> None:
    start = chance.randrange(len(out))
    del out[start : chance.choice((len(out), start + 1, start + chance.randrange(20)))]


def _insert(chance: random.Random, out: bytearray) -> None:
    start = chance.randrange(len(out) + 1)
    out[start:start] = chance.randbytes(chance.choice((1, 1, 2, 4, 50)))


def _overwrite(chance: random.Random, out: bytearray) -> None:
    size = chance.choice((1, 2, 4, 4, 8))
    start = chance.randrange(len(out))
    out[start : start + size] = _fitted(chance.choice(_EXTREMES), size)


def _overwrite_varint(chance: random.Random, out: bytearray) -> None:
    start = chance.randrange(len(out))
    written = bytearray()
    write_varint(written, chance.choice(_COMPACT_EXTREMES))
    out[start : start + len(written)] = written


def _repeat(chance: random.Random, out: bytearray) -> None:
    start = chance.randrange(len(out))
    piece = out[start : start + chance.randrange(1, 60)]
    out[start:start] = piece * chance.choice((1, 2, 50))


_WAYS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip,
    _cut,
    _insert,
    _overwrite,
    _overwrite_varint,
    _repeat,
)


def _fitted(value: int, size: int) -> bytes:
    return (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")


class _Lengths:
    """Finds the counts and lengths in a valid body: (position, size, operation)."""

    def __init__(self, body: bytes, shape: list[int]) -> None:
        self.found: list[tuple[int, int, int]] = []
        self._body = body
        self._position = 0
        self._follow(shape)

    def _follow(self, shape: list[int]) -> None:
        at = 0
        while at < len(shape):
            operation, argument = shape[at], shape[at + 1]
            at += 2
            if operation == Operation.FIXED:
                self._position += argument
            elif operation == Operation.TAGS:
                self._tags()
            elif operation == Operation.NULLABLE:
                is_null = self._body[self._position] > 127
                self._position += 1
                if not is_null:
                    self._follow(shape[at : at + argument])
                at += argument
            else:
                length = self._length(operation)
                if operation in (Operation.ARRAY, Operation.COMPACT_ARRAY):
                    element = shape[at + 1 : at + 1 + shape[at]]
                    at += 1 + shape[at]
                    for _ in range(length):
                        self._follow(element)
                else:
                    self._position += max(length, 0)

    def _tags(self) -> None:
        for _ in range(self._length(Operation.COMPACT) + 1):
            self._length(Operation.COMPACT)
            size = self._length(Operation.COMPACT) + 1
            self._position += size

    def _length(self, operation: int) -> int:
        start = self._position
        if operation in (Operation.COMPACT, Operation.COMPACT_ARRAY):
            value = shift = 0
            while True:
                byte = self._body[self._position]
                self._position += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            value -= 1
        else:
            self._position += 2 if operation == Operation.STRING else 4
            value = int.from_bytes(self._body[start : self._position], "big", signed=True)
        self.found.append((start, self._position - start, operation))
        return value
