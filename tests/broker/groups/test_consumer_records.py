"""Records of KIP-848 groups: their bytes, from the schemas of Kafka 4.1, and errors for damaged ones."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.groups.consumer_records import (
    ClassicMemberMetadata,
    ConsumerGroupMetadata,
    ConsumerRecord,
    CurrentMember,
    MemberMetadata,
    MemberState,
    PartitionMetadata,
    RecordType,
    RegularExpression,
    TargetMember,
    TargetMetadata,
    Tombstone,
    decode,
    encode,
)
from stratalog.errors import GroupRecordError

TOPIC = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
ID = "00112233445566778899aabbccddeeff"

# Written by hand from the schemas: key, value. Spaces between fields.
GOLDEN: list[tuple[ConsumerRecord, str, str | None]] = [
    (ConsumerGroupMetadata("g", 5), "0003 000167", "0000 00000005 00"),
    (ConsumerGroupMetadata("g", 5, metadata_hash=-2), "0003 000167", "0000 00000005 01 00 08 fffffffffffffffe"),
    (PartitionMetadata("g", ((TOPIC, "a", 3),)), "0004 000167", f"0000 02 {ID} 0261 00000003 01 00 00"),
    (
        MemberMetadata("g", "m", None, "r", "c", "/h", ("a", "b"), "", 300_000, "uniform"),
        "0005 000167 00016d",
        "0000 00 0272 0263 032f68 03 0261 0262 01 000493e0 08756e69666f726d 00",
    ),
    (
        MemberMetadata("g", "m", "i", None, "", "", (), "a.*", -1, None),
        "0005 000167 00016d",
        "0000 0269 00 01 01 01 04612e2a ffffffff 00 00",
    ),
    (  # as Kafka 4.1.2 wrote it
        MemberMetadata(
            "g",
            "m",
            "inst",
            None,
            "c",
            "/h",
            ("a", "b"),
            "",
            1000,
            None,
            ClassicMemberMetadata(6000, (("range", b"\1\2\3"),)),
        ),
        "0005 000167 00016d",
        "0000 05696e7374 00 0263 032f68 03 0261 0262 01 000003e8 00"
        " 01 00 12 01 00001770 02 0672616e6765 04 010203 00 00",
    ),
    (TargetMetadata("g", 7), "0006 000167", "0000 00000007 00"),
    (
        TargetMember("g", "m", {TOPIC: frozenset((2, 0))}),
        "0007 000167 00016d",
        f"0000 02 {ID} 03 00000000 00000002 00 00",
    ),
    (
        CurrentMember(
            "g",
            "m",
            5,
            4,
            MemberState.UNREVOKED_PARTITIONS,
            {TOPIC: frozenset((1,))},
            {TOPIC: frozenset((0,))},
        ),
        "0008 000167 00016d",
        f"0000 00000005 00000004 01 02 {ID} 02 00000001 00 02 {ID} 02 00000000 00 00",
    ),
    (
        CurrentMember("g", "m", -2, 4, MemberState.STABLE, {}, {}),
        "0008 000167 00016d",
        "0000 fffffffe 00000004 00 01 01 00",
    ),
    (
        RegularExpression("g", "a.", ("a", "ab"), 0, 123),
        "0010 000167 0002612e",
        "0000 03 0261 036162 0000000000000000 000000000000007b 00",
    ),
    (Tombstone(RecordType.GROUP_METADATA, "g"), "0003 000167", None),
    (Tombstone(RecordType.CURRENT_MEMBER, "g", "m"), "0008 000167 00016d", None),
    (Tombstone(RecordType.REGULAR_EXPRESSION, "g", "a."), "0010 000167 0002612e", None),
]


@pytest.mark.parametrize(("record", "key", "value"), GOLDEN)
def test_a_record_has_the_bytes_of_its_schema(record: ConsumerRecord, key: str, value: str | None) -> None:
    expected = bytes.fromhex(key), None if value is None else bytes.fromhex(value)
    assert encode(record) == expected
    assert decode(*expected) == record


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        # Kafka 4.2: when the group was created
        (
            "0003 000167",
            "0000 00000005 02 00 08 0000000000000009 01 08 0000000000000001",
            ConsumerGroupMetadata("g", 5, 9),
        ),
        ("0006 000167", "0000 00000007 01 00 08 0000000000000001", TargetMetadata("g", 7)),
        # Kafka 4.2: epochs at which partitions were assigned
        (
            "0008 000167 00016d",
            f"0000 00000005 00000004 00 02 {ID} 02 00000001 01 00 05 0200000005 01 00",
            CurrentMember("g", "m", 5, 4, MemberState.STABLE, {TOPIC: frozenset((1,))}, {}),
        ),
        # racks by partition, of Kafka 4.0
        (
            "0004 000167",
            f"0000 02 {ID} 0261 00000003 02 00000000 02 0272 00 00 00",
            PartitionMetadata("g", ((TOPIC, "a", 3),)),
        ),
    ],
)
def test_fields_of_other_versions_of_kafka_are_skipped(key: str, value: str, expected: ConsumerRecord) -> None:
    assert decode(bytes.fromhex(key), bytes.fromhex(value)) == expected


def test_a_member_state_of_a_later_kafka_is_read_as_unknown() -> None:
    record = decode(bytes.fromhex("0008 000167 00016d"), bytes.fromhex("0000 00000005 00000004 09 01 01 00"))
    assert isinstance(record, CurrentMember)
    assert record.state is MemberState.UNKNOWN


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("0002 000167", None, "has the unknown type 2"),
        ("0009 000167", "0000 00", "has the unknown type 9"),
        ("0003 000167 00", None, "has extra bytes at its end: 1"),
        ("0003 000967", None, "claims a field of 9 bytes"),
        ("0003 000167", "0001 00000005 00", "has version 1"),
        ("0007 000167 00016d", "0000 ffffffff0f", "claims 4294967294 items"),
        ("0007 000167 00016d", f"0000 02 {ID} 0a 00000000", "claims 9 items"),
    ],
)
def test_a_record_that_is_not_valid_is_refused(key: str, value: str | None, problem: str) -> None:
    with pytest.raises(GroupRecordError, match=problem):
        decode(bytes.fromhex(key), None if value is None else bytes.fromhex(value))


def test_an_id_that_does_not_fit_a_key_is_refused() -> None:
    with pytest.raises(GroupRecordError, match="40000 bytes"):
        encode(Tombstone(RecordType.MEMBER_METADATA, "g", "m" * 40_000))


text = st.text(max_size=8)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
assignments = st.dictionaries(st.uuids(), st.frozensets(st.integers(0, 2**31 - 1), min_size=1, max_size=3), max_size=3)
texts = st.lists(text, max_size=3).map(tuple)
records = st.one_of(
    st.builds(ConsumerGroupMetadata, text, int32, int64),
    st.builds(PartitionMetadata, text, st.lists(st.tuples(st.uuids(), text, int32), max_size=2).map(tuple)),
    st.builds(
        MemberMetadata, text, text, st.none() | text, st.none() | text, text, text, texts, st.none() | text, int32, text
    ),
    st.builds(TargetMetadata, text, int32),
    st.builds(TargetMember, text, text, assignments),
    st.builds(CurrentMember, text, text, int32, int32, st.sampled_from(MemberState), assignments, assignments),
    st.builds(RegularExpression, text, text, texts, int64, int64),
    st.builds(Tombstone, st.just(RecordType.TARGET_MEMBER), text, text),
    st.builds(Tombstone, st.just(RecordType.TARGET_METADATA), text),
)


@given(records)
def test_every_record_is_read_back_as_it_was_written(record: ConsumerRecord) -> None:
    assert decode(*encode(record)) == record


@given(records, st.data())
def test_damaged_records_are_refused_or_read_without_other_errors(record: ConsumerRecord, data: st.DataObject) -> None:
    key, value = encode(record)
    damaged = bytearray(value or b"")
    for _ in range(data.draw(st.integers(1, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(key, bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    except GroupRecordError:
        pass
