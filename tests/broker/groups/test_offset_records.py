"""Records of classic groups and offsets. The bytes come from the generated classes of Apache Kafka 4.1.2
(kafka-group-coordinator)."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.groups.offset_records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    group_record,
    group_tombstone,
    key_type,
    offset_record,
    offset_tombstone,
    parse_group,
    parse_key,
    parse_offset,
)
from stratalog.errors import GroupRecordError

AT = 1_700_000_000_000
TOPIC_ID = uuid.UUID(bytes=bytes(range(16)))

#              type  length "g1"  length "orders"      partition 3
OFFSET_KEY = "00010002673100066f726465727300000003"
GROUP_KEY = "000200026731"

# version, offset 42, [leader epoch 7], length and "mé", commit time, [time of expiry]; version 4 has a compact length
# (the length plus one) and ends with the count of its tagged fields: number, length, content
OFFSET_VALUES = {
    0: "0000000000000000002a00036dc3a90000018bcfe56800",
    1: "0001000000000000002a00036dc3a90000018bcfe568000000018bcfee8fc0",
    2: "0002000000000000002a00036dc3a90000018bcfe56800",
    3: "0003000000000000002a0000000700036dc3a90000018bcfe56800",
    4: "0004000000000000002a00000007046dc3a90000018bcfe5680000",
}
OFFSET_WITH_TOPIC_ID = "0004000000000000002a00000007046dc3a90000018bcfe56800010010" + bytes(range(16)).hex()

# type, generation 5, protocol, leader, [time of the state], count of members; a member: id, [instance id], client id,
# host, [rebalance timeout], session timeout, subscription, assignment
_HEAD = "0008636f6e73756d657200000005000572616e676500036d2d31"
_SINCE = "0000018bcfe56800"
_ID, _INSTANCE, _CLIENT = "00036d2d31", "0003692d31", "000163000a2f3132372e302e302e31"
_REBALANCE, _SESSION, _BYTES = "000493e0", "0000afc8", "0000000201020000000103"
GROUP_VALUES = {
    0: "0000" + _HEAD + "00000001" + _ID + _CLIENT + _SESSION + _BYTES,
    1: "0001" + _HEAD + "00000001" + _ID + _CLIENT + _REBALANCE + _SESSION + _BYTES,
    2: "0002" + _HEAD + _SINCE + "00000001" + _ID + _CLIENT + _REBALANCE + _SESSION + _BYTES,
    3: "0003" + _HEAD + _SINCE + "00000001" + _ID + _INSTANCE + _CLIENT + _REBALANCE + _SESSION + _BYTES,
    4: "0004" "09636f6e73756d6572" "00000005" "0672616e6765" "046d2d31" "0000018bcfe56800" "02"
    "046d2d31" "04692d31" "0263" "0b2f3132372e302e302e31" "000493e0" "0000afc8" "030102" "0203" "00" "00",
}  # fmt: skip
EMPTY_GROUP = "0003000000000000ffffffff0000018bcfe5680000000000"


def member(version: int) -> StoredMember:
    return StoredMember(
        "m-1",
        "i-1" if version >= 3 else None,
        "c",
        "/127.0.0.1",
        300_000 if version >= 1 else 45_000,
        45_000,
        b"\1\2",
        b"\3",
    )


def group(version: int) -> StoredGroup:
    return StoredGroup("consumer", 5, "range", "m-1", AT if version >= 2 else None, (member(version),))


def test_offset_keys_are_kafkas() -> None:
    key, value = offset_tombstone("g1", "orders", 3)
    assert (key.hex(), value) == (OFFSET_KEY, None)
    assert parse_key(key) == OffsetKey("g1", "orders", 3)
    assert parse_key(bytes.fromhex("0000" + OFFSET_KEY[4:])) == OffsetKey("g1", "orders", 3), "from before 0.8.2"


def test_group_keys_are_kafkas() -> None:
    key, value = group_tombstone("g1")
    assert (key.hex(), value) == (GROUP_KEY, None)
    assert parse_key(key) == GroupKey("g1")
    assert key_type(key) == 2


@pytest.mark.parametrize("version", OFFSET_VALUES)
def test_offsets_of_every_version_are_read(version: int) -> None:
    expected = CommittedOffset(42, 7 if version >= 3 else -1, "mé", AT, AT + 600_000 if version == 1 else None)
    assert parse_offset(bytes.fromhex(OFFSET_VALUES[version])) == expected


@pytest.mark.parametrize("version", GROUP_VALUES)
def test_groups_of_every_version_are_read(version: int) -> None:
    assert parse_group(bytes.fromhex(GROUP_VALUES[version])) == group(version)


@pytest.mark.parametrize(
    ("committed", "value"),
    [
        (CommittedOffset(42, 7, "mé", AT), OFFSET_VALUES[4]),
        (CommittedOffset(42, 7, "mé", AT, topic_id=TOPIC_ID), OFFSET_WITH_TOPIC_ID),
        (CommittedOffset(42, 7, "mé", AT, AT + 600_000), OFFSET_VALUES[1]),
    ],
)
def test_offsets_are_written_as_kafka_4_1_does(committed: CommittedOffset, value: str) -> None:
    assert offset_record("g1", "orders", 3, committed) == (bytes.fromhex(OFFSET_KEY), bytes.fromhex(value))


def test_groups_are_written_as_kafka_4_1_does() -> None:
    assert group_record("g1", group(3)) == (bytes.fromhex(GROUP_KEY), bytes.fromhex(GROUP_VALUES[3]))
    empty = StoredGroup("", 0, None, None, AT, ())
    assert group_record("g1", empty)[1] == bytes.fromhex(EMPTY_GROUP)
    assert parse_group(bytes.fromhex(EMPTY_GROUP)) == empty


def test_topic_id_is_written_and_read() -> None:
    assert parse_offset(bytes.fromhex(OFFSET_WITH_TOPIC_ID)).topic_id == TOPIC_ID


def test_unknown_tagged_field_is_ignored() -> None:
    value = OFFSET_VALUES[4][:-2] + "010502ffff"
    assert parse_offset(bytes.fromhex(value)) == CommittedOffset(42, 7, "mé", AT)


@pytest.mark.parametrize("value", ["0005" + OFFSET_VALUES[4][4:], "ffff" + OFFSET_VALUES[0][4:]])
def test_offset_of_an_unknown_version_is_refused(value: str) -> None:
    with pytest.raises(GroupRecordError, match=r"committed offset has version (5|-1); versions 0 to 4 are known"):
        parse_offset(bytes.fromhex(value))


def test_group_of_an_unknown_version_is_refused() -> None:
    with pytest.raises(GroupRecordError, match="classic group has version 5; versions 0 to 4 are known"):
        parse_group(bytes.fromhex("0005" + GROUP_VALUES[4][4:]))


def test_key_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(GroupRecordError, match="has type 17"):
        parse_key(bytes.fromhex("0011" + GROUP_KEY[4:]))


def test_string_that_does_not_fit_a_record_is_refused() -> None:
    with pytest.raises(GroupRecordError, match="a string has 32768 bytes; a record can store 32767"):
        group_tombstone("g" * 32_768)


def test_count_of_members_beyond_the_end_of_the_value_is_refused() -> None:
    value = bytes.fromhex("0000" + _HEAD + "7fffffff" + _ID)
    with pytest.raises(GroupRecordError, match="claims 2147483647 items"):
        parse_group(value)


@given(value=st.sampled_from([*OFFSET_VALUES.values(), OFFSET_WITH_TOPIC_ID, *GROUP_VALUES.values()]), data=st.data())
def test_damaged_values_are_refused_or_read_but_never_crash(value: str, data: st.DataObject) -> None:
    damaged = bytearray.fromhex(value)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    for parse in (parse_offset, parse_group, parse_key):
        try:
            parse(cut)
        except GroupRecordError:
            pass


texts = st.text(max_size=20)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(0, 2**63 - 1)


@given(texts, texts, int32s, int64s, int32s, texts, int64s, st.none() | st.uuids())
def test_offsets_are_written_and_read(
    group_id: str, topic: str, partition: int, offset: int, epoch: int, text: str, at: int, topic_id: uuid.UUID | None
) -> None:
    committed = CommittedOffset(offset, epoch, text, at, None, topic_id)
    key, value = offset_record(group_id, topic, partition, committed)
    assert value is not None
    assert parse_key(key) == OffsetKey(group_id, topic, partition)
    assert parse_offset(value) == committed


members = st.builds(
    StoredMember,
    texts,
    st.none() | texts,
    texts,
    texts,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=20),
    st.binary(max_size=20),
)
groups = st.builds(
    StoredGroup,
    texts,
    int32s,
    st.none() | texts,
    st.none() | texts,
    st.none() | int64s,
    st.lists(members, max_size=3).map(tuple),
)


@given(texts, groups)
def test_groups_are_written_and_read(group_id: str, stored: StoredGroup) -> None:
    key, value = group_record(group_id, stored)
    assert value is not None
    assert parse_key(key) == GroupKey(group_id)
    assert parse_group(value) == stored
