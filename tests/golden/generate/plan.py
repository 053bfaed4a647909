"""The records that the clients send: one plan for all clients, so that only the client differs.

A plan is JSON: topics, each with a codec, a mode and steps; a step's records are sent together and end with a
flush (one batch), a commit or an abort. Keys, values and header values are base64 or null.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_TIMESTAMP = 1_600_000_000_000

Json = dict[str, Any]


@dataclass(frozen=True)
class Topic:
    """A topic of the plan. `name` is the name of the topic and of its directory in tests/golden/; `config` is the
    topic's."""

    name: str
    codec: str = "none"
    mode: str = "plain"  # plain, idempotent or transactional
    steps: Sequence[Json] = ()
    config: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {"topic": self.name, "codec": self.codec, "mode": self.mode, "steps": list(self.steps)}


def encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def record(
    key: bytes | None,
    value: bytes | None,
    timestamp: int,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> Json:
    return {
        "key": encoded(key),
        "value": encoded(value),
        "timestamp": BASE_TIMESTAMP + timestamp,
        "headers": [[name, encoded(content)] for name, content in headers],
    }


def step(records: Sequence[Json], end: str = "flush") -> Json:
    return {"records": list(records), "end": end}


def every_kind_of_record(*, every_null: bool) -> list[Json]:
    """Four batches: null and empty fields; headers, unicode; every byte value, a long run; times that fall.

    `every_null`: also a record with neither key nor value and a null header; pure Python clients refuse them.
    """
    headers: list[tuple[str, bytes | None]] = [
        ("trace", b"1"),
        ("empty", b""),
        ("trace", b"2"),
        ("имя", "значение".encode()),
    ]
    if every_null:
        headers.insert(1, ("null", None))
    return [
        step(
            [
                record(None, b"value only", 0),
                record(b"key", b"value", 1),
                record(b"", b"", 2),
                record(b"key only", None, 3),
                *([record(None, None, 4)] if every_null else []),
            ]
        ),
        step(
            [
                record(b"with headers", b"value", 10, headers),
                record("ключ".encode(), "значение, 値, \N{ROCKET}".encode(), 11, [("a", b"b")]),
                record(None, b"line one\nline two payload: key: ", 12),
            ]
        ),
        step([record(bytes(range(256)), b"0123456789" * 300, 20)]),
        step([record(b"falls", b"from 30", 30), record(b"falls", b"to 5", 5), record(b"falls", b"to 25", 25)]),
    ]


def several_segments() -> list[Json]:
    """Return steps with timestamps ten seconds apart: with segment.ms=5000, each step starts a segment."""
    return [
        step([record(b"k%d" % i, b"segment %d, record %d" % (i, j), i * 10_000 + j) for j in range(8)])
        for i in range(4)
    ]


def idempotent() -> list[Json]:
    return [step([record(b"k", b"batch %d, record %d" % (i, j), i) for j in range(i + 1)]) for i in range(7)]


def commits_and_aborts() -> list[Json]:
    ends = ("commit", "abort", "commit", "abort", "abort", "commit")
    return [
        step([record(b"k%d" % j, b"%s %d" % (end.encode(), i), i * 10 + j) for j in range(2)], end)
        for i, end in enumerate(ends)
    ]


def to_be_compacted() -> list[Json]:
    """Return steps that repeat the keys 0-4, with one tombstone. Each step is a segment; the last one is not
    compacted."""
    steps = []
    for i in range(5):
        records = [record(b"key %d" % j, b"round %d" % i, i * 10_000 + j) for j in range(5) if (i + j) % 3]
        if i == 3:
            records.append(record(b"key 4", None, i * 10_000 + 9))
        steps.append(step([*records, record(b"only in %d" % i, b"kept", i * 10_000 + 9)]))
    return steps
