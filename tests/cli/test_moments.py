from __future__ import annotations

import pytest

from stratalog.cli.moments import Edge, parse_offset, parse_time
from stratalog.cli.program import CommandError

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("-1h", NOW - 3_600_000),
        ("-90s", NOW - 90_000),
        ("-15m", NOW - 900_000),
        ("-2d", NOW - 2 * 86_400_000),
        ("-1w", NOW - 7 * 86_400_000),
        ("-5ms", NOW - 5),
        ("1699999999999", 1_699_999_999_999),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T22:13:20", NOW),
        ("2023-11-15T00:13:20+02:00", NOW),
    ],
)
def test_valid_times_are_parsed(text: str, expected: int) -> None:
    assert parse_time("--from-time", text, NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "-1y", "1h", "2023-13-01", "1969-12-31T00:00:00Z"])
def test_invalid_times_are_refused_with_examples(text: str) -> None:
    with pytest.raises(CommandError, match=r"--from-time is .*-1h"):
        parse_time("--from-time", text, NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("123", 123), ("-10", -10), ("beginning", Edge.BEGINNING), ("end", Edge.END)],
)
def test_valid_offsets_are_parsed(text: str, expected: object) -> None:
    assert parse_offset("--from-offset", text) == expected


@pytest.mark.parametrize("text", ["", "1.5", "-1h", "start", "12345678901234567890", "\uff11"])
def test_invalid_offsets_are_refused_and_mention_the_option_for_times(text: str) -> None:
    with pytest.raises(CommandError, match=r"--from-offset is .*--from-time"):
        parse_offset("--from-offset", text)
