"""A table's rows -> a producer's batches, column by column, without an object for each row.

A row goes to the partition that it names, else to the partition of its key, else to a partition that changes from batch
to batch, as with `send`. Rows that name a partition or have a key keep their order; the remaining rows keep their order
among themselves. An error in the table or in a row is raised before anything is sent.

The call looks only at lengths, and plans which rows form which batch. The I/O thread encodes a batch just before it
sends it, in one pass over the columns and into reused memory. Until then the batch refers to the table's memory, which
is safe because Arrow's memory never changes, and counts towards buffer.memory as if it were encoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, zip_longest
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.client._accumulator import Accumulator
from stratalog.client._arrow_partitions import sort_rows
from stratalog.client._batch import Batch
from stratalog.client._queues import TopicQueues
from stratalog.client.errors import RecordTooLargeError
from stratalog.records._column_encoder import ColumnEncoder
from stratalog.records.arrow import binary_column, column_encoder

FindTopic = Callable[[str, int, float], TopicQueues]

ANYWHERE = -1  # instead of a partition: the partition is chosen when the batch is added
_HIGHEST_PARTITION = 2**31 - 1
_OVERHEAD = 128  # the largest overhead of a record and its batch, without headers


class RowsMetadata(NamedTuple):
    """The position of some rows: `rows` rows of a partition from `offset` on; -1 if the broker did not report it."""

    topic: str
    partition: int
    offset: int
    rows: int


class BatchOutcome(NamedTuple):
    rows: int
    is_done: bool
    error: Exception | None


class _Planned(NamedTuple):
    """A batch that is planned and not encoded yet."""

    partition: int
    encode: Callable[[bytearray | None, int], bytearray]
    size: int
    rows: int
    base_timestamp: int
    max_timestamp: int


class ArrowDelivery:
    """A future for all rows of a table. It is done when each row is acknowledged or has failed."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def done(self) -> bool:
        return all(batch.is_done for batch in self._current_batches())

    def result(self, timeout: float | None = None) -> list[RowsMetadata]:
        """Return the positions of the rows. Raises a row's first error, or TimeoutError after `timeout` seconds."""
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)
        return [
            RowsMetadata(batch.queue.topic, batch.queue.partition, batch.base_offset, batch.record_count)
            for batch in self._current_batches()
        ]

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait as `result` does, and return the first error, or None."""
        deadline = -1.0 if timeout is None else time.monotonic() + max(timeout, 0.0)
        waiting = self._batches
        while waiting:
            for batch in waiting:
                if not batch.wait(deadline):
                    left = sum(batch.record_count for batch in self._current_batches() if not batch.is_done)
                    raise TimeoutError(
                        f"{left} rows are not acknowledged after {timeout} s; they are still in flight: wait longer, "
                        f"or lower delivery_timeout_ms to have them fail sooner"
                    )
            waiting = [batch for batch in self._current_batches() if not batch.is_done]
        return next((batch.error for batch in self._current_batches() if batch.error is not None), None)

    def acknowledged(self) -> int:
        """Return the number of rows that are acknowledged so far."""
        return sum(batch.record_count for batch in self._current_batches() if batch.is_done and batch.error is None)

    def outcomes(self) -> list[BatchOutcome]:
        """Return the outcome of each batch so far. Batches are in the order of the rows if all rows name the same
        partition, or have neither keys nor partitions."""
        return [BatchOutcome(batch.record_count, batch.is_done, batch.error) for batch in self._current_batches()]

    def _current_batches(self) -> list[Batch]:
        """Replace batches that were split by their parts, and return all batches."""
        if any(batch.parts is not None for batch in self._batches):
            self._batches = [part for batch in self._batches for part in _parts(batch)]
        return self._batches


def _parts(batch: Batch) -> list[Batch]:
    if batch.parts is None:
        return [batch]
    return [smallest for part in batch.parts for smallest in _parts(part)]


def send_arrow(
    accumulator: Accumulator, find_topic: FindTopic, topic: str, table: pa.Table | pa.RecordBatch
) -> ArrowDelivery:
    chunks = _chunks(table, accumulator.batch_size)
    queues = accumulator.topics.get(topic) or find_topic(topic, -1, accumulator.max_block)
    highest = max((_highest_partition(chunk) for chunk in chunks), default=-1)
    if highest >= queues.count:
        queues = find_topic(topic, highest, accumulator.max_block)
    for chunk in chunks:
        _check_sizes(chunk, topic, accumulator.max_request_size)
    now = time.time_ns() // 1_000_000
    encoders = [column_encoder(chunk, no_timestamp=now) for chunk in chunks]
    planned = [
        batch
        for chunk, encoder in zip(chunks, encoders, strict=True)
        for batch in _plan(chunk, encoder, queues.count, accumulator.batch_size)
    ]
    _check_planned(planned, topic, accumulator)
    return ArrowDelivery([_add(accumulator, queues, batch) for batch in planned])


def _chunks(table: pa.Table | pa.RecordBatch, batch_size: int) -> list[pa.RecordBatch]:
    """Return the table's chunks without empty ones. Small chunks are joined, because each chunk begins new batches."""
    if isinstance(table, pa.RecordBatch):
        return [table] if table.num_rows else []
    if not isinstance(table, pa.Table):
        raise TypeError(f"table is of type {type(table).__name__}; it must be a pyarrow Table or RecordBatch")
    chunks = table.to_batches()
    if len(chunks) > 1 and table.nbytes < len(chunks) * batch_size:
        chunks = table.combine_chunks().to_batches()
    return [chunk for chunk in chunks if chunk.num_rows]


def _highest_partition(chunk: pa.RecordBatch) -> int:
    if "partition" not in chunk.schema.names:
        return -1
    column = chunk.column("partition")
    if pa.types.is_null(column.type):
        return -1
    if not pa.types.is_integer(column.type):
        raise TypeError(f"column 'partition' has type {column.type}; it must be of an integer type")
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is not None and bounds["min"] < 0:
        raise ValueError(
            f"column 'partition' contains {bounds['min']}; a partition is not negative, use null to have one chosen"
        )
    if bounds["max"] is not None and bounds["max"] > _HIGHEST_PARTITION:
        raise ValueError(f"column 'partition' contains {bounds['max']}; the limit is {_HIGHEST_PARTITION}")
    return -1 if bounds["max"] is None else int(bounds["max"])


def _check_sizes(chunk: pa.RecordBatch, topic: str, most: int) -> None:
    """Raise RecordTooLargeError if a row exceeds `most` bytes.

    The largest key and the largest value are added up first; only if their sum is too large are rows looked at.
    """
    columns = [chunk.column(name) for name in ("value", "key") if name in chunk.schema.names]
    lengths = [_lengths(column) for column in columns]
    if sum(pc.max(column).as_py() or 0 for column in lengths if column is not None) + _OVERHEAD <= most:
        return
    sums = [pc.fill_null(column, 0) for column in lengths if column is not None]
    total = sums[0] if len(sums) == 1 else pc.add(sums[0], sums[1])
    size = pc.max(total).as_py() + _OVERHEAD
    if size > most:
        row = pc.index(total, size - _OVERHEAD).as_py()
        raise RecordTooLargeError.at_client(f"row {row}", size, "max.request.size", most, topic)


def _check_planned(planned: list[_Planned], topic: str, accumulator: Accumulator) -> None:
    """Raise RecordTooLargeError if a planned batch is too large, which is possible only for a batch of one row.

    This check includes headers and the columns whose lengths Arrow does not compute.
    """
    largest = max((batch.size for batch in planned), default=0)
    name, most = "max.request.size", accumulator.max_request_size
    if accumulator.buffer_memory < most:
        name, most = "buffer.memory", accumulator.buffer_memory
    if largest > most:
        raise RecordTooLargeError.at_client("a row", largest, name, most, topic)


def _lengths(column: pa.Array) -> pa.Array | None:
    try:
        return pc.binary_length(column).cast(pa.int64())
    except pa.ArrowNotImplementedError:
        return None  # not a binary column; the encoder raises an error that names its type


def _plan(chunk: pa.RecordBatch, encoder: ColumnEncoder, partitions: int, batch_size: int) -> list[_Planned]:
    """Plan one batch of each partition in turn, so that all brokers are busy from the start; then plan the batches of
    the rows that may go to any partition."""
    names = chunk.schema.names
    if "key" not in names and "partition" not in names:
        return list(_batches(encoder, None, ANYWHERE, 0, chunk.num_rows, batch_size))
    keys = binary_column(chunk.column("key"), "key") if "key" in names else None
    named = _named_partitions(chunk.column("partition")) if "partition" in names else None
    order, ends = sort_rows(keys, named, chunk.num_rows, partitions)
    of_partitions = [
        list(_batches(encoder, order, partition, start, end, batch_size))
        for partition, (start, end) in enumerate(pairwise(ends[:-1]))
    ]
    in_turn = [batch for turn in zip_longest(*of_partitions) for batch in turn if batch is not None]
    return in_turn + list(_batches(encoder, order, ANYWHERE, ends[-2], ends[-1], batch_size))


def _batches(
    encoder: ColumnEncoder, order: bytearray | None, partition: int, start: int, end: int, batch_size: int
) -> Iterator[_Planned]:
    while start < end:
        size, stop, base_timestamp, max_timestamp = encoder.plan(order, start, end, batch_size)
        encode = partial(encoder.encode_planned, order, start, stop, size, base_timestamp)
        yield _Planned(partition, encode, size, stop - start, base_timestamp, max_timestamp)
        start = stop


def _add(accumulator: Accumulator, queues: TopicQueues, planned: _Planned) -> Batch:
    if planned.partition != ANYWHERE:
        queue = queues.partitions[planned.partition]
    else:
        queue = queues.sticky_queue()
        queues.add_sticky_bytes(planned.size)
    return accumulator.add_rows(
        queue, planned.encode, planned.size, planned.rows, planned.base_timestamp, planned.max_timestamp
    )


def _named_partitions(column: pa.Array) -> pa.Buffer | None:
    if pa.types.is_null(column.type):
        return None
    numbers = pc.fill_null(column.cast(pa.int32()), -1)
    return numbers.buffers()[1].slice(numbers.offset * 4)
