"""Fetched records -> Arrow: one record batch for everything that a poll takes, without an object for each record.

Keys and values are copied once, if possible into memory that the previous table has released: its pages are allocated,
and may still be in the processor's caches.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pyarrow as pa

from stratalog.client._consumer_records import FetchedRecords
from stratalog.client.metadata import TopicPartition
from stratalog.records import arrow
from stratalog.records._column_decoder import ColumnDecoder

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string())),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(arrow.HEADER)),
    ]
)
_DECODED = [(arrow.SCHEMA.field(name), arrow.BITS[name]) for name in SCHEMA.names if name in arrow.BITS]
_BITS = sum(bit for _, bit in _DECODED)
_LARGE = 64 * 1024 * 1024  # decompressed bytes of keys and values after which a new record batch begins


class ArrowColumns:
    """Creates tables: call `start`, `add` any number of times, `table`. Repeated values are kept for later tables."""

    def __init__(self) -> None:
        self._topics: dict[str, pa.Array] = {}
        self._repeated: dict[int, pa.Buffer] = {}
        self.start()

    def start(self) -> None:
        self.rows = 0
        self._decoder: ColumnDecoder | None = None
        self._parts: list[tuple[TopicPartition, int]] = []  # partitions and row counts of the rows in the decoder
        self._batches: list[pa.RecordBatch] = []

    def add(self, fetched: FetchedRecords, most: int, expected: int) -> int:
        """Add the next rows, at most `most`, and return their number. An error after some rows is raised by the next
        call. `expected` is the size of the whole table in bytes."""
        decoder = self._decoder
        if decoder is None:
            content = max(fetched.size, expected)
            rows = min(fetched.record_count * content // max(fetched.size, 1), most)
            decoder = self._decoder = ColumnDecoder(_BITS, rows, content)
        rows = fetched.take_columns(decoder, most)
        if rows:
            self.rows += rows
            self._parts.append((fetched.partition, rows))
            if decoder.content >= _LARGE:
                self._finish()
        return rows

    def table(self) -> pa.Table:
        if self._parts:
            self._finish()
        return pa.Table.from_batches(self._batches, schema=SCHEMA)

    def _finish(self) -> None:
        assert self._decoder is not None
        parts, rows = self._parts, self._decoder.rows
        buffers = self._decoder.finish()
        self._decoder, self._parts = None, []
        columns = [arrow.array_of(field, buffers[bit], rows) for field, bit in _DECODED]
        repeated = {"topic": self._topic(parts, rows), "partition": self._partition(parts, rows)}
        columns = [repeated[name] if name in repeated else columns.pop(0) for name in SCHEMA.names]
        self._batches.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))

    def _topic(self, parts: Sequence[tuple[TopicPartition, int]], rows: int) -> pa.Array:
        topics = list(dict.fromkeys(partition.topic for partition, _ in parts))
        if len(topics) == 1:
            names = self._topics.get(topics[0])
            if names is None:
                names = self._topics[topics[0]] = pa.array(topics, pa.string())
        else:
            names = pa.array(topics, pa.string())
        indexes = self._numbers([(topics.index(partition.topic), count) for partition, count in parts], rows)
        return pa.DictionaryArray.from_arrays(indexes, names, safe=False)

    def _partition(self, parts: Sequence[tuple[TopicPartition, int]], rows: int) -> pa.Array:
        return self._numbers([(partition.partition, count) for partition, count in parts], rows)

    def _numbers(self, runs: Sequence[tuple[int, int]], rows: int) -> pa.Array:
        """Return an int32 array of runs, each a number and how often it repeats."""
        if len({number for number, _ in runs}) == 1:
            buffer = self._same(runs[0][0], rows)
        else:
            buffer = pa.py_buffer(
                b"".join(memoryview(self._same(number, count))[: count * 4] for number, count in runs)
            )
        return pa.Array.from_buffers(pa.int32(), rows, [None, buffer], 0)

    def _same(self, number: int, rows: int) -> pa.Buffer:
        """Return a buffer that repeats the number at least `rows` times."""
        kept = self._repeated.get(number)
        if kept is None or kept.size < rows * 4:
            kept = self._repeated[number] = pa.py_buffer(array("i", [number]) * max(1024, rows * 2))
        return kept
