"""Messages that a client sends and reads: our encoder against kio's, and responses that are incomplete or hostile."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import DataObject, binary, data, from_type, register_type_strategy
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_writer
from kio.static.primitive import Records

from stratalog.errors import MalformedResponseError
from stratalog.protocol._wire import parse_request_header
from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.fields import MOST_RESPONSE_ELEMENTS
from stratalog.protocol.frames import encoded_client_id, request_start
from stratalog.protocol.messages import decode_response, encode_request
from tests.protocol.kio_messages import filled_response
from tests.protocol.test_encoding import as_reply
from tests.protocol.test_shape import HOSTILE

_BY_KIO = [
    (key, version)
    for key, versions in VERSIONS.items()
    if key not in (ApiKey.PRODUCE, ApiKey.FETCH)  # these have their own kernels
    for version in range(versions.lowest, versions.highest + 1)
]
register_type_strategy(Records, binary().map(Records))


def without_tags(value: Any) -> Any:
    """Return the value as our decoder reads it, which ignores tagged fields: all of them have their default."""
    changed = {member.name: member.default for member in dataclasses.fields(value) if "tag" in member.metadata}
    for member in dataclasses.fields(value):
        held = getattr(value, member.name)
        if isinstance(held, tuple) and held and dataclasses.is_dataclass(held[0]) and member.name not in changed:
            changed[member.name] = tuple(without_tags(each) for each in held)
    return dataclasses.replace(value, **changed)


@pytest.mark.parametrize(("key", "version"), _BY_KIO, ids=str)
@given(data())
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_a_request_has_the_bytes_that_kio_writes(key: ApiKey, version: int, data: DataObject) -> None:
    schema = load_request_schema(int(key), version)
    entity = data.draw(from_type(schema))
    expected = io.BytesIO()
    entity_writer(schema)(expected, entity)
    assert bytes(encode_request(key, version, as_reply(entity))) == expected.getvalue()


@pytest.mark.parametrize(("key", "version"), _BY_KIO, ids=str)
@given(data())
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_response_is_decoded_completely_and_incomplete_ones_are_refused(
    key: ApiKey, version: int, data: DataObject
) -> None:
    schema = load_response_schema(int(key), version)
    entity = data.draw(from_type(schema))
    written = io.BytesIO()
    entity_writer(schema)(written, entity)
    body = written.getvalue()
    assert decode_response(key, version, memoryview(body)) == without_tags(entity)
    for cut in range(0, len(body), max(len(body) // 20, 1)):
        with pytest.raises(MalformedResponseError, match=f"{key.name} v{version}"):
            decode_response(key, version, memoryview(body)[:cut])


@pytest.mark.parametrize(("key", "version"), _BY_KIO, ids=str)
def test_extreme_numbers_anywhere_in_a_response_are_survived(key: ApiKey, version: int) -> None:
    body = filled_response(key, version)
    decode_response(key, version, memoryview(body))
    for position in range(len(body)):
        for number in HOSTILE:
            try:
                decode_response(key, version, memoryview(body[:position] + number + body[position + len(number) :]))
            except MalformedResponseError:
                pass


def test_response_with_too_many_elements_is_refused() -> None:
    count = MOST_RESPONSE_ELEMENTS + 1
    body = b"\0\0" + count.to_bytes(4, "big") + bytes(6 * count)
    with pytest.raises(MalformedResponseError, match=f"more than {MOST_RESPONSE_ELEMENTS} elements"):
        decode_response(ApiKey.API_VERSIONS, 0, memoryview(body))


@pytest.mark.parametrize(("key", "version"), [*_BY_KIO, (ApiKey.PRODUCE, 8), (ApiKey.PRODUCE, 9)], ids=str)
def test_request_header_is_parsed_as_it_was_written(key: ApiKey, version: int) -> None:
    start = request_start(key, version, 77, encoded_client_id("thé client"), 5)
    frame = start[4:] + b"12345"
    assert int.from_bytes(start[:4], "big") == len(frame)
    number, read_version, correlation_id, client_id, position = parse_request_header(frame)
    assert (number, read_version, correlation_id, client_id) == (key, version, 77, "thé client")
    assert frame[position:] == b"12345"
