"""format.py and format.pxd have the same numbers, and the kernels read the bytes at those positions."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import CorruptBatchError
from stratalog.records import builder, format, legacy
from stratalog.records._framing import parse_header

FIELDS = [
    ("base_offset", format.BASE_OFFSET_POSITION, ">q", 0x0102030405060708),
    ("size", format.BATCH_LENGTH_POSITION, ">i", 0x11223344),
    ("leader_epoch", format.LEADER_EPOCH_POSITION, ">i", 0x21222324),
    ("crc", format.CRC_POSITION, ">I", 0xF1F2F3F4),
    ("attributes", format.ATTRIBUTES_POSITION, ">h", 0x0102),
    ("last_offset_delta", format.LAST_OFFSET_DELTA_POSITION, ">i", 0x31323334),
    ("base_timestamp", format.BASE_TIMESTAMP_POSITION, ">q", 0x4142434445464748),
    ("max_timestamp", format.MAX_TIMESTAMP_POSITION, ">q", 0x5152535455565758),
    ("producer_id", format.PRODUCER_ID_POSITION, ">q", 0x6162636465666768),
    ("producer_epoch", format.PRODUCER_EPOCH_POSITION, ">h", 0x7172),
    ("base_sequence", format.BASE_SEQUENCE_POSITION, ">i", 0x12131415),
    ("record_count", format.RECORD_COUNT_POSITION, ">i", 0x22232425),
]


_NUMBER = re.compile(r"^    (\w+) = (\w+)", re.MULTILINE)


def numbers_of_the_kernels() -> dict[str, int]:
    declarations = Path(format.__file__).with_suffix(".pxd").read_text()
    return {name: int(value, 0) for name, value in _NUMBER.findall(declarations)}


def test_kernels_have_the_numbers_of_format() -> None:
    of_enums = {"CODEC_ZSTD": max(format.Codec), "CONTROL_TYPE_ABORT": format.ControlType.ABORT}
    expected = {
        name: of_enums[name] if name in of_enums else getattr(format, name) for name in numbers_of_the_kernels()
    }
    assert numbers_of_the_kernels() == expected
    positions = {name for name in vars(format) if name.endswith(("_POSITION", "_BIT", "_MASK", "_MINIMUM"))}
    assert positions <= expected.keys(), "a number of the format that kernels might write by hand"


def header_bytes() -> bytearray:
    data = bytearray(format.HEADER_SIZE)
    data[format.MAGIC_POSITION] = format.CURRENT_MAGIC
    for _, position, layout, value in FIELDS:
        struct.pack_into(layout, data, position, value)
    return data


@pytest.mark.parametrize(("field", "position", "layout", "value"), FIELDS)
def test_kernel_reads_each_field_at_its_position(field: str, position: int, layout: str, value: int) -> None:
    header = parse_header(header_bytes())
    assert header is not None
    overhead = format.LOG_OVERHEAD if field == "size" else 0
    assert getattr(header, field) == value + overhead


def test_fields_fill_the_header_without_a_gap() -> None:
    ends = {position + struct.calcsize(layout) for _, position, layout, _ in FIELDS}
    starts = {position for _, position, _, _ in FIELDS} | {format.MAGIC_POSITION}
    assert ends | {format.MAGIC_POSITION + 1} == (starts - {0}) | {format.HEADER_SIZE}
    assert builder.BATCH_HEADER.size == format.HEADER_SIZE
    assert legacy.MESSAGE_V0.size == format.LEGACY_V0_HEADER_SIZE
    assert legacy.MESSAGE_V1.size == format.LEGACY_V1_HEADER_SIZE


def test_kernel_needs_a_complete_header() -> None:
    data = header_bytes()
    assert parse_header(data[:-1]) is None
    struct.pack_into(">i", data, format.BATCH_LENGTH_POSITION, format.HEADER_SIZE - format.LOG_OVERHEAD - 1)
    with pytest.raises(CorruptBatchError, match="less than a batch header"):
        parse_header(data)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (format.TIMESTAMP_TYPE_BIT, {"timestamp_type": 1}),
        (format.TRANSACTIONAL_BIT, {"is_transactional": True}),
        (format.CONTROL_BIT, {"is_control": True}),
        (format.DELETE_HORIZON_BIT, {"has_delete_horizon": True}),
        (format.Codec.ZSTD, {"codec": format.Codec.ZSTD}),
        (format.CODEC_MASK, {"codec": 7}),
    ],
)
def test_kernel_reads_each_attribute_bit_of_format(attributes: int, expected: dict[str, Any]) -> None:
    data = header_bytes()
    struct.pack_into(">h", data, format.ATTRIBUTES_POSITION, attributes)
    header = parse_header(data)
    assert header is not None
    unset = {
        "codec": 0,
        "timestamp_type": 0,
        "is_transactional": False,
        "is_control": False,
        "has_delete_horizon": False,
    }
    assert {name: getattr(header, name) for name in unset} == unset | expected
