"""The frames around requests and responses: the size, then a header, then the body.

    request:  size i32, API key i16, version i16, correlation id i32, client id, if flexible: tagged fields
    response: size i32, correlation id i32, if flexible: tagged fields

Every response to ApiVersions has a header without tagged fields, since its reader may not know them yet.
"""

from __future__ import annotations

from struct import Struct

from stratalog.errors import MalformedResponseError
from stratalog.protocol.api_keys import VERSIONS, ApiKey, OwnApiKey
from stratalog.protocol.fields import FieldReader, FieldWriter

SIZE = Struct(">i")
CORRELATION = Struct(">i")
_REQUEST_HEADER = Struct(">ihhi")
_AFTER_SIZE = _REQUEST_HEADER.size - SIZE.size
_RESPONSE_HEADER = Struct(">ii")


def encoded_client_id(client_id: str) -> bytes:
    """Return the client id as the headers of all requests have it. A connection encodes it once."""
    return FieldWriter().string(client_id).done()


def request_start(
    key: ApiKey | OwnApiKey, version: int, correlation_id: int, client_id: bytes, body_size: int
) -> bytes:
    """Return the bytes before a request's body of this size. `client_id` is an encoded_client_id."""
    flexible = _is_flexible(key, version)
    size = _AFTER_SIZE + len(client_id) + flexible + body_size
    start = _REQUEST_HEADER.pack(size, key, version, correlation_id) + client_id
    return start + b"\0" if flexible else start


def has_flexible_response(key: ApiKey | OwnApiKey, version: int) -> bool:
    """Return whether the header of the response has tagged fields."""
    return _is_flexible(key, version) and key is not ApiKey.API_VERSIONS


def _is_flexible(key: ApiKey | OwnApiKey, version: int) -> bool:
    return isinstance(key, ApiKey) and version >= VERSIONS[key].first_flexible


def response_start(correlation_id: int, body_size: int, *, flexible: bool) -> bytes:
    """Return the bytes before a response's body of this size."""
    start = _RESPONSE_HEADER.pack(CORRELATION.size + flexible + body_size, correlation_id)
    return start + b"\0" if flexible else start


def frame_response(correlation_id: int, body: bytes | bytearray, *, flexible: bool) -> bytes:
    """Return the complete frame of a response whose body is in one piece."""
    return response_start(correlation_id, len(body), flexible=flexible) + body


def response_body(frame: memoryview, flexible: bool) -> memoryview:
    """Return the body of a response. The frame begins with the correlation id, without the size."""
    position = CORRELATION.size
    if not flexible:
        return frame[position:]
    if len(frame) > position and frame[position] == 0:  # no tags, as from every broker so far
        return frame[position + 1 :]
    fields = FieldReader(frame[position:], "a response's header", flexible=True, error=MalformedResponseError)
    fields.tagged_fields()
    return frame[position + fields.position :]
