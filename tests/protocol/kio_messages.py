"""Encodes and decodes messages with kio, which has them from Kafka's own schemas: for comparison with our code.

One dict serves every version: fields that a version lacks are left out, those that the dict lacks get the schema's
default, or zero, nothing, or null.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from struct import Struct
from types import NoneType
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records

from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.error_codes import ErrorCode

SIZE = Struct(">i")
HEADER = Struct(">hhi")
_SHORT = Struct(">h")
_EPOCH = datetime.fromtimestamp(0, UTC)
_ZEROS: Mapping[str, Any] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": Records(b""),
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": _EPOCH,
    "error_code": ErrorCode.none,
}


def build(schema: type[Any], values: Mapping[str, Any]) -> Any:
    """Return kio's dataclass with these values. Durations and points in time may be numbers of milliseconds."""
    return schema(**{member.name: _field(member, values) for member in fields(schema)})


def request_body(key: int, version: int, values: Mapping[str, Any]) -> bytes:
    schema = load_request_schema(int(key), version)
    out = io.BytesIO()
    entity_writer(schema)(out, build(schema, values))
    return out.getvalue()


def filled(key: int, version: int) -> bytes:
    """Return the body of a request with one element in every array, and a value in every field."""
    schema = load_request_schema(int(key), version)
    out = io.BytesIO()
    entity_writer(schema)(out, _filled(schema))
    return out.getvalue()


def filled_response(key: int, version: int) -> bytes:
    """Return the body of a response like that."""
    schema = load_response_schema(int(key), version)
    out = io.BytesIO()
    entity_writer(schema)(out, _filled(schema))
    return out.getvalue()


def request_header(key: int, version: int, *, correlation_id: int = 1, client_id: str | None = "test") -> bytes:
    name = b"" if client_id is None else client_id.encode()
    header = HEADER.pack(key, version, correlation_id) + _SHORT.pack(-1 if client_id is None else len(name)) + name
    return header + b"\0" if _is_flexible(key, version) else header


def request_frame(
    key: int, version: int, values: Mapping[str, Any], *, correlation_id: int = 1, client_id: str | None = "test"
) -> bytes:
    """Return the request with its size, as it is sent."""
    header = request_header(key, version, correlation_id=correlation_id, client_id=client_id)
    return framed(header + request_body(key, version, values))


def framed(payload: bytes) -> bytes:
    return SIZE.pack(len(payload)) + payload


def read_response(key: int, version: int, payload: bytes) -> tuple[int, Any]:
    """Return (correlation id, kio's dataclass) of a response without its size. No bytes may be left over."""
    position = SIZE.size
    if _is_flexible(key, version) and key != ApiKey.API_VERSIONS:
        assert payload[position] == 0, "there are tagged fields in the header"
        position += 1
    response, size = entity_reader(load_response_schema(int(key), version))(payload, position)
    assert position + size == len(payload), f"{len(payload) - position - size} bytes too many"
    return SIZE.unpack_from(payload)[0], response


def _is_flexible(key: int, version: int) -> bool:
    known = VERSIONS.get(key)  # type: ignore[call-overload]
    return known is not None and version >= known.first_flexible


def _field(member: Field[Any], values: Mapping[str, Any]) -> Any:
    nullable = NoneType in get_args(member.type) and get_origin(member.type) is not tuple
    kind = next(each for each in get_args(member.type) if each is not NoneType) if nullable else member.type
    if member.name not in values:
        if member.default is not MISSING:
            return member.default
        if nullable:
            return None
        if get_origin(kind) is tuple:
            return ()
        return build(kind, {}) if is_dataclass(kind) else _ZEROS.get(member.metadata["kafka_type"], 0)  # type: ignore[arg-type]
    value = values[member.name]
    if value is None:
        return None
    if get_origin(kind) is tuple:
        element = get_args(kind)[0]
        return tuple(build(element, each) if is_dataclass(element) else each for each in value)  # type: ignore[arg-type]
    if is_dataclass(kind):
        return build(kind, value)  # type: ignore[arg-type]
    return _scalar(member.metadata["kafka_type"], value)


def _filled(schema: type[Any]) -> Any:
    values: dict[str, Any] = {}
    for member in fields(schema):
        if "tag" in member.metadata:
            continue
        nullable = NoneType in get_args(member.type) and get_origin(member.type) is not tuple
        kind = next(each for each in get_args(member.type) if each is not NoneType) if nullable else member.type
        is_array = get_origin(kind) is tuple
        element = get_args(kind)[0] if is_array else kind
        value = _filled(element) if is_dataclass(element) else _some(member.metadata["kafka_type"])  # type: ignore[arg-type]
        values[member.name] = (value,) if is_array else value
    return schema(**values)


def _some(kind: str) -> Any:
    if kind == "uuid":
        return UUID(int=7)
    return {"string": "some", "bytes": b"some", "bool": True}.get(kind, _ZEROS.get(kind, 3))


def _scalar(kind: str, value: Any) -> Any:
    if kind.startswith("timedelta") and isinstance(value, int):
        return timedelta(milliseconds=value)
    if kind == "datetime_i64" and isinstance(value, int):
        return _EPOCH + timedelta(milliseconds=value)
    if kind == "error_code":
        return ErrorCode(value)
    return Records(value) if kind == "records" else value
