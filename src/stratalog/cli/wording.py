"""How values are written for people: sizes, times, bytes of unknown content, and names that fit a column."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from stratalog.cli.program import CommandError, printable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size(count: int) -> str:
    """1536 -> 1.5 KiB"""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{count} {'byte' if count == 1 else unit}" if unit == "bytes" else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes all")


def timestamp(milliseconds: int) -> str:
    """ISO 8601 in UTC; the bare number where no calendar has it."""
    if milliseconds == -1:
        return "none"
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(milliseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def parse_timestamp(text: str) -> int:
    """Milliseconds, or ISO 8601; without an offset UTC is meant."""
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
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def plural(count: int, thing: str) -> str:
    """1 batch, 2 batches, 3 entries"""
    if count == 1:
        return f"1 {thing}"
    if thing.endswith("y") and thing[-2] not in "aeou":
        return f"{count:,} {thing[:-1]}ies"
    return f"{count:,} {thing}es" if thing.endswith("ch") else f"{count:,} {thing}s"


def listed(items: Sequence[str], most: int = 3) -> str:
    """a, b, c and 2 more"""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return f"{', '.join(items[:most])}{more}"


def partitions_of(count: int) -> str:
    """Which numbers there are: only partition 0, the partitions 0 to 2"""
    return "only partition 0" if count == 1 else f"the partitions 0 to {count - 1}"


def is_internal(topic: str) -> bool:
    """A topic, or a partition's directory, that brokers keep for themselves."""
    return topic.startswith("__")


def encoded(content: bytes) -> tuple[str, str]:
    """The text and its encoding: utf-8 where every character can be printed, else hex."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content.hex(), "hex"
    return (text, "utf-8") if text.isprintable() else (content.hex(), "hex")


def content(value: bytes | None, limit: int | None = None) -> str:
    """For people: "text", 0x00ff, null; of a long one `limit` characters or bytes."""
    if value is None:
        return "null"
    text, encoding = encoded(value)
    digits = 1 if encoding == "utf-8" else 2
    is_whole = limit is None or len(text) <= limit * digits
    shown = text if limit is None else text[: limit * digits]
    quoted = f'"{shown}"' if encoding == "utf-8" else f"0x{shown}"
    return quoted if is_whole else f"{quoted}… ({len(value):,} bytes)"


def name(path: Path | str) -> str:
    """A path that can't move a terminal's cursor: names of files may hold anything."""
    return printable(str(path))


def fitted(text: str, width: int) -> str:
    """Cut in the middle: the ends of a file's name tell most."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
