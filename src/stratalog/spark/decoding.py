"""Batches of one partition -> Arrow batches with exactly the types that Spark wants. Does no I/O.

Only wanted columns are decoded; what the predicate, the window [start, end), control batches and aborted transactions
leave out never becomes a row. Rows are collected over any number of `decode` calls until an Arrow batch is full.
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
    """A transaction whose records are left out. Fetch responses do not say where it ended: its marker does."""

    producer_id: int
    first_offset: int
    last_offset: int = LAST_OFFSET


class Decoder:
    """`columns` are Spark's names, in the order of the rows. `decode` yields full Arrow batches, `finish` the rest."""

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
        self._place = f"{topic}-{partition}"
        if isolation not in (READ_UNCOMMITTED, READ_COMMITTED):
            raise ValueError(f"isolation is {isolation!r}; {READ_UNCOMMITTED} or {READ_COMMITTED} is wanted")
        wants_partition = predicate.wants_partition(topic, partition) and not predicate.is_nothing
        first, stop = predicate.clamp(start, end) if wants_partition else (start, start)
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
        """Where to go on: behind the last batch that was decoded, or where the first wanted record can be."""
        return self._end if self.is_done else self._kernel.next_offset

    @property
    def is_done(self) -> bool:
        """Whether nothing that is still to come can be wanted."""
        return self._kernel.is_done

    @property
    def position(self) -> int:
        """Bytes used of what the last `decode` was given: what lies behind was cut off, or is not wanted."""
        return self._kernel.position

    @property
    def last_fed(self) -> int:
        """The last offset of the batch before, in the bytes of `decode`; -1: there was none yet."""
        return self._kernel.last_fed

    @property
    def at_offset(self) -> int:
        """The base offset of the last batch that was looked at."""
        return self._kernel.at_offset

    def decode(
        self, data: Buffer, aborted: Iterable[Aborted | tuple[int, int]] = (), *, continues: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Take whole batches (one that is cut off at the end is left out). `aborted` are the transactions that the
        fetch response, or the .txnindex, lists for these bytes; they count for this call. `continues`: the bytes lie
        behind those of the call before, in the same file.

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
        """What is left, in at most one batch."""
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
                f"{self._place}, offset {self._kernel.at_offset}: {reason}; to leave it out, read around it with "
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
        """The same value in each row: made once, and cut to length."""
        known = self._repeated.get(name)
        if known is None or len(known) < rows:
            value, kind = self._constants[name]
            known = self._repeated[name] = pa.repeat(pa.scalar(value, kind), rows)
        return known if len(known) == rows else known.slice(0, rows)


def _schema(columns: Sequence[str]) -> pa.Schema:
    for name in columns:
        if name not in schema.ALL_COLUMNS:
            raise ValueError(f"column {name!r} does not exist; there are {', '.join(schema.ALL_COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise ValueError(f"a column is asked for twice: {', '.join(columns)}")
    return schema.arrow_schema(columns)


def _array(field: pa.Field, buffers: Any, rows: int) -> pa.Array:
    if field.name in (schema.KEY, schema.VALUE):
        return _binary(field.type, buffers, rows)
    if field.name == schema.HEADERS:
        return _headers(field.type, buffers, rows)
    return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(buffers)], 0)


def _headers(kind: pa.DataType, buffers: Any, rows: int) -> pa.Array:
    """Null where a record has none, as the stock connector gives them."""
    import pyarrow.compute as pc  # as long to import as all of ours, and headers are rarely asked for

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
