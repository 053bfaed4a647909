"""Batches of one partition -> Arrow batches with exactly the types that Spark wants. Does no I/O.

Only wanted columns are decoded; what the predicate, the window [start, end), control batches and aborted transactions
leave out never becomes a row. Rows are collected over any number of `decode` calls until an Arrow batch is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from stratalog.spark.predicate import EVERYTHING, Predicate

if TYPE_CHECKING:
    from typing_extensions import Buffer

ROWS_PER_BATCH = 100_000
BYTES_PER_BATCH = 16 * 1024 * 1024
DEFAULT_MAX_INFLATED = 256 * 1024 * 1024
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
LAST_OFFSET = 2**63 - 1

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS,
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
        max_inflated: int = DEFAULT_MAX_INFLATED,
    ) -> None:
        raise NotImplementedError

    @property
    def next_offset(self) -> int:
        """Behind the last whole batch that was decoded (`start` at first): where to fetch next."""
        raise NotImplementedError

    @property
    def is_done(self) -> bool:
        """Whether everything before `end` was seen."""
        raise NotImplementedError

    def decode(self, data: Buffer, aborted: Iterable[Aborted | tuple[int, int]] = ()) -> Iterator[pa.RecordBatch]:
        """Take whole batches (one that is cut off at the end is left out). `aborted` are the transactions that the
        fetch response, or the .txnindex, lists for these bytes; they count for this call.

        Exhaust the iterator before the next call. Raises CorruptBatchError, with topic, partition and offset.
        """
        raise NotImplementedError

    def finish(self) -> Iterator[pa.RecordBatch]:
        """What is left, in at most one batch."""
        raise NotImplementedError
