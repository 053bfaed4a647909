"""The columns of a topic in Spark: names, types and order are those of Spark's Kafka connector. Pure.

All are nullable, as in that connector, although only key, value and headers can be null.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING

from stratalog.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa  # imported on demand, because Spark starts processes that only look up a source's name
    from pyspark.sql.types import StructType

KEY, VALUE, TOPIC, PARTITION = "key", "value", "topic", "partition"
OFFSET, TIMESTAMP, TIMESTAMP_TYPE, HEADERS = "offset", "timestamp", "timestampType", "headers"
COLUMNS = (KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE)
ALL_COLUMNS = (*COLUMNS, HEADERS)

_DDL = {
    KEY: "binary",
    VALUE: "binary",
    TOPIC: "string",
    PARTITION: "int",
    OFFSET: "bigint",
    TIMESTAMP: "timestamp",
    TIMESTAMP_TYPE: "int",
    HEADERS: "array<struct<key:string,value:binary>>",
}


def ddl(include_headers: bool) -> str:
    """Return the full schema as Spark's DDL."""
    return ", ".join(f"{name} {_DDL[name]}" for name in (ALL_COLUMNS if include_headers else COLUMNS))


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of the batches of a scan. Spark accepts exactly these types."""
    import pyarrow as pa

    types = _arrow_types()
    return pa.schema([pa.field(name, types[name]) for name in columns])


@cache
def _arrow_types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
        KEY: pa.binary(),
        VALUE: pa.binary(),
        TOPIC: pa.string(),
        PARTITION: pa.int32(),
        OFFSET: pa.int64(),
        TIMESTAMP: pa.timestamp("us", tz="UTC"),
        TIMESTAMP_TYPE: pa.int32(),
        HEADERS: pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    }


def columns_of(schema: StructType) -> tuple[str, ...]:
    """Return the names of the columns in a schema: some of ALL_COLUMNS, in any order. Raises ConfigError for an unknown
    or repeated column, or another type."""
    names: list[str] = []
    for field in schema.fields:
        name, kind = field.name, field.dataType.simpleString()
        if name not in _DDL:
            lower = {column.lower(): column for column in ALL_COLUMNS}
            near = get_close_matches(name.lower(), lower, 1)
            hint = f"did you mean {lower[near[0]]!r}?" if near else f"the columns are: {', '.join(ALL_COLUMNS)}"
            raise ConfigError(f"the schema contains a column {name!r}, which topics don't have; {hint}")
        if name in names:
            raise ConfigError(f"the schema contains the column {name!r} twice; name it once")
        if kind != _DDL[name]:
            raise ConfigError(
                f"the schema has {name!r} as {kind}; its type is {_DDL[name]}: use that type, and cast it in the query"
            )
        names.append(name)
    return tuple(names)
