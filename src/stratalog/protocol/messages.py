"""Decodes and encodes the messages of every API, except the hot parts of Produce and Fetch.

kio decodes incoming messages (requests in the broker, responses in the client) into the dataclass of their version,
after their shape was checked. Outgoing messages are nested dicts with kio's field names. One dict serves all versions:
fields that a version lacks are left out, and missing fields get the schema's default. The encoder of each version is
made once from kio's dataclasses. Creating dataclasses for responses with thousands of partitions would cost more than
all the rest.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.serial.readers import Reader

from stratalog.errors import MalformedRequestError, MalformedResponseError
from stratalog.protocol._shape import check_shape
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.encoding import Encoder, PortionedEncoder, compile_encoder, compile_portioned_encoder
from stratalog.protocol.fields import MOST_ELEMENTS, MOST_RESPONSE_ELEMENTS
from stratalog.protocol.shapes import compile_shape

_MILLISECOND = timedelta(milliseconds=1)


def decode_request(key: ApiKey, version: int, body: memoryview) -> Any:
    """Return kio's dataclass of a request. Raises MalformedRequestError. No field of the result is a view of `body`."""
    shape, reader = _reader(key, version)
    try:
        stripped = check_shape(body, shape, MOST_ELEMENTS)  # kio fails on unknown tagged fields
        request, _ = reader(body.toreadonly() if stripped is None else stripped, 0)  # kio accepts only read-only memory
    except MalformedRequestError as error:
        raise MalformedRequestError(f"{key.name} v{version}: {error}") from error
    except (SerialError, ValueError, OverflowError) as error:
        raise MalformedRequestError(f"{key.name} v{version}: {type(error).__name__}: {error}") from error
    return request


def encode_reply(key: ApiKey, version: int, reply: dict[str, Any]) -> bytearray:
    """Return the body of a response, without its header."""
    out = bytearray()
    _encoder(key, version)(out, reply)
    return out


def encode_reply_in_portions(out: bytearray, key: ApiKey, version: int, reply: dict[str, Any]) -> Iterator[None]:
    """Append the body of a response to `out`, and yield after each element of the response's own arrays."""
    return _portioned_encoder(key, version)(out, reply)


def encode_request(key: ApiKey, version: int, request: dict[str, Any]) -> bytearray:
    """Return the body of a request, without its header."""
    out = bytearray()
    _request_encoder(key, version)(out, request)
    return out


def decode_response(key: ApiKey, version: int, body: memoryview) -> Any:
    """Return kio's dataclass of a response. Raises MalformedResponseError. No field of the result is a view of
    `body`."""
    shape, reader = _response_reader(key, version)
    try:
        stripped = check_shape(body, shape, MOST_RESPONSE_ELEMENTS)
        response, _ = reader(body.toreadonly() if stripped is None else stripped, 0)
    except MalformedRequestError as error:
        raise MalformedResponseError(
            f"the broker's response to {key.name} v{version} can't be read: {error}"
        ) from error
    except (SerialError, ValueError, OverflowError) as error:
        raise MalformedResponseError(
            f"the broker's response to {key.name} v{version} can't be read: {type(error).__name__}: {error}"
        ) from error
    return response


def to_ms(delta: timedelta) -> int:
    """Return a timedelta, as kio represents durations, in milliseconds, as settings and clocks do."""
    return delta // _MILLISECOND


@cache
def _reader(key: ApiKey, version: int) -> tuple[array[int], Reader[Any]]:
    schema = load_request_schema(int(key), version)
    return compile_shape(schema), entity_reader(schema)


@cache
def _encoder(key: ApiKey, version: int) -> Encoder:
    return compile_encoder(load_response_schema(int(key), version))


@cache
def _portioned_encoder(key: ApiKey, version: int) -> PortionedEncoder:
    return compile_portioned_encoder(load_response_schema(int(key), version))


@cache
def _response_reader(key: ApiKey, version: int) -> tuple[array[int], Reader[Any]]:
    schema = load_response_schema(int(key), version)
    return compile_shape(schema), entity_reader(schema)


@cache
def _request_encoder(key: ApiKey, version: int) -> Encoder:
    return compile_encoder(load_request_schema(int(key), version))
