from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cli.envelopes import Envelope, from_line, to_line
from stratalog.cli.program import CommandError

contents = st.none() | st.binary(max_size=30) | st.text(max_size=30).map(str.encode)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@given(contents, contents, st.lists(st.tuples(names, contents), max_size=3), st.integers(0, 2**63 - 1))
def test_envelope_round_trip_keeps_every_byte(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp: int
) -> None:
    line = to_line("t", 2, 7, timestamp, key, value, headers)
    assert "\n" not in line
    assert line.isascii()
    assert from_line(line, "line 1") == Envelope(key, value, headers, timestamp, 2)


def test_text_stays_readable_and_other_bytes_are_marked() -> None:
    line = json.loads(to_line("t", 0, 0, 0, "grün".encode(), b"\xff\x00", ()))
    assert line["key"] == "grün"
    assert line["value"] == {"base64": "/wA="}


def test_record_without_a_timestamp_gets_the_time_of_sending() -> None:
    assert from_line(to_line("t", 0, 0, -1, None, b"", ()), "line 1").timestamp is None


def test_record_needs_no_field() -> None:
    assert from_line(b"{}", "line 1") == Envelope(None, None, [], None, None)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("tea", "not JSON"),
        ('["tea"]', "not a JSON object"),
        ('{"vlaue": "x"}', "'vlaue'"),
        ('{"value": 7}', "value is 7"),
        ('{"value": {"base64": "!"}}', "value can't be read"),
        ('{"value": {"hex": "00"}}', "value is"),
        ('{"key": "\\ud800"}', "key can't be read"),
        ('{"headers": {"a": "b"}}', "headers is"),
        ('{"headers": [["a"]]}', "headers is"),
        ('{"headers": [["a", 1]]}', "header 'a' is 1"),
        ('{"timestamp": "now"}', "timestamp is 'now'"),
        ('{"timestamp": true}', "timestamp is True"),
        ('{"partition": -1}', "partition is -1"),
        ('{"partition": 9223372036854775808}', "partition is 9223372036854775808"),
    ],
)
def test_invalid_line_is_refused_with_its_number_and_field(line: str, named: str) -> None:
    with pytest.raises(CommandError, match=r"^line 3: ") as refused:
        from_line(line, "line 3")
    assert named in str(refused.value)
