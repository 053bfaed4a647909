"""Hypothesis strategies for records, and a short constructor."""

from __future__ import annotations

from hypothesis import strategies as st

from stratalog.records._records import Record

contents = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=12), st.none() | st.binary(max_size=20)), max_size=4)
timestamps = st.integers(-1, 2**63 - 1)
codecs = st.integers(0, 4)


def record(value: bytes | None = b"value", key: bytes | None = None, offset: int = 0, timestamp: int = 1000) -> Record:
    return Record(offset=offset, timestamp=timestamp, key=key, value=value)


def numbered(count: int, first: int = 0) -> list[Record]:
    """Return records that all differ: some without a key, some without a value, some with headers."""
    return [
        Record(
            offset=offset,
            timestamp=1_600_000_000_000 + offset * 7 % 1000,
            key=None if offset % 5 == 3 else b"key-%d" % offset,
            value=None if offset % 7 == 5 else b"value-%d " % offset * (offset % 11),
            headers=[("name", b"%d" % offset), ("empty", b""), ("null", None)] if offset % 3 == 0 else [],
        )
        for offset in range(first, first + count)
    ]


@st.composite
def record_lists(draw: st.DrawFn, *, with_headers: bool = True, max_size: int = 20) -> list[Record]:
    """Return a strategy of records with consecutive offsets from a random offset on."""
    first = draw(st.integers(0, 2**40))
    count = draw(st.integers(1, max_size))
    return [
        Record(
            offset=first + i,
            timestamp=draw(timestamps),
            key=draw(contents),
            value=draw(contents),
            headers=draw(headers) if with_headers else (),
        )
        for i in range(count)
    ]
