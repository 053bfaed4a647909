"""The primitive fields of Kafka's records, in both encodings: fixed lengths, and compact ones (KIP-482, "flexible").

A reader never goes past its bytes and never allocates by a count that it has not compared with the bytes left.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from struct import Struct
from typing import TypeVar

from stratalog.errors import GroupRecordError

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_LONGEST_VARINT = 5
_LONGEST_STRING = 2**15 - 1

Item = TypeVar("Item")


class FieldReader:
    """Reads one field after the other. `flexible` is set once the record's version is known."""

    def __init__(self, data: bytes, what: str, *, flexible: bool = False) -> None:
        self.flexible = flexible
        self._data = data
        self._what = what
        self._at = 0

    def _fixed(self, packed: Struct) -> int:
        if len(self._data) - self._at < packed.size:
            raise self.error(f"ends at byte {len(self._data)}, within a field that begins at byte {self._at}")
        value: int = packed.unpack_from(self._data, self._at)[0]
        self._at += packed.size
        return value

    def int8(self) -> int:
        return self._fixed(_INT8)

    def int16(self) -> int:
        return self._fixed(_INT16)

    def int32(self) -> int:
        return self._fixed(_INT32)

    def int64(self) -> int:
        return self._fixed(_INT64)

    def varint(self) -> int:
        """Unsigned, as lengths and tags have it."""
        value = 0
        for shift in range(0, 7 * _LONGEST_VARINT, 7):
            if self._at >= len(self._data):
                raise self.error(f"ends at byte {len(self._data)}, within a varint")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
        raise self.error(f"has a varint of more than {_LONGEST_VARINT} bytes before byte {self._at}")

    def raw(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data) - self._at:
            raise self.error(f"claims a field of {length} bytes at byte {self._at}, where {self.left} are left")
        self._at += length
        return self._data[self._at - length : self._at]

    def nullable_string(self) -> str | None:
        length = self.varint() - 1 if self.flexible else self.int16()
        if length == -1:
            return None
        try:
            return self.raw(length).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"has a string before byte {self._at} that is not UTF-8") from error

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise self.error(f"has a null string before byte {self._at}, where none may be")
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

    def array(self, item: Callable[[], Item], most: int | None = None) -> list[Item]:
        count = self.varint() - 1 if self.flexible else self.int32()
        if most is not None and count > most:
            raise self.error(f"has {count} items before byte {self._at}; {most} are the most")
        return self._items(count, item)

    def _items(self, count: int, item: Callable[[], Item]) -> list[Item]:
        if not 0 <= count <= self.left:  # an item has at least a byte
            raise self.error(f"claims {count} items before byte {self._at}, where {self.left} bytes are left")
        return [item() for _ in range(count)]

    def tagged_fields(self) -> dict[int, bytes]:
        """What comes behind a flexible structure; nothing behind another. Unknown tags are the caller's to ignore."""
        if not self.flexible:
            return {}
        return {self.varint(): self.raw(self.varint()) for _ in range(self.varint())}

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def error(self, problem: str) -> GroupRecordError:
        return GroupRecordError(f"{self._what} {problem}")


class FieldWriter:
    def __init__(self, *, flexible: bool = False) -> None:
        self._flexible = flexible
        self._out = bytearray()

    def int8(self, value: int) -> FieldWriter:
        self._out += _INT8.pack(value)
        return self

    def int16(self, value: int) -> FieldWriter:
        self._out += _INT16.pack(value)
        return self

    def int32(self, value: int) -> FieldWriter:
        self._out += _INT32.pack(value)
        return self

    def int64(self, value: int) -> FieldWriter:
        self._out += _INT64.pack(value)
        return self

    def varint(self, value: int) -> FieldWriter:
        while value > 0x7F:
            self._out.append(value & 0x7F | 0x80)
            value >>= 7
        self._out.append(value)
        return self

    def raw(self, data: bytes) -> FieldWriter:
        self._out += data
        return self

    def string(self, value: str | None) -> FieldWriter:
        data = None if value is None else value.encode()
        length = -1 if data is None else len(data)
        if self._flexible:
            self.varint(length + 1)
        elif length > _LONGEST_STRING:
            raise GroupRecordError(f"a string of {length} bytes does not fit a record, which takes {_LONGEST_STRING}")
        else:
            self.int16(length)
        return self.raw(data or b"")

    def byte_string(self, data: bytes) -> FieldWriter:
        if self._flexible:
            self.varint(len(data) + 1)
        else:
            self.int32(len(data))
        return self.raw(data)

    def count(self, items: int) -> FieldWriter:
        return self.varint(items + 1) if self._flexible else self.int32(items)

    def tagged_fields(self, fields: dict[int, bytes] | None = None) -> FieldWriter:
        if self._flexible:
            self.varint(len(fields or {}))
            for tag, data in sorted((fields or {}).items()):
                self.varint(tag).varint(len(data)).raw(data)
        return self

    def done(self) -> bytes:
        return bytes(self._out)
