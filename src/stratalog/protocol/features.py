"""The finalized features in an answer to ApiVersions, which come in a tagged field from version 3 on (KIP-584).

    error i16, [key i16, lowest i16, highest i16, tags], throttle time i32,
    tags: 2: [name, highest level i16, lowest level i16, tags]

Our decoder steps over tagged fields, so this one is read here. Bytes of a shape that is not so have no features: that
they are wrong is said by who decodes the rest.
"""

from __future__ import annotations

from stratalog.errors import MalformedResponseError
from stratalog.protocol.requests import read_varint

_FIRST_WITH_FEATURES = 3
_FINALIZED = 2
_MOST_FEATURES = 1000
_ERROR_BYTES, _KEY_BYTES, _THROTTLE_BYTES, _LEVELS_BYTES = 2, 6, 4, 4


def finalized_features(version: int, body: memoryview) -> dict[str, int]:
    """{name: the level that is in force}"""
    if version < _FIRST_WITH_FEATURES:
        return {}
    try:
        keys, position = read_varint(body, _ERROR_BYTES)
        for _ in range(min(keys - 1, len(body))):
            position, _ = _tags(body, position + _KEY_BYTES)
        _, tags = _tags(body, position + _THROTTLE_BYTES)
        return _features(tags[_FINALIZED]) if _FINALIZED in tags else {}
    except (MalformedResponseError, UnicodeDecodeError):
        return {}


def _features(body: memoryview) -> dict[str, int]:
    found = {}
    count, position = read_varint(body, 0)
    for _ in range(min(count - 1, _MOST_FEATURES)):
        size, position = read_varint(body, position)
        name = str(body[position : position + size - 1], "utf-8")
        position += size - 1
        found[name] = int.from_bytes(body[position : position + 2], "big", signed=True)
        position, _ = _tags(body, position + _LEVELS_BYTES)
    return found


def _tags(body: memoryview, position: int) -> tuple[int, dict[int, memoryview]]:
    """(what follows them, {tag: its bytes})"""
    found = {}
    count, position = read_varint(body, position)
    for _ in range(min(count, len(body))):
        tag, position = read_varint(body, position)
        size, position = read_varint(body, position)
        found[tag] = body[position : position + size]
        position += size
    return position, found
