"""Our encoder against kio's own writer, for every response and version that is served."""

from __future__ import annotations

import dataclasses
import io
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import DataObject, binary, data, from_type, register_type_strategy
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_writer
from kio.static.primitive import Records

from stratalog.errors import MalformedRequestError
from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.encoding import EncodingError
from stratalog.protocol.messages import decode_request, encode_reply, encode_reply_in_portions, to_ms

_SERVED = [
    (key, version)
    for key, versions in VERSIONS.items()
    for version in range(max(versions.lowest, 3 if key is ApiKey.PRODUCE else 0), versions.highest + 1)
]
register_type_strategy(Records, binary().map(Records))
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def as_reply(value: Any) -> Any:
    """Return a kio entity as a handler would write it. Tagged fields with their default are left out."""
    if dataclasses.is_dataclass(value):
        return {
            member.name: -1
            if getattr(value, member.name) is None and member.metadata.get("kafka_type") == "datetime_i64"
            else as_reply(getattr(value, member.name))
            for member in dataclasses.fields(value)
            if "tag" not in member.metadata or getattr(value, member.name) != member.default
        }
    if isinstance(value, tuple):
        return [as_reply(each) for each in value]
    if isinstance(value, timedelta):
        return to_ms(value)
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(milliseconds=1)
    return value


@pytest.mark.parametrize(("key", "version"), _SERVED, ids=lambda each: str(each))
@given(data())
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_response_has_the_bytes_that_kio_writes(key: ApiKey, version: int, data: DataObject) -> None:
    schema = load_response_schema(int(key), version)
    entity = data.draw(from_type(schema))
    expected = io.BytesIO()
    entity_writer(schema)(expected, entity)
    assert bytes(encode_reply(key, version, as_reply(entity))) == expected.getvalue()
    in_portions = bytearray()
    for _ in encode_reply_in_portions(in_portions, key, version, as_reply(entity)):
        assert len(in_portions) <= len(expected.getvalue())
    assert bytes(in_portions) == expected.getvalue()


@pytest.mark.parametrize(
    ("key", "version"), [each for each in _SERVED if each[0] is not ApiKey.FETCH], ids=lambda each: str(each)
)  # Fetch is read by _wire, and is the only one with tagged fields, which are left out here
@given(data())
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_request_is_decoded_completely_and_incomplete_ones_are_refused(
    key: ApiKey, version: int, data: DataObject
) -> None:
    schema = load_request_schema(int(key), version)
    entity = data.draw(from_type(schema))
    written = io.BytesIO()
    entity_writer(schema)(written, entity)
    body = written.getvalue()
    assert decode_request(key, version, memoryview(body)) == entity
    for cut in range(0, len(body), max(len(body) // 20, 1)):
        with pytest.raises(MalformedRequestError):
            decode_request(key, version, memoryview(body)[:cut])
    assert decode_request(key, version, memoryview(body + b"more")) == entity  # as Kafka: librdkafka relies on it


def test_the_flexible_versions_are_those_of_the_schemas() -> None:
    for key, version in _SERVED:
        flexible = load_request_schema(int(key), version).__flexible__
        assert flexible == (version >= VERSIONS[key].first_flexible), (key, version)


def test_missing_field_without_a_default_is_named() -> None:
    with pytest.raises(EncodingError, match="group_id"):
        encode_reply(ApiKey.DESCRIBE_GROUPS, 5, {"groups": [{"error_code": 0}]})


def test_forbidden_null_is_named() -> None:
    with pytest.raises(EncodingError, match="name: null"):
        encode_reply(ApiKey.DELETE_TOPICS, 1, {"responses": [{"name": None, "error_code": 0}]})


def test_a_field_that_a_version_lacks_is_left_out() -> None:
    reply = {"responses": [{"name": "t", "topic_id": uuid.UUID(int=7), "error_code": 3, "error_message": "gone"}]}
    assert encode_reply(ApiKey.DELETE_TOPICS, 1, reply) == b"\0\0\0\0\0\0\0\1\0\1t\0\3"
