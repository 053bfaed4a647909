"""The frame around a request, and around the answer that a client gets to it."""

from __future__ import annotations

from struct import Struct

from stratalog.errors import MalformedResponseError
from stratalog.protocol.api_keys import VERSIONS, ApiKey, OwnApiKey
from stratalog.protocol.fields import FieldReader

SIZE = Struct(">i")
CORRELATION = Struct(">i")
_HEADER = Struct(">ihhi")
_AFTER_SIZE = _HEADER.size - SIZE.size


def encoded_client_id(client_id: str) -> bytes:
    """As it stands in every request's header: made once a connection."""
    data = client_id.encode()
    return len(data).to_bytes(2, "big") + data


def request_start(
    key: ApiKey | OwnApiKey, version: int, correlation_id: int, client_id: bytes, body_size: int
) -> bytes:
    """What comes before a body of that size; the client id is an encoded_client_id."""
    flexible = _is_flexible(key, version)
    size = _AFTER_SIZE + len(client_id) + flexible + body_size
    start = _HEADER.pack(size, key, version, correlation_id) + client_id
    return start + b"\0" if flexible else start


def has_flexible_answer(key: ApiKey | OwnApiKey, version: int) -> bool:
    """Whether tagged fields follow the correlation id. Not for ApiVersions: its reader may not know of tags yet."""
    return _is_flexible(key, version) and key is not ApiKey.API_VERSIONS


def _is_flexible(key: ApiKey | OwnApiKey, version: int) -> bool:
    return isinstance(key, ApiKey) and version >= VERSIONS[key].first_flexible


def answer_body(frame: memoryview, flexible: bool) -> memoryview:
    """What follows the header of an answer; the frame begins with the correlation id."""
    position = CORRELATION.size
    if not flexible:
        return frame[position:]
    if len(frame) > position and frame[position] == 0:  # no tags, as from every broker so far
        return frame[position + 1 :]
    fields = FieldReader(frame[position:], "a response's header", flexible=True, error=MalformedResponseError)
    fields.tagged_fields()
    return frame[position + fields.position :]
