"""Subscriptions and assignments are byte for byte what kafka-python writes and reads; garbage is an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.client.groups.assignors import CooperativeStickyAssignor, StickyAssignor
from stratalog.client.groups.member_data import (
    MemberAssignment,
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from stratalog.client.metadata import TopicPartition
from stratalog.errors import MalformedResponseError

PLACES = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))


def test_bytes_are_those_of_kafkas_schemas() -> None:
    """The bytes of ConsumerProtocolSubscription v3 and ConsumerProtocolAssignment."""
    subscription = MemberSubscription(("a", "b"), b"\x09", PLACES, 7, "rack")
    assert encode_subscription(subscription).hex(" ") == (
        "00 03 00 00 00 02 00 01 61 00 01 62 00 00 00 01 09 "
        "00 00 00 02 00 01 61 00 00 00 02 00 00 00 00 00 00 00 02 00 01 62 00 00 00 01 00 00 00 01 "
        "00 00 00 07 00 04 72 61 63 6b"
    )
    assert encode_assignment(MemberAssignment(PLACES)).hex(" ") == (
        "00 01 00 00 00 02 00 01 61 00 00 00 02 00 00 00 00 00 00 00 02 00 01 62 00 00 00 01 00 00 00 01 ff ff ff ff"
    )
    assert StickyAssignor().user_data(PLACES[:1], 5) == bytes.fromhex("00000001 0001 61 00000001 00000000 00000005")
    assert CooperativeStickyAssignor().user_data(PLACES, 5) == bytes.fromhex("00000005")


def test_round_trip() -> None:
    subscription = MemberSubscription(("a", "b"), None, PLACES, 7, None)
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert decode_assignment(encode_assignment(MemberAssignment(PLACES, b"x"))) == MemberAssignment(PLACES, b"x")
    assert decode_assignment(b"") == MemberAssignment()


def test_older_and_newer_versions_are_decoded() -> None:
    version_0 = bytes.fromhex("0000 00000001 0001 61 ffffffff")
    assert decode_subscription(version_0) == MemberSubscription(("a",))
    newer = bytearray(encode_subscription(MemberSubscription(("a",), None, PLACES, 7, "rack")))
    newer[1] = 9
    assert decode_subscription(bytes(newer) + b"more") == MemberSubscription(("a",), None, PLACES, 7, "rack")


@given(st.binary(max_size=60))
def test_garbage_is_an_error_with_its_position(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except MalformedResponseError as error:
            assert "position" in str(error)


def test_counts_beyond_the_bytes_are_refused_before_anything_is_created() -> None:
    with pytest.raises(MalformedResponseError, match="2147483647 items"):
        decode_assignment(bytes.fromhex("0001 7fffffff"))
