from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.cli import wording
from stratalog.cli.moments import parse_timestamp
from stratalog.cli.program import CommandError


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (2**40, "1.0 TiB"),
        (2**60, "1,048,576.0 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert wording.format_size(count) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_767_225_600_123, "2026-01-01T00:00:00.123Z"),
        (-1, "none"),
        (-2, "1969-12-31T23:59:59.998Z"),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
    ],
)
def test_timestamps_outside_the_calendar_are_numbers(milliseconds: int, text: str) -> None:
    assert wording.format_time(milliseconds) == text


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1767225600123", 1_767_225_600_123),
        ("-1", -1),
        ("2026-01-01T00:00:00.123Z", 1_767_225_600_123),
        ("2026-01-01T01:00:00+01:00", 1_767_225_600_000),
        ("2026-01-01", 1_767_225_600_000),
    ],
)
def test_timestamps_are_read(text: str, milliseconds: int) -> None:
    assert parse_timestamp(text) == milliseconds


@pytest.mark.parametrize("text", ["", "yesterday", "1e3", "2026-13-01", "9" * 30, "\u0663"])
def test_invalid_timestamp_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(CommandError, match="ISO 8601"):
        parse_timestamp(text)


def test_timestamp_round_trip() -> None:
    assert parse_timestamp(wording.format_time(1_700_000_000_001)) == 1_700_000_000_001


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [
        (None, None, "null"),
        (b"", None, '""'),
        (b"plain", None, '"plain"'),
        ("grüße".encode(), 3, '"grü"… (7 bytes)'),
        (b"\x00\xff", None, "0x00ff"),
        (b"\x00\xff\x01", 1, "0x00… (3 bytes)"),
        (b"\x1b[2J", None, "0x1b5b324a"),
        (b"line\nbreak", None, "0x6c696e650a627265616b"),
    ],
)
def test_bytes_are_text_only_if_all_of_them_can_be_printed(value: bytes | None, limit: int | None, text: str) -> None:
    assert wording.format_bytes(value, limit) == text


def test_names_are_cut_in_the_middle_and_can_not_move_the_cursor() -> None:
    assert wording.shorten("abcdefghij", 10) == "abcdefghij"
    assert wording.shorten("abcdefghijk", 7) == "ab…hijk"
    assert wording.printable(Path("a\x1bb\udc80")) == "a\\x1bb\\udc80"


def test_plurals() -> None:
    counted = [
        wording.pluralize(1, "batch"),
        wording.pluralize(2, "batch"),
        wording.pluralize(3, "entry"),
        wording.pluralize(0, "note"),
    ]
    assert counted == ["1 batch", "2 batches", "3 entries", "0 notes"]


def test_durations() -> None:
    assert [wording.format_duration(seconds) for seconds in (5e-6, 0.0123, 2)] == ["5 µs", "12.3 ms", "2.00 s"]


@pytest.mark.parametrize(("count", "text"), [(1, "only partition 0"), (3, "the partitions 0 to 2")])
def test_numbers_of_partitions_in_words(count: int, text: str) -> None:
    assert wording.describe_partitions(count) == text
