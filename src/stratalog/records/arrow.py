"""Batches <-> pyarrow, column by column, without Record objects. Keys and values are copied once.

`to_arrow` reads any number of batches into one RecordBatch with all or some columns of SCHEMA. `from_arrow` writes the
keys, values, headers and timestamps of a table as batches; the log assigns the offsets. This is the only module of the
package that imports pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.errors import CorruptBatchError, InvalidRecordError, UnsupportedCodecError
from stratalog.records import _column_decoder, format, legacy
from stratalog.records._column_decoder import ColumnDecoder
from stratalog.records._column_encoder import BinaryColumn, ColumnEncoder
from stratalog.records.batch import DEFAULT_MAX_DECOMPRESSED, Batch, batches
from stratalog.records.builder import seal_batch
from stratalog.records.reader import located

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(HEADER)),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("timestamp_type", pa.int32()),
    ]
)
BITS = {
    "key": _column_decoder.KEY,
    "value": _column_decoder.VALUE,
    "headers": _column_decoder.HEADERS,
    "offset": _column_decoder.OFFSET,
    "timestamp": _column_decoder.TIMESTAMP,
    "timestamp_type": _column_decoder.TIMESTAMP_TYPE,
}

FIRST_OFFSET, LAST_OFFSET = -(2**63), 2**63 - 1
SEQUENCES = 2**31  # a producer's sequence numbers wrap here
DEFAULT_BATCH_BYTES = 1024 * 1024


def to_arrow(
    source: Buffer | Iterable[Batch],
    *,
    columns: Sequence[str] | None = None,
    start_offset: int | None = None,
    end_offset: int | None = None,
    check_crc: bool = True,
    include_control: bool = False,
    max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
) -> pa.RecordBatch:
    """Return one RecordBatch with all records of a buffer, or of batches, from start_offset up to before end_offset.

    Only `columns` are decoded; None means all. Raises OverflowError if a column gets larger than 2 GiB: pass fewer
    batches.
    """
    schema = SCHEMA if columns is None else _chosen(columns)
    start = FIRST_OFFSET if start_offset is None else start_offset
    end = LAST_OFFSET if end_offset is None else end_offset
    selected = [
        batch
        for batch in _batches(source)
        if _overlaps(batch, start, end) and (include_control or not batch.header.is_control)
    ]
    decoder = ColumnDecoder(sum(BITS[name] for name in schema.names), *_expected_size(selected))
    for batch in selected:
        if check_crc:
            batch.check_crc()
        _decode(decoder, batch, start, end, max_decompressed)
    rows = decoder.rows
    buffers = decoder.finish()
    arrays = [array_of(field, buffers[BITS[field.name]], rows) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def from_arrow(
    table: pa.Table | pa.RecordBatch,
    *,
    codec: int = format.Codec.NONE,
    compression_level: int | None = None,
    max_batch_bytes: int = DEFAULT_BATCH_BYTES,
    base_offset: int = 0,
    producer_id: int = format.NO_PRODUCER_ID,
    producer_epoch: int = format.NO_PRODUCER_EPOCH,
    base_sequence: int = format.NO_SEQUENCE,
    is_transactional: bool = False,
    leader_epoch: int = format.NO_LEADER_EPOCH,
) -> list[bytearray]:
    """Return the rows as batches of at most `max_batch_bytes` before compression. A larger record gets its own batch.

    The table needs a column `value` and may have `key` (both of any binary or string type), `headers` (a list of key
    and value, or a map) and `timestamp` (of any unit, or integers, which are milliseconds; null becomes -1). Other
    columns are ignored. Offsets and sequence numbers continue from batch to batch.
    """
    if not format.Codec.NONE <= codec <= format.Codec.ZSTD:
        raise UnsupportedCodecError(f"codec is {codec}; 0 to 4 are known")
    attributes = int(codec) | (format.TRANSACTIONAL_BIT if is_transactional else 0)
    built: list[bytearray] = []
    for chunk in _record_batches(table):
        encoder = column_encoder(chunk)
        row = 0
        while row < encoder.rows:
            start = row
            records, row, base_timestamp, max_timestamp = encoder.encode(start, max_batch_bytes)
            built.append(
                seal_batch(
                    records,
                    base_offset=base_offset,
                    record_count=row - start,
                    last_offset_delta=row - start - 1,
                    base_timestamp=base_timestamp,
                    max_timestamp=max_timestamp,
                    attributes=attributes,
                    compression_level=compression_level,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    base_sequence=base_sequence,
                    leader_epoch=leader_epoch,
                )
            )
            base_offset += row - start
            if base_sequence >= 0:
                base_sequence = (base_sequence + row - start) % SEQUENCES
    return built


def _chosen(columns: Sequence[str]) -> pa.Schema:
    for name in columns:
        if name not in BITS:
            raise ValueError(f"column {name!r} does not exist; the columns are {', '.join(BITS)}")
    if len(set(columns)) != len(columns):
        raise ValueError(f"columns has a name twice: {', '.join(columns)}")
    return pa.schema([SCHEMA.field(name) for name in columns])


def _batches(source: Buffer | Iterable[Batch]) -> Iterable[Batch]:
    try:
        view = memoryview(source)  # type: ignore[arg-type]
    except TypeError:
        return source  # type: ignore[return-value]
    return batches(view)


def _expected_size(selected: list[Batch]) -> tuple[int, int]:
    """Return how many rows and bytes to make room for at first. A header's record count is trusted only up to a
    limit."""
    content = sum(batch.header.size for batch in selected)
    rows = sum(max(batch.header.record_count, 0) for batch in selected)
    return min(rows, content), content


def _overlaps(batch: Batch, start: int, end: int) -> bool:
    """Return whether the batch may have records of the range. A legacy wrapper only states its last offset."""
    header = batch.header
    first = header.base_offset if header.magic == format.CURRENT_MAGIC else FIRST_OFFSET
    return first < end and header.last_offset >= start


def _decode(decoder: ColumnDecoder, batch: Batch, start: int, end: int, max_decompressed: int) -> None:
    header = batch.header
    if header.magic != format.CURRENT_MAGIC:
        records = legacy.records_of_message(batch, max_decompressed)
        decoder.add_records(record for record in records if start <= record.offset < end)
        return
    try:
        decoder.add_batch(
            batch.payload(max_decompressed),
            header.record_count,
            header.base_offset,
            header.base_timestamp,
            header.timestamp_type,
            header.max_timestamp,
            start,
            end,
        )
    except CorruptBatchError as error:
        raise located(error, batch) from error


def array_of(field: pa.Field, buffers: Any, rows: int) -> pa.Array:
    if field.name in ("key", "value"):
        return _binary(field.type, buffers, rows)
    if field.name == "headers":
        offsets, header_rows, keys, values = buffers
        pairs = pa.StructArray.from_arrays(
            [_binary(pa.string(), keys, header_rows), _binary(pa.binary(), values, header_rows)],
            fields=list(HEADER),
        )
        return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(offsets)], 0, children=[pairs])
    return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(buffers)], 0)


def _binary(kind: pa.DataType, buffers: Any, rows: int) -> pa.Array:
    validity, offsets, data, nulls = buffers
    bits = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(offsets), pa.py_buffer(data)], nulls)


def _record_batches(table: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    if isinstance(table, pa.RecordBatch):
        return [table]
    if isinstance(table, pa.Table):
        return table.to_batches()  # type: ignore[no-any-return]
    raise TypeError(f"the table is {type(table).__name__}; pass a pyarrow Table or RecordBatch")


def column_encoder(chunk: pa.RecordBatch, *, no_timestamp: int = format.NO_TIMESTAMP) -> ColumnEncoder:
    """Return an encoder of these rows. Rows without a timestamp get `no_timestamp`."""
    names = chunk.schema.names
    if "value" not in names:
        raise ValueError(f"column 'value' is missing; the columns are {', '.join(names) or 'none'}")
    key = binary_column(chunk.column("key"), "key") if "key" in names else None
    value = binary_column(chunk.column("value"), "value")
    timestamps = _timestamps(chunk.column("timestamp"), no_timestamp) if "timestamp" in names else None
    headers = _header_columns(chunk.column("headers")) if "headers" in names else ()
    return ColumnEncoder(chunk.num_rows, key, value, timestamps, *headers, no_timestamp=no_timestamp)


def binary_column(array: pa.Array, name: str) -> BinaryColumn | None:
    """Return a column for the kernel, or None if all values are null. Other layouts than offsets and data are cast,
    which copies them."""
    kind = array.type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        is_large = False
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        is_large = True
    else:
        try:
            array = array.cast(pa.large_binary())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            raise TypeError(f"column {name!r} is {kind}; it must be binary or string") from None
        is_large = True
    validity, offsets, data = array.buffers()
    return BinaryColumn(validity, offsets, data, array.offset, len(array), is_large)


def _timestamps(array: pa.Array, no_timestamp: int) -> pa.Buffer | None:
    """Milliseconds as i64, without an offset and without nulls."""
    kind = array.type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        array = array.cast(pa.timestamp("ms", tz=getattr(kind, "tz", None)), safe=False)
    elif not pa.types.is_integer(kind):
        raise TypeError(f"column 'timestamp' is {kind}; it must be a timestamp, or integer milliseconds")
    milliseconds = pc.fill_null(array.cast(pa.int64()), no_timestamp)
    buffer = milliseconds.buffers()[1]
    return None if buffer is None else buffer.slice(milliseconds.offset * 8)


def _header_columns(
    array: pa.Array,
) -> tuple[pa.Buffer, BinaryColumn | None, BinaryColumn | None] | tuple[()]:
    """Return the list offsets of all rows, and the columns of header keys and values that they point into."""
    if pa.types.is_null(array.type) or len(array) == 0:
        return ()
    try:
        lists = array.cast(pa.list_(HEADER))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        raise TypeError(
            f"column 'headers' is {array.type}; it must be a list of structs of key and value, or a map"
        ) from None
    if lists.null_count:
        lists = pc.coalesce(lists, pa.scalar([], type=lists.type))
    keys, values = lists.values.flatten()
    if len(keys) == 0:
        return ()
    if keys.null_count:
        raise InvalidRecordError("a header has no key")
    offsets = lists.buffers()[1].slice(lists.offset * 4)
    return offsets, binary_column(keys, "headers"), binary_column(values, "headers")
