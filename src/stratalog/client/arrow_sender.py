"""A table's rows -> a producer's batches, column by column: no object is made for a row.

Rows go to the partition that they name, else to that of their key, else to one partition for a batch and then another,
all as `send` does it. Rows that name a partition or have a key keep their order; those that have neither keep it among
themselves. What is wrong with a table, or with any of its rows, is found before anything is sent.

The call only looks at lengths, and says which rows make which batch. A batch is encoded by the I/O thread when its turn
comes, in one pass over the columns and into memory that was used before. Until then it holds the table's memory, which
is safe as Arrow's never changes, and counts for buffer.memory as if it were encoded.
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

ANYWHERE = -1  # instead of a partition: one is chosen when the batch is added
_HIGHEST_PARTITION = 2**31 - 1
_OVERHEAD = 128  # of a record and its batch, at most, without headers


class RowsMetadata(NamedTuple):
    """Where some of the rows are: `rows` of them in a partition, from `offset` on; -1: the broker did not tell."""

    topic: str
    partition: int
    offset: int
    rows: int


class BatchOutcome(NamedTuple):
    rows: int
    is_done: bool
    error: Exception | None


class _Planned(NamedTuple):
    """A batch to be."""

    partition: int
    encode: Callable[[bytearray | None, int], bytearray]
    size: int
    rows: int
    base_timestamp: int
    max_timestamp: int


class ArrowDelivery:
    """What becomes of a table's rows: a future for all of them. Complete when each is acknowledged or has failed."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def done(self) -> bool:
        return all(batch.is_done for batch in self._settled())

    def result(self, timeout: float | None = None) -> list[RowsMetadata]:
        """Where the rows are. Raises why some failed, or TimeoutError after `timeout` seconds."""
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)
        return [
            RowsMetadata(batch.queue.topic, batch.queue.partition, batch.base_offset, batch.record_count)
            for batch in self._settled()
        ]

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The first of what went wrong, or None. Waits as `result` does."""
        deadline = -1.0 if timeout is None else time.monotonic() + max(timeout, 0.0)
        waiting = self._batches
        while waiting:
            for batch in waiting:
                if not batch.wait(deadline):
                    left = sum(one.record_count for one in self._settled() if not one.is_done)
                    raise TimeoutError(
                        f"{left} rows are not acknowledged after {timeout} s; they are still under way: wait longer, "
                        f"or lower delivery_timeout_ms to have them given up sooner"
                    )
            waiting = [batch for batch in self._settled() if not batch.is_done]
        return next((batch.error for batch in self._settled() if batch.error is not None), None)

    def acknowledged(self) -> int:
        """How many rows are, so far."""
        return sum(batch.record_count for batch in self._settled() if batch.is_done and batch.error is None)

    def outcomes(self) -> list[BatchOutcome]:
        """What became of each batch so far. Batches are in the order of the rows where these all name one partition, or
        have neither keys nor partitions."""
        return [BatchOutcome(batch.record_count, batch.is_done, batch.error) for batch in self._settled()]

    def _settled(self) -> list[Batch]:
        """Batches may have been split."""
        if any(batch.parts is not None for batch in self._batches):
            self._batches = [part for batch in self._batches for part in _parts(batch)]
        return self._batches


def _parts(batch: Batch) -> list[Batch]:
    if batch.parts is None:
        return [batch]
    return [one for part in batch.parts for one in _parts(part)]


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
        one
        for chunk, encoder in zip(chunks, encoders, strict=True)
        for one in _plan(chunk, encoder, queues.count, accumulator.batch_size)
    ]
    _check_planned(planned, topic, accumulator)
    return ArrowDelivery([_add(accumulator, queues, one) for one in planned])


def _chunks(table: pa.Table | pa.RecordBatch, batch_size: int) -> list[pa.RecordBatch]:
    """Small chunks are joined: each begins batches of its own."""
    if isinstance(table, pa.RecordBatch):
        return [table] if table.num_rows else []
    if not isinstance(table, pa.Table):
        raise TypeError(f"a pyarrow Table or RecordBatch is wanted, not {type(table).__name__}")
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
        raise TypeError(f"column 'partition' is {column.type}; integers are wanted")
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is not None and bounds["min"] < 0:
        raise ValueError(f"column 'partition' has {bounds['min']}; leave a partition null to have one chosen")
    if bounds["max"] is not None and bounds["max"] > _HIGHEST_PARTITION:
        raise ValueError(f"column 'partition' has {bounds['max']}; a partition's number fits 32 bits")
    return -1 if bounds["max"] is None else int(bounds["max"])


def _check_sizes(chunk: pa.RecordBatch, topic: str, most: int) -> None:
    """The largest key and value, wherever they are: only if they are too much together it is looked at rows."""
    columns = [chunk.column(name) for name in ("value", "key") if name in chunk.schema.names]
    lengths = [_lengths(column) for column in columns]
    if sum(pc.max(one).as_py() or 0 for one in lengths if one is not None) + _OVERHEAD <= most:
        return
    sums = [pc.fill_null(one, 0) for one in lengths if one is not None]
    total = sums[0] if len(sums) == 1 else pc.add(sums[0], sums[1])
    size = pc.max(total).as_py() + _OVERHEAD
    if size > most:
        row = pc.index(total, size - _OVERHEAD).as_py()
        raise RecordTooLargeError.at_client(f"row {row}", size, "max.request.size", most, topic)


def _check_planned(planned: list[_Planned], topic: str, accumulator: Accumulator) -> None:
    """With headers, and in columns of a kind whose lengths are not told. Only a row that is alone can be too large."""
    largest = max((one.size for one in planned), default=0)
    name, most = "max.request.size", accumulator.max_request_size
    if accumulator.buffer_memory < most:
        name, most = "buffer.memory", accumulator.buffer_memory
    if largest > most:
        raise RecordTooLargeError.at_client("a row", largest, name, most, topic)


def _lengths(column: pa.Array) -> pa.Array | None:
    try:
        return pc.binary_length(column).cast(pa.int64())
    except pa.ArrowNotImplementedError:
        return None  # no binary column; encoding says what it is


def _plan(chunk: pa.RecordBatch, encoder: ColumnEncoder, partitions: int, batch_size: int) -> list[_Planned]:
    """Batches of the partitions in turn, so that all brokers have something to do from the start; then those of rows
    that may go anywhere."""
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
    in_turn = [one for turn in zip_longest(*of_partitions) for one in turn if one is not None]
    return in_turn + list(_batches(encoder, order, ANYWHERE, ends[-2], ends[-1], batch_size))


def _batches(
    encoder: ColumnEncoder, order: bytearray | None, partition: int, start: int, end: int, batch_size: int
) -> Iterator[_Planned]:
    while start < end:
        size, behind, base_timestamp, max_timestamp = encoder.plan(order, start, end, batch_size)
        encode = partial(encoder.encode_planned, order, start, behind, size, base_timestamp)
        yield _Planned(partition, encode, size, behind - start, base_timestamp, max_timestamp)
        start = behind


def _add(accumulator: Accumulator, queues: TopicQueues, planned: _Planned) -> Batch:
    if planned.partition != ANYWHERE:
        queue = queues.partitions[planned.partition]
    else:
        queue = accumulator.stick(queues)
        accumulator.stuck(queues, planned.size)
    return accumulator.add_rows(
        queue, planned.encode, planned.size, planned.rows, planned.base_timestamp, planned.max_timestamp
    )


def _named_partitions(column: pa.Array) -> pa.Buffer | None:
    if pa.types.is_null(column.type):
        return None
    numbers = pc.fill_null(column.cast(pa.int32()), -1)
    return numbers.buffers()[1].slice(numbers.offset * 4)
