"""What was fetched -> Arrow: a record batch for each partition's part of a fetch, without a record object on the way.

Each part becomes arrays of its own, so nothing is copied a second time to make one large array, and memory that the
last table gave back is used again while it is still in the processor's caches.
"""

from __future__ import annotations

from array import array

import pyarrow as pa

from stratalog.client._consumer_records import FetchedRecords
from stratalog.errors import StratalogError
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
_DECODED = [name for name in SCHEMA.names if name in arrow.BITS]
_BITS = sum(arrow.BITS[name] for name in _DECODED)


class ArrowColumns:
    """Makes record batches. The columns that are the same in each row are kept from one to the next."""

    def __init__(self) -> None:
        self._topics: dict[str, pa.Array] = {}
        self._partitions: dict[int, pa.Buffer] = {}
        self._rows = 0

    def take(self, fetched: FetchedRecords, most: int) -> pa.RecordBatch | None:
        """The next rows, at most so many; None: there are none."""
        start_offset, start_epoch = fetched.progress.offset, fetched.progress.leader_epoch
        decoder = ColumnDecoder(_BITS, 0, fetched.size)
        try:
            rows = fetched.take_columns(decoder, most)
        except StratalogError:
            # The decoder may have some of the batch that is damaged. Those before it are decoded again, and the error
            # is for the next call.
            if fetched.progress.offset == start_offset:
                raise
            end_offset = fetched.progress.offset
            fetched.rewind(start_offset, start_epoch)
            decoder = ColumnDecoder(_BITS, 0, fetched.size)
            rows = fetched.take_columns_until(decoder, end_offset)
        if not rows:
            return None
        buffers = decoder.finish()
        columns = {name: arrow._array(arrow.SCHEMA.field(name), buffers[arrow.BITS[name]], rows) for name in _DECODED}
        columns["topic"] = self._topic(fetched.place.topic, rows)
        columns["partition"] = self._partition(fetched.place.partition, rows)
        return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)

    def _topic(self, topic: str, rows: int) -> pa.Array:
        names = self._topics.get(topic)
        if names is None:
            names = self._topics[topic] = pa.array([topic], pa.string())
        indexes = pa.Array.from_buffers(pa.int32(), rows, [None, self._same(0, rows)], 0)
        return pa.DictionaryArray.from_arrays(indexes, names)

    def _partition(self, partition: int, rows: int) -> pa.Array:
        return pa.Array.from_buffers(pa.int32(), rows, [None, self._same(partition, rows)], 0)

    def _same(self, number: int, rows: int) -> pa.Buffer:
        """So many times the number, as i32."""
        kept = self._partitions.get(number)
        if kept is None or kept.size < rows * 4:
            kept = self._partitions[number] = pa.py_buffer(array("i", [number]) * max(1024, rows * 2))
        return kept
