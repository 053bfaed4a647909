from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from stratalog.errors import ConfigError, InvalidRecordError
from stratalog.spark.write_columns import by_topic, check_columns

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "headers": ArrayType(_HEADER),
    "map": MapType(StringType(), BinaryType()),
}


def schema(columns: str) -> StructType:
    """Parse a schema without Spark's parser, which needs a session."""
    pairs = [column.split() for column in columns.split(", ")]
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


@pytest.mark.parametrize(
    "columns",
    [
        "value string",
        "value binary, key string",
        "key binary, value string, headers headers, partition int, timestamp timestamp",
        "value string, offset bigint, timestampType int, something map",
        "value string, timestamp timestamp_ntz",
    ],
)
def test_columns_of_sparks_kafka_connector_are_accepted(columns: str) -> None:
    check_columns(schema(columns), "orders")
    check_columns(schema(columns + ", topic string"), None)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("key string", "there is no column 'value'; select a column or expression as `value`. The columns are key"),
        ("Value string", "there is no column 'value'; 'Value' differs"),
        ("value int", "the column 'value' is int; cast it to string or binary"),
        ("value string, key bigint", "the column 'key' is bigint; cast it to string or binary"),
        ("value string, partition string", "the column 'partition' is string; cast it to int"),
        ("value string, headers map", "the column 'headers' is map<string,binary>; cast it to array<struct"),
        ("value string, timestamp bigint", "the column 'timestamp' is bigint; cast it to timestamp or timestamp_ntz"),
        ("value string, topic binary", "the column 'topic' is binary; cast it to string"),
    ],
)
def test_invalid_columns_are_refused_before_the_write(columns: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_columns(schema(columns), "orders")


def test_topic_is_required() -> None:
    with pytest.raises(ConfigError, match="set the option `topic`, or add a column `topic`"):
        check_columns(schema("value string"), None)


def test_option_takes_precedence_over_the_column() -> None:
    batch = pa.record_batch({"value": ["a", "b"], "topic": ["x", None], "offset": [1, 2]})
    ((topic, rows),) = by_topic(batch, "orders")
    assert (topic, rows.schema.names) == ("orders", ["value"])


def test_null_topic_is_an_error() -> None:
    batch = pa.record_batch({"value": ["a", "b"], "topic": ["x", None]})
    with pytest.raises(InvalidRecordError, match="the column 'topic' is null in row 1 of a batch of 2"):
        list(by_topic(batch, None))


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=50))
def test_rows_keep_their_order_in_each_topic(topics: list[str]) -> None:
    values = [str(number) for number in range(len(topics))]
    batch = pa.record_batch({"topic": topics, "value": values})
    actual = {topic: rows.column("value").to_pylist() for topic, rows in by_topic(batch, None)}
    expected: dict[str, list[str]] = {}
    for topic, value in zip(topics, values, strict=True):
        expected.setdefault(topic, []).append(value)
    assert actual == expected
