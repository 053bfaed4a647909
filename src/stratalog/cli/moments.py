"""Offsets and times as people write them: an offset, the beginning, the end, a time, or a duration before now. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import Enum

from stratalog.cli.program import CommandError
from stratalog.cli.wording import EPOCH

_AGO = re.compile(r"-([0-9]{1,12})(ms|s|m|h|d|w)")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_OFFSET = re.compile(r"-?[0-9]{1,19}")


class Edge(Enum):
    """An end of a partition."""

    BEGINNING = "beginning"
    END = "end"


def parse_timestamp(text: str) -> int:
    """Return milliseconds since 1970, from such a number or from ISO 8601, which is in UTC unless it has an offset."""
    if text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(
            f"timestamp is {text!r}; give milliseconds since 1970 or ISO 8601, like 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(milliseconds=1)


def parse_time(option: str, text: str, now_ms: int) -> int:
    """Return milliseconds since 1970, from such a number, ISO 8601, `now`, or a duration before now like -1h."""
    if text == "now":
        return now_ms
    ago = _AGO.fullmatch(text)
    if ago:
        return now_ms - int(ago[1]) * _UNITS_MS[ago[2]]
    try:
        timestamp = parse_timestamp(text)
    except CommandError:
        timestamp = -1
    if timestamp < 0:
        raise CommandError(
            f"{option} is {text!r}; give a time like 2026-01-31T12:00:00Z (UTC unless it has an offset), a duration "
            "before now like -90s, -15m, -1h or -7d, or milliseconds since 1970"
        )
    return timestamp


def parse_offset(option: str, text: str) -> int | Edge:
    """Return an offset or an Edge. A negative offset counts back from the log end offset."""
    if text in (Edge.BEGINNING.value, Edge.END.value):
        return Edge(text)
    if not _OFFSET.fullmatch(text):
        raise CommandError(
            f"{option} is {text!r}; give an offset, -10 for ten before the end, beginning, or end"
            + (f"; times are for {option.replace('offset', 'time')}" if "offset" in option else "")
        )
    return int(text)
