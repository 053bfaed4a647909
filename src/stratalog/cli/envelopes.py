"""A record as one line of JSON, and back, byte for byte: `consume --json` writes it, `produce --json` reads it.

    {"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1700000000000, "key": "ada", "value": "tea",
     "headers": [["trace", "1"]]}

Bytes that are UTF-8 are text, other bytes are {"base64": "AP8="}, missing ones are null. No field is required for
sending. Unknown fields are refused.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from stratalog.cli.program import CommandError

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_dump = json.JSONEncoder(ensure_ascii=True, check_circular=False, separators=(", ", ": ")).encode
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # missing in typeshed
_KNOWN = frozenset(_FIELDS)


class Envelope(NamedTuple):
    """A record to send. `timestamp` and `partition` may be missing (None)."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int | None
    partition: int | None


def to_line(
    topic: str,
    partition: int,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> str:
    return _dump(
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": timestamp,
            "key": _encode(key),
            "value": _encode(value),
            "headers": [[name, _encode(content)] for name, content in headers],
        }
    )


def from_line(line: bytes | str, name: str) -> Envelope:
    """Parse a line. `name` names it in errors."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        # The JSON is a single line, so only the column is of interest.
        at = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise CommandError(
            f"{name}: not JSON ({at}); --json takes one object per line, like "
            '{"key": "ada", "value": "tea"}; leave it out for plain lines'
        ) from None
    if not isinstance(fields, dict):
        raise CommandError(f'{name}: not a JSON object; a record is like {{"key": "ada", "value": "tea"}}')
    for field in fields:
        if field not in _FIELDS:
            raise CommandError(f"{name}: field {field!r} is not known; a record has: {', '.join(_FIELDS)}")
    timestamp = _number(fields, "timestamp", -1, name)
    return Envelope(
        _decode(fields.get("key"), "key", name),
        _decode(fields.get("value"), "value", name),
        _headers(fields.get("headers"), name),
        None if timestamp == -1 else timestamp,
        _number(fields, "partition", 0, name),
    )


def columns(lines: Sequence[bytes]) -> dict[str, list[Any]] | None:
    """Parse many lines at once, and skip empty ones. None if a line has headers or is not valid; `from_line` then says
    why."""
    parsed: dict[str, list[Any]] = {"key": [], "value": [], "timestamp": [], "partition": []}
    add_key, add_value, add_timestamp, add_partition = (column.append for column in parsed.values())
    try:
        for line in lines:
            text = line.decode().strip(" \t\r")
            if not text:
                continue
            fields, end = _scan(text, 0)
            if end != len(text) or type(fields) is not dict or not fields.keys() <= _KNOWN or fields.get("headers"):
                return None
            key, value = fields.get("key"), fields.get("value")
            timestamp, partition = fields.get("timestamp"), fields.get("partition")
            add_key(key.encode() if type(key) is str else _decode(key, "key", ""))
            add_value(value.encode() if type(value) is str else _decode(value, "value", ""))
            if type(timestamp) is not int or not 0 <= timestamp < 2**63:
                timestamp = _number(fields, "timestamp", -1, "")
            add_timestamp(None if timestamp == -1 else timestamp)
            if partition is not None and (type(partition) is not int or not 0 <= partition < 2**31):
                return None
            add_partition(partition)
    except (ValueError, StopIteration, RecursionError, CommandError):
        return None
    return parsed


def _encode(content: bytes | None) -> str | dict[str, str] | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _decode(content: Any, field: str, name: str) -> bytes | None:
    if content is None:
        return None
    try:
        if isinstance(content, str):
            return content.encode()
        if isinstance(content, dict) and list(content) == ["base64"] and isinstance(content["base64"], str):
            return base64.b64decode(content["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise CommandError(f"{name}: {field} can't be read: {error}") from None
    raise CommandError(f'{name}: {field} is {content!r}; it must be text, null or {{"base64": "..."}}')


def _headers(headers: Any, name: str) -> list[tuple[str, bytes | None]]:
    if headers is None:
        return []
    is_valid = isinstance(headers, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in headers
    )
    if not is_valid:
        raise CommandError(f'{name}: headers is {headers!r}; it must be a list like [["trace", "1"]]')
    return [(header, _decode(content, f"header {header!r}", name)) for header, content in headers]


def _number(fields: dict[str, Any], field: str, least: int, name: str) -> int | None:
    number = fields.get(field)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 2**63:
        raise CommandError(f"{name}: {field} is {number!r}; it must be a whole number, {least} or more")
    return number
