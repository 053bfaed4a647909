"""The primitive fields of Kafka's messages and records, for Python code: with fixed lengths or compact (KIP-482,
"flexible"). Also the limits on the elements of a message.

A FieldReader never reads past its bytes. It never allocates memory for a count that it has not compared with the bytes
left. _wire_fields.pyx does the same for the kernels.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from struct import Struct
from typing import TypeVar

from stratalog.errors import GroupRecordError, StratalogError

INT16 = Struct(">h")
INT32 = Struct(">i")
_INT8 = Struct(">b")
_INT64 = Struct(">q")
_LONGEST_VARINT = 5
_LONGEST_STRING = 2**15 - 1

MOST_ELEMENTS = 100_000
"""Limit on the elements in all arrays of a request: topics and partitions, mostly. An element of a few bytes becomes an
object of hundreds, and its response may have thousands."""

MOST_RESPONSE_ELEMENTS = 1_000_000
"""Limit on the elements in all arrays of a response. Metadata of 100,000 partitions with three replicas has 700,000."""

Item = TypeVar("Item")


def write_varint(out: bytearray, value: int) -> None:
    """Append an unsigned varint, as used for lengths and tags."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


class FieldReader:
    """Reads one field after the other. `flexible` may be set later, once the version is known.

    Malformed bytes raise `error`, with a message that begins with `what`.
    """

    def __init__(
        self,
        data: bytes | memoryview,
        what: str,
        *,
        flexible: bool = False,
        error: type[StratalogError] = GroupRecordError,
    ) -> None:
        self.flexible = flexible
        self.position = 0
        self._data = data
        self._what = what
        self._error = error

    def _fixed(self, packed: Struct) -> int:
        if len(self._data) - self.position < packed.size:
            raise self.error(f"ends at byte {len(self._data)}, within the field at position {self.position}")
        value: int = packed.unpack_from(self._data, self.position)[0]
        self.position += packed.size
        return value

    def int8(self) -> int:
        return self._fixed(_INT8)

    def int16(self) -> int:
        return self._fixed(INT16)

    def int32(self) -> int:
        return self._fixed(INT32)

    def int64(self) -> int:
        return self._fixed(_INT64)

    def varint(self) -> int:
        """Read an unsigned varint, as used for lengths and tags."""
        value = 0
        for shift in range(0, 7 * _LONGEST_VARINT, 7):
            if self.position >= len(self._data):
                raise self.error(f"ends at position {self.position}, within a varint")
            byte = self._data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
        raise self.error(f"has a varint of more than {_LONGEST_VARINT} bytes before position {self.position}")

    def raw(self, length: int) -> bytes:
        if not 0 <= length <= self.left:
            raise self.error(
                f"claims a field of {length} bytes at position {self.position}, but {self.left} bytes are left"
            )
        self.position += length
        return bytes(self._data[self.position - length : self.position])

    def nullable_string(self) -> str | None:
        length = self.varint() - 1 if self.flexible else self.int16()
        if length == -1:
            return None
        try:
            return self.raw(length).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"has a string before position {self.position} that is not UTF-8") from error

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise self.error(f"has a null string before position {self.position}, where null is not allowed")
        return value

    def byte_string(self) -> bytes:
        return self.raw(self.varint() - 1 if self.flexible else self.int32())

    def nullable_byte_string(self) -> bytes | None:
        length = self.varint() - 1 if self.flexible else self.int32()
        return None if length == -1 else self.raw(length)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.raw(16))

    def nullable_array(self, item: Callable[[], Item]) -> list[Item] | None:
        count = self.varint() - 1 if self.flexible else self.int32()
        return None if count == -1 else self._items(count, item)

    def array(self, item: Callable[[], Item], limit: int | None = None) -> list[Item]:
        count = self.varint() - 1 if self.flexible else self.int32()
        if limit is not None and count > limit:
            raise self.error(f"has {count} items before position {self.position}; the limit is {limit}")
        return self._items(count, item)

    def _items(self, count: int, item: Callable[[], Item]) -> list[Item]:
        if not 0 <= count <= self.left:  # an item has at least one byte
            raise self.error(f"claims {count} items before position {self.position}, but {self.left} bytes are left")
        return [item() for _ in range(count)]

    def tagged_fields(self) -> dict[int, bytes]:
        """Read the tagged fields after a flexible structure; other structures have none. Callers ignore unknown
        tags."""
        if not self.flexible:
            return {}
        return {self.varint(): self.raw(self.varint()) for _ in range(self.varint())}

    @property
    def left(self) -> int:
        return len(self._data) - self.position

    def error(self, problem: str) -> StratalogError:
        return self._error(f"{self._what} {problem}")


class FieldWriter:
    """Writes one field after the other to `out`."""

    __slots__ = ("_flexible", "out")

    def __init__(self, *, flexible: bool = False) -> None:
        self.out = bytearray()
        self._flexible = flexible

    def int8(self, value: int) -> FieldWriter:
        self.out += _INT8.pack(value)
        return self

    def int16(self, value: int) -> FieldWriter:
        self.out += INT16.pack(value)
        return self

    def int32(self, value: int) -> FieldWriter:
        self.out += INT32.pack(value)
        return self

    def int64(self, value: int) -> FieldWriter:
        self.out += _INT64.pack(value)
        return self

    def varint(self, value: int) -> FieldWriter:
        write_varint(self.out, value)
        return self

    def raw(self, data: bytes) -> FieldWriter:
        self.out += data
        return self

    def string(self, value: str | None) -> FieldWriter:
        data = None if value is None else value.encode()
        length = -1 if data is None else len(data)
        if self._flexible:
            write_varint(self.out, length + 1)
        elif length > _LONGEST_STRING:
            raise GroupRecordError(f"a string has {length} bytes; a record can store {_LONGEST_STRING}")
        else:
            self.out += INT16.pack(length)
        self.out += data or b""
        return self

    def byte_string(self, data: bytes | None) -> FieldWriter:
        self.count(-1 if data is None else len(data))
        self.out += data or b""
        return self

    def count(self, items: int) -> FieldWriter:
        """Write the length of an array or of bytes; -1 means null."""
        if self._flexible:
            write_varint(self.out, items + 1)
        else:
            self.out += INT32.pack(items)
        return self

    def tagged_fields(self, fields: dict[int, bytes] | None = None) -> FieldWriter:
        if self._flexible:
            self.varint(len(fields or {}))
            for tag, data in sorted((fields or {}).items()):
                self.varint(tag).varint(len(data)).raw(data)
        return self

    def done(self) -> bytes:
        return bytes(self.out)
