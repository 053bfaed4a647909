"""The columns of a write, and the topic of each row.

As in Spark's Kafka connector: `value`, and optionally `key`, `topic`, `partition` and `headers`; also `timestamp`,
which becomes the record's. Other columns are ignored. The option `topic` takes precedence over the column.
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
    """Check the columns of a write. Raises ConfigError."""
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        types = _TYPES.get(field.name)
        kind = field.dataType.simpleString()
        if types is not None and kind not in types:
            raise ConfigError(f"the column {field.name!r} is {kind}; cast it to {' or '.join(types)}")
        if types is not None and names.count(field.name) > 1:
            raise ConfigError(f"there are {names.count(field.name)} columns {field.name!r}; keep one of them")
    if VALUE not in names:
        near = [name for name in names if name.lower() == VALUE]
        hint = f"{near[0]!r} differs: names are case-sensitive" if near else "select a column or expression as `value`"
        raise ConfigError(f"there is no column {VALUE!r}; {hint}. The columns are {', '.join(names) or 'none'}")
    if topic is None and TOPIC not in names:
        raise ConfigError("no topic is set for the rows; set the option `topic`, or add a column `topic`")


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic, in their order, with the columns for a producer. Raises InvalidRecordError."""
    rows = batch.select([name for name in _WRITTEN if name in batch.schema.names])
    if topic is not None:
        yield topic, rows
        return
    topics = batch.column(TOPIC)
    if topics.null_count:
        row = pc.index(topics.is_null(), True).as_py()
        raise InvalidRecordError(
            f"the column {TOPIC!r} is null in row {row} of a batch of {batch.num_rows}; set a value, or the option "
            f"`topic`"
        )
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], rows
        return
    order = pc.sort_indices(encoded.indices)  # stable, so rows of a topic keep their order
    sorted_rows = rows.take(order)
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(encoded.indices).to_pylist()}
    start = 0
    for index in sorted(counts):
        yield names[index], sorted_rows.slice(start, counts[index])
        start += counts[index]
