"""The columns of rows that are written: which there may be, and where each row goes.

As in the stock connector: `value`, and if they are there `key`, `topic`, `partition` and `headers`; beside that
`timestamp`, which becomes the record's. Other columns are passed over. The option `topic` counts before the column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.errors import ConfigError, InvalidRecordError
from stratalog.spark.schema import HEADERS, KEY, PARTITION, TIMESTAMP, TOPIC, VALUE

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TYPES = {
    KEY: ("string", "binary"),
    VALUE: ("string", "binary"),
    TOPIC: ("string",),
    PARTITION: ("int",),
    HEADERS: ("array<struct<key:string,value:binary>>",),
    TIMESTAMP: ("timestamp", "timestamp_ntz"),
}
_WRITTEN = (KEY, VALUE, PARTITION, HEADERS, TIMESTAMP)


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises ConfigError, which says what to do about it."""
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        wanted = _TYPES.get(field.name)
        kind = field.dataType.simpleString()
        if wanted is not None and kind not in wanted:
            raise ConfigError(f"the column {field.name!r} is {kind}; {' or '.join(wanted)} is wanted: cast it")
        if wanted is not None and names.count(field.name) > 1:
            raise ConfigError(f"there are {names.count(field.name)} columns {field.name!r}; keep one of them")
    if VALUE not in names:
        near = [name for name in names if name.lower() == VALUE]
        hint = f"{near[0]!r} is another: names are compared with their case" if near else "select something as `value`"
        raise ConfigError(f"there is no column {VALUE!r}; {hint}. The columns are {', '.join(names) or 'none'}")
    if topic is None and TOPIC not in names:
        raise ConfigError("nothing says where rows go; set the option `topic`, or add a column `topic`")


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order, with the columns that a producer takes. Raises InvalidRecordError."""
    rows = batch.select([name for name in _WRITTEN if name in batch.schema.names])
    if topic is not None:
        yield topic, rows
        return
    topics = batch.column(TOPIC)
    if topics.null_count:
        row = pc.index(topics.is_null(), True).as_py()
        raise InvalidRecordError(
            f"the column {TOPIC!r} is null in row {row} of a batch of {batch.num_rows}; give it a value, or set the "
            f"option `topic`"
        )
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], rows
        return
    order = pc.sort_indices(encoded.indices)  # stable: rows of a topic stay in their order
    sorted_rows = rows.take(order)
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(encoded.indices).to_pylist()}
    start = 0
    for index in sorted(counts):
        yield names[index], sorted_rows.slice(start, counts[index])
        start += counts[index]
