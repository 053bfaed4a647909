"""The shape of a request is checked before kio creates objects, because kio trusts counts and aborts on large ones."""

from __future__ import annotations

import random
import re
from array import array
from typing import Any

import pytest

from stratalog.errors import MalformedRequestError
from stratalog.protocol._shape import Operation, check_shape
from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.fields import MOST_ELEMENTS, write_varint
from stratalog.protocol.messages import decode_request
from tests.protocol.kio_messages import filled, request_body

_BY_KIO = [
    (key, version)
    for key, versions in VERSIONS.items()
    if key not in (ApiKey.PRODUCE, ApiKey.FETCH)
    for version in range(versions.lowest, versions.highest + 1)
]
HOSTILE = [
    b"\x7f\xff\xff\xff",  # 2^31 - 1
    b"\xff\xff\xff\xff",  # null
    b"\xff\xff\xff\xfe",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",  # a varint: 2^32 - 1
    b"\x80\x80\x80\x80\x08",  # 2^31
    b"\xff\xff\xff\xff\x7f",  # 35 bits
    b"\xff\xff\xff\xff\xff\x01",
    b"\x00",
]


def varint(value: int) -> bytes:
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


def decoded(key: ApiKey, version: int, body: bytes) -> Any:
    return decode_request(key, version, memoryview(body))


@pytest.mark.parametrize(("key", "version"), _BY_KIO, ids=str)
def test_extreme_numbers_anywhere_in_a_request_are_survived(key: ApiKey, version: int) -> None:
    body = filled(key, version)
    decoded(key, version, body)
    refused = 0
    for position in range(len(body)):
        for number in HOSTILE:
            try:
                decoded(key, version, body[:position] + number + body[position + len(number) :])
            except MalformedRequestError:
                refused += 1
    assert refused or len(body) < 6


@pytest.mark.parametrize(
    ("key", "version"), [each for each in _BY_KIO if each[1] >= VERSIONS[each[0]].first_flexible], ids=str
)
def test_unknown_tagged_fields_are_ignored(key: ApiKey, version: int) -> None:
    body = filled(key, version)
    assert body.endswith(b"\0")
    fields = b"\x03\x00\x00\x01\x05hello\xff\xff\xff\xff\x0f\x01!"
    assert decoded(key, version, body[:-1] + fields) == decoded(key, version, body)
    for cut in range(1, len(fields)):
        with pytest.raises(MalformedRequestError):
            decoded(key, version, body[:-1] + fields[:cut])


def test_tagged_fields_of_elements_are_ignored() -> None:
    tagged = b"\x03" + b"\x02a\x01\x07\x03xyz" + b"\x02b\x00" + b"\x01\x00\x00" + b"\x02\x05\x00\x06\x01!"
    request = decoded(ApiKey.METADATA, 9, tagged)
    assert [topic.name for topic in request.topics] == ["a", "b"]
    assert request == decoded(ApiKey.METADATA, 9, b"\x03\x02a\x00\x02b\x00\x01\x00\x00\x00")


@pytest.mark.parametrize("count", [MOST_ELEMENTS + 1, 2_000_000])
def test_too_many_elements_are_refused(count: int) -> None:
    with pytest.raises(MalformedRequestError, match="more than 100000 elements"):
        decoded(ApiKey.METADATA, 9, varint(count + 1) + b"\x01\x00" * count + b"\x01\x00\x00\x00")
    with pytest.raises(MalformedRequestError, match="more than 100000 elements"):
        decoded(ApiKey.METADATA, 9, b"\x01\x01\x00\x00" + varint(count) + b"\x01\x00" * count)


def test_elements_are_counted_over_all_arrays_of_a_request() -> None:
    half = MOST_ELEMENTS // 2
    topic = {"name": "t", "partitions": [{"partition_index": 0}] * half}
    decoded(ApiKey.OFFSET_DELETE, 0, request_body(ApiKey.OFFSET_DELETE, 0, {"group_id": "g", "topics": [topic]}))
    twice = request_body(ApiKey.OFFSET_DELETE, 0, {"group_id": "g", "topics": [topic, topic]})
    with pytest.raises(MalformedRequestError, match="more than 100000 elements"):
        decoded(ApiKey.OFFSET_DELETE, 0, twice)


def test_random_bytes_are_refused_or_read() -> None:
    chance = random.Random(11)
    element = [Operation.STRING, 1, Operation.ARRAY, 0, 2, Operation.FIXED, 3]
    rest = [Operation.NULLABLE, 2, Operation.BYTES, 1, Operation.TAGS, 0]
    shape = array("i", [Operation.COMPACT_ARRAY, 1, len(element), *element, *rest])
    outcomes = set()
    for _ in range(20_000):
        frame = bytes(chance.choice((0, 1, 2, 255, chance.randrange(256))) for _ in range(chance.randrange(24)))
        try:
            check_shape(frame, shape, 3)
        except MalformedRequestError as refusal:
            outcomes.add(re.sub(r"-?\d+", "n", str(refusal)))
        else:
            outcomes.add("read")
    assert outcomes == {
        "read",
        "the field at position n announces n bytes, but n are left",
        "the array at position n announces n elements, but n bytes are left",
        "the length before position n does not fit n bits",
        "the length before position n is negative",
        "there are more than n elements in arrays, counted up to position n",
    }
