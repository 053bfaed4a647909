"""Values written for people: sizes, times, counts, bytes of unknown content, and names that fit a column. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def format_size(count: int) -> str:
    """Return 1.5 KiB for 1536."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{count} {'byte' if count == 1 else unit}" if unit == "bytes" else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes every value")


def format_time(milliseconds: int) -> str:
    """Return ISO 8601 in UTC, or the number itself if it is outside the calendar. -1, no time, is `none`."""
    if milliseconds == -1:
        return "none"
    try:
        moment = EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(milliseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def format_duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def pluralize(count: int, thing: str) -> str:
    """Return 1 batch, 2 batches, 3 entries."""
    if count == 1:
        return f"1 {thing}"
    if thing.endswith("y") and thing[-2] not in "aeou":
        return f"{count:,} {thing[:-1]}ies"
    return f"{count:,} {thing}es" if thing.endswith("ch") else f"{count:,} {thing}s"


def join_first(items: Sequence[str], most: int = 3) -> str:
    """Return a, b, c and 2 more."""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return f"{', '.join(items[:most])}{more}"


def describe_partitions(count: int) -> str:
    """Return the numbers of a topic's partitions in words: only partition 0, the partitions 0 to 2."""
    return "only partition 0" if count == 1 else f"the partitions 0 to {count - 1}"


def is_internal(topic: str) -> bool:
    """True for a topic, or the directory of a partition, that belongs to the brokers themselves."""
    return topic.startswith("__")


def decode_bytes(content: bytes) -> tuple[str, str]:
    """Return the text and its encoding: utf-8 if every character can be printed, otherwise hex."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content.hex(), "hex"
    return (text, "utf-8") if text.isprintable() else (content.hex(), "hex")


def format_bytes(value: bytes | None, limit: int | None = None) -> str:
    """Return "text", 0x00ff or null; at most `limit` characters of a text, or bytes of other content."""
    if value is None:
        return "null"
    text, encoding = decode_bytes(value)
    digits = 1 if encoding == "utf-8" else 2
    is_complete = limit is None or len(text) <= limit * digits
    shown = text if limit is None else text[: limit * digits]
    quoted = f'"{shown}"' if encoding == "utf-8" else f"0x{shown}"
    return quoted if is_complete else f"{quoted}… ({len(value):,} bytes)"


def printable(text: object) -> str:
    """Escape characters that could move a terminal's cursor: the names of files, topics and groups may have them."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(text))


def shorten(text: str, width: int) -> str:
    """Cut a text in the middle, because the ends of a file name say the most."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
