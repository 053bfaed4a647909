"""Decodes batches of one partition into Arrow batches with exactly the types that Spark expects. Does no I/O.

Only requested columns are decoded. Records outside [start, end), records that the predicate excludes, control batches
and aborted transactions never become rows. Rows are collected over any number of `decode` calls until an Arrow batch is
full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from stratalog.errors import CorruptBatchError, StratalogError
from stratalog.records import _column_decoder
from stratalog.records._scan_decoder import ScanDecoder
from stratalog.spark import schema
from stratalog.spark.predicate import EVERYTHING, Predicate
from stratalog.spark.scan_request import READ_COMMITTED, READ_UNCOMMITTED

if TYPE_CHECKING:
    from typing_extensions import Buffer

ROWS_PER_BATCH = 100_000
BYTES_PER_BATCH = 16 * 1024 * 1024
DEFAULT_MAX_DECOMPRESSED = 256 * 1024 * 1024
LAST_OFFSET = 2**63 - 1

_BITS = {
    schema.KEY: _column_decoder.KEY,
    schema.VALUE: _column_decoder.VALUE,
    schema.OFFSET: _column_decoder.OFFSET,
    schema.TIMESTAMP: _column_decoder.TIMESTAMP,
    schema.TIMESTAMP_TYPE: _column_decoder.TIMESTAMP_TYPE,
    schema.HEADERS: _column_decoder.HEADERS,
}


class Aborted(NamedTuple):
    """An aborted transaction, whose records are skipped. Fetch responses do not contain its last offset; it ends at its
    marker."""

    producer_id: int
    first_offset: int
    last_offset: int = LAST_OFFSET


class Decoder:
    """Decodes `columns`, by Spark's names and in that order. `decode` yields full Arrow batches, `finish` the rest."""

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Sequence[str],
        predicate: Predicate = EVERYTHING,
        start: int = 0,
        end: int = LAST_OFFSET,
        isolation: str = READ_UNCOMMITTED,
        *,
        rows_per_batch: int = ROWS_PER_BATCH,
        bytes_per_batch: int = BYTES_PER_BATCH,
        max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
    ) -> None:
        self.schema = _schema(columns)
        self._partition = f"{topic}-{partition}"
        if isolation not in (READ_UNCOMMITTED, READ_COMMITTED):
            raise ValueError(f"isolation is {isolation!r}; it must be {READ_UNCOMMITTED} or {READ_COMMITTED}")
        can_match = predicate.selects_partition(topic, partition) and not predicate.is_nothing
        first, stop = predicate.clamp(start, end) if can_match else (start, start)
        self._end = end
        self._kernel = ScanDecoder(
            sum(_BITS.get(name, 0) for name in self.schema.names),
            start=first,
            end=stop,
            from_timestamp=predicate.from_timestamp,
            until_timestamp=predicate.until_timestamp,
            keys=predicate.keys,
            read_committed=isolation == READ_COMMITTED,
            most_rows=rows_per_batch,
            most_bytes=bytes_per_batch,
            max_decompressed=max_decompressed,
        )
        self._constants = {schema.TOPIC: (topic, pa.string()), schema.PARTITION: (partition, pa.int32())}
        self._repeated: dict[str, pa.Array] = {}

    @property
    def next_offset(self) -> int:
        """The offset to continue at: after the last decoded batch, or of the first record that can match."""
        return self._end if self.is_done else self._kernel.next_offset

    @property
    def is_done(self) -> bool:
        """True if no later record can match."""
        return self._kernel.is_done

    @property
    def position(self) -> int:
        """The number of bytes that the last `decode` used. The rest is an incomplete batch, or can't match."""
        return self._kernel.position

    @property
    def last_fed(self) -> int:
        """The last offset of the previous batch in the bytes of `decode`, or -1."""
        return self._kernel.last_fed

    @property
    def at_offset(self) -> int:
        """The base offset of the current batch."""
        return self._kernel.at_offset

    def decode(
        self, data: Buffer, aborted: Iterable[Aborted | tuple[int, int]] = (), *, continues: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Decode complete batches; an incomplete one at the end is ignored. `aborted` are the transactions that the
        fetch response or the .txnindex lists for these bytes; they apply to this call only. `continues` means that the
        bytes follow those of the previous call in the same file.

        Exhaust the iterator before the next call. Raises CorruptBatchError, with topic, partition and offset.
        """
        kernel = self._kernel
        kernel.feed(data, [Aborted(*each) for each in aborted], continues)
        try:
            while self._run():
                yield self._record_batch()
        finally:
            kernel.release()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows, in at most one batch."""
        if self._kernel.rows:
            yield self._record_batch()

    def _run(self) -> bool:
        try:
            return self._kernel.run()
        except StratalogError as error:
            reason, position = str(error), None
            if isinstance(error, CorruptBatchError):
                reason, position = error.reason, error.position
            raise CorruptBatchError(
                f"{self._partition}, offset {self._kernel.at_offset}: {reason}; to skip it, read around it with "
                "startingOffsets and endingOffsets",
                position=position,
            ) from error

    def _record_batch(self) -> pa.RecordBatch:
        rows, buffers = self._kernel.take()
        arrays = []
        for field in self.schema:
            bit = _BITS.get(field.name)
            arrays.append(self._constant(field.name, rows) if bit is None else _array(field, buffers[bit], rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _constant(self, name: str, rows: int) -> pa.Array:
        """Return an array with the same value in each row. It is created once, and sliced to the length."""
        known = self._repeated.get(name)
        if known is None or len(known) < rows:
            value, kind = self._constants[name]
            known = self._repeated[name] = pa.repeat(pa.scalar(value, kind), rows)
        return known if len(known) == rows else known.slice(0, rows)


def _schema(columns: Sequence[str]) -> pa.Schema:
    for name in columns:
        if name not in schema.ALL_COLUMNS:
            raise ValueError(f"column {name!r} does not exist; the columns are {', '.join(schema.ALL_COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise ValueError(f"a column is named twice: {', '.join(columns)}")
    return schema.arrow_schema(columns)


def _array(field: pa.Field, buffers: Any, rows: int) -> pa.Array:
    if field.name in (schema.KEY, schema.VALUE):
        return _binary(field.type, buffers, rows)
    if field.name == schema.HEADERS:
        return _headers(field.type, buffers, rows)
    return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(buffers)], 0)


def _headers(kind: pa.DataType, buffers: Any, rows: int) -> pa.Array:
    """Return an array that is null for records without headers, as in Spark's Kafka connector."""
    import pyarrow.compute as pc  # slow to import, and headers are rarely read

    offsets, header_rows, keys, values = buffers
    pairs = pa.StructArray.from_arrays(
        [_binary(pa.string(), keys, header_rows), _binary(pa.binary(), values, header_rows)],
        fields=list(kind.value_type),
    )
    buffer = pa.py_buffer(offsets)
    bounds = pa.Array.from_buffers(pa.int32(), rows + 1, [None, buffer], 0)
    has_any = pc.not_equal(bounds.slice(1), bounds.slice(0, rows))
    return pa.Array.from_buffers(kind, rows, [has_any.buffers()[1], buffer], -1, children=[pairs])


def _binary(kind: pa.DataType, buffers: Any, rows: int) -> pa.Array:
    validity, offsets, data, nulls = buffers
    bits = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(offsets), pa.py_buffer(data)], nulls)
