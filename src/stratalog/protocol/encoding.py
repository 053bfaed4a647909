"""Encoders made from kio's dataclasses: they take a dict by field names, and write the bytes of the entity.

Adjacent fields of fixed size are packed in one step. EncodingError means a bug in a handler, not in a client: null
where the schema does not allow it, or a missing field without a default.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from struct import Struct
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

from stratalog.protocol.fields import INT16, INT32, write_varint

Encoder = Callable[[bytearray, Any], None]
PortionedEncoder = Callable[[bytearray, dict[str, Any]], Iterator[None]]

FIXED_TYPES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
_NO_ID = bytes(16)
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class EncodingError(Exception):
    """A response does not fit its schema."""


class Elements:
    """Array elements that are created while they are written, so that only one exists at a time."""

    def __init__(self, count: int, elements: Iterable[Any]) -> None:
        self._count = count
        self._elements = elements

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(self._elements)


class _Array(NamedTuple):
    """An array that a portioned encoder writes element by element."""

    name: str
    write_count: Encoder
    element: Encoder


@cache
def compile_encoder(entity: type[Any]) -> Encoder:
    steps: list[Encoder] = _steps(entity, _member)
    if len(steps) == 1:
        return steps[0]

    def encode(out: bytearray, values: dict[str, Any]) -> None:
        for step in steps:
            step(out, values)

    return encode


@cache
def compile_portioned_encoder(entity: type[Any]) -> PortionedEncoder:
    """Return an encoder that yields after each element of the entity's own arrays. It writes the same bytes as the
    encoder of compile_encoder, and accepts Elements as an array."""
    steps: list[Any] = _steps(entity, _member_in_portions)

    def encode(out: bytearray, values: dict[str, Any]) -> Iterator[None]:
        for step in steps:
            if not isinstance(step, _Array):
                step(out, values)
                continue
            elements = values[step.name]
            step.write_count(out, elements)
            for element in elements or ():
                step.element(out, element)
                yield

    return encode


def _steps(entity: type[Any], encode_member: Callable[[Field[Any], bool], Any]) -> list[Any]:
    flexible: bool = entity.__flexible__
    steps: list[Any] = []
    run: list[Field[Any]] = []
    tagged: list[tuple[int, Field[Any]]] = []
    for member in fields(entity):
        if "tag" in member.metadata:
            tagged.append((member.metadata["tag"], member))
        elif _is_fixed(member):
            run.append(member)
        else:
            if run:
                steps.append(_packer(run))
                run = []
            steps.append(encode_member(member, flexible))
    if run:
        steps.append(_packer(run))
    if flexible:
        steps.append(_tags(sorted(tagged, key=lambda entry: entry[0]), flexible))
    return steps


def _member_in_portions(member: Field[Any], flexible: bool) -> Encoder | _Array:
    inner = inner_type(member.type)
    if get_origin(inner) is not tuple:
        return _member(member, flexible)
    write_count = _element_count(flexible, is_nullable(member))
    return _Array(member.name, write_count, _element(get_args(inner)[0], member, flexible))


def _is_fixed(member: Field[Any]) -> bool:
    kind = member.metadata.get("kafka_type")
    return kind in FIXED_TYPES and get_origin(inner_type(member.type)) is not tuple


def _packer(members: list[Field[Any]]) -> Encoder:
    packed = Struct(">" + "".join(FIXED_TYPES[member.metadata["kafka_type"]] for member in members))
    defaults = [(member.name, _default(member)) for member in members]
    names = ", ".join(member.name for member in members)

    def encode(out: bytearray, values: dict[str, Any]) -> None:
        try:
            out += packed.pack(*[values.get(name, default) for name, default in defaults])
        except struct.error as error:
            current = {name: values.get(name, default) for name, default in defaults}
            raise EncodingError(f"{names}: {error}; the values are {current}") from error

    return encode


def _default(member: Field[Any]) -> Any:
    """Return a field's default as the wire has it, or MISSING, which packing rejects, if the schema has none."""
    default = member.default
    if default is MISSING and member.name in ("throttle_time", "error_code"):
        return 0  # in nearly every response these have nothing to report
    if isinstance(default, timedelta):
        return default // _MILLISECOND
    if isinstance(default, datetime):
        return (default - _EPOCH) // _MILLISECOND
    if default is None and member.metadata.get("kafka_type") == "datetime_i64":
        return -1
    return default


def _member(member: Field[Any], flexible: bool) -> Encoder:
    name = member.name
    default = _default(member)
    if default is MISSING and is_nullable(member):
        default = None
    write = _value(member, flexible)

    def encode(out: bytearray, values: dict[str, Any]) -> None:
        value = values.get(name, default)
        if value is MISSING:
            raise EncodingError(f"{name} is missing, and its schema has no default")
        try:
            write(out, value)
        except (AttributeError, TypeError, struct.error, EncodingError) as error:
            raise EncodingError(f"{name}: {error}; the value is {value!r:.100}") from error

    return encode


def _value(member: Field[Any], flexible: bool) -> Encoder:
    """Return the encoder of the field's value."""
    nullable = is_nullable(member)
    inner = inner_type(member.type)
    if get_origin(inner) is tuple:
        return _array(_element(get_args(inner)[0], member, flexible), flexible, nullable)
    if is_dataclass(inner):
        entity = compile_encoder(inner)  # type: ignore[arg-type]
        return _nullable_entity(entity) if nullable else entity
    return _scalar(member.metadata["kafka_type"], flexible, nullable)


def _element(kind: Any, member: Field[Any], flexible: bool) -> Encoder:
    if is_dataclass(kind):
        return compile_encoder(kind)  # type: ignore[arg-type]
    return _scalar(member.metadata["kafka_type"], flexible, nullable=False)


def _scalar(kind: str, flexible: bool, nullable: bool) -> Encoder:
    if kind in FIXED_TYPES:
        packed = Struct(">" + FIXED_TYPES[kind])
        return lambda out, value: out.extend(packed.pack(value))
    if kind == "uuid":
        return _uuid
    if kind == "string":
        return _string(flexible, nullable)
    if kind in ("bytes", "records"):
        return _bytes(flexible, nullable)
    raise EncodingError(f"there is no encoder for fields of type {kind}")


def _uuid(out: bytearray, value: uuid.UUID | None) -> None:
    out += _NO_ID if value is None else value.bytes


def _string(flexible: bool, nullable: bool) -> Encoder:
    def compact(out: bytearray, value: str | None) -> None:
        if value is None:
            if not nullable:
                raise EncodingError("null is not allowed")
            out.append(0)
            return
        data = value.encode()
        write_varint(out, len(data) + 1)
        out += data

    def plain(out: bytearray, value: str | None) -> None:
        if value is None:
            if not nullable:
                raise EncodingError("null is not allowed")
            out += b"\xff\xff"
            return
        data = value.encode()
        out += INT16.pack(len(data))
        out += data

    return compact if flexible else plain


def _bytes(flexible: bool, nullable: bool) -> Encoder:
    def compact(out: bytearray, value: bytes | None) -> None:
        if value is None:
            if not nullable:
                raise EncodingError("null is not allowed")
            out.append(0)
            return
        write_varint(out, len(value) + 1)
        out += value

    def plain(out: bytearray, value: bytes | None) -> None:
        if value is None and not nullable:
            raise EncodingError("null is not allowed")
        out += INT32.pack(-1 if value is None else len(value))
        out += value or b""

    return compact if flexible else plain


def _array(element: Encoder, flexible: bool, nullable: bool) -> Encoder:
    write_count = _element_count(flexible, nullable)

    def write(out: bytearray, values: Iterable[Any] | None) -> None:
        items = None if values is None else tuple(values)
        write_count(out, items)
        for item in items or ():
            element(out, item)

    return write


def _element_count(flexible: bool, nullable: bool) -> Encoder:
    def write(out: bytearray, items: Sized | None) -> None:
        if items is None and not nullable:
            raise EncodingError("null is not allowed")
        if flexible:
            write_varint(out, 0 if items is None else len(items) + 1)
        else:
            out += INT32.pack(-1 if items is None else len(items))

    return write


def _nullable_entity(entity: Encoder) -> Encoder:
    """Return the encoder of a nullable structure, which a byte marks as null or not (KIP-893)."""

    def write(out: bytearray, value: dict[str, Any] | None) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            entity(out, value)

    return write


def _tags(tagged: list[tuple[int, Field[Any]]], flexible: bool) -> Encoder:
    """Return the encoder of tagged fields. It writes those that the dict has; a missing field has its default."""
    writers = [(tag, member.name, _value(member, flexible)) for tag, member in tagged]
    if not writers:
        return lambda out, _: out.append(0)

    def write(out: bytearray, values: dict[str, Any]) -> None:
        present = [(tag, values[name], encode) for tag, name, encode in writers if name in values]
        write_varint(out, len(present))
        for tag, value, encode in present:
            field = bytearray()
            encode(field, value)
            write_varint(out, tag)
            write_varint(out, len(field))
            out += field

    return write


def is_nullable(member: Field[Any]) -> bool:
    return NoneType in get_args(member.type) and get_origin(member.type) is not tuple


def inner_type(kind: Any) -> Any:
    """Return the type without `| None`."""
    if get_origin(kind) is not tuple and NoneType in get_args(kind):
        return next(each for each in get_args(kind) if each is not NoneType)
    return kind
