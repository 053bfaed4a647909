"""The finalized features in a response to ApiVersions, a tagged field from version 3 on (KIP-584).

    error i16, [key i16, lowest i16, highest i16, tags], throttle time i32,
    tags: 2: [name, highest level i16, lowest level i16, tags]

The general decoder skips tagged fields, so this module reads this one. Malformed bytes have no features; the decoder of
the rest of the response reports them.
"""

from __future__ import annotations

from stratalog.errors import MalformedResponseError
from stratalog.protocol.fields import FieldReader

_FIRST_WITH_FEATURES = 3
_FINALIZED = 2
_MOST_FEATURES = 1000


def finalized_features(version: int, body: memoryview) -> dict[str, int]:
    """Return the level in force of each finalized feature."""
    if version < _FIRST_WITH_FEATURES:
        return {}
    fields = _reader(body)
    try:
        fields.int16()  # the error
        fields.array(lambda: (fields.int16(), fields.int16(), fields.int16(), fields.tagged_fields()))
        fields.int32()  # the throttle time
        tagged = fields.tagged_fields()
        return _features(_reader(tagged[_FINALIZED])) if _FINALIZED in tagged else {}
    except MalformedResponseError:
        return {}


def _features(fields: FieldReader) -> dict[str, int]:
    def feature() -> tuple[str, int]:
        name, highest, _, _ = fields.string(), fields.int16(), fields.int16(), fields.tagged_fields()
        return name, highest

    return dict(fields.array(feature, _MOST_FEATURES))


def _reader(data: bytes | memoryview) -> FieldReader:
    return FieldReader(data, "a response to ApiVersions", flexible=True, error=MalformedResponseError)
