"""from_stratalog, on rows like those of a topic."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from stratalog.errors import ConfigError
from stratalog.spark.decode import MOST_SAMPLE_ROWS, from_stratalog, infer_json_schema
from stratalog.spark.framing import is_framed, schema_id, without_frame, without_indexes

DRINKS = StructType([StructField("drink", StringType()), StructField("cups", IntegerType())])
FRAME = b"\x00\x00\x00\x01\x02"


def topic(spark: SparkSession, *values: bytes | None, key: bytes | None = b"ada") -> DataFrame:
    """Create rows from Arrow, so that they are in the plan: the driver decodes them without a worker."""
    columns = {"key": [key] * len(values), "value": list(values), "partition": [0] * len(values)}
    schema = pa.schema({"key": pa.binary(), "value": pa.binary(), "partition": pa.int32()})
    return spark.createDataFrame(pa.table(columns, schema))


def values(df: DataFrame, column: str = "value") -> list[object]:
    return [row[column] for row in df.collect()]


def test_json_becomes_a_struct_and_other_columns_stay(spark: SparkSession) -> None:
    df = from_stratalog(topic(spark, b'{"drink": "tea", "cups": 2}', b'{"cups": 1, "more": 5}', None), "json", DRINKS)
    assert df.columns == ["key", "value", "partition"]
    assert values(df) == [Row(drink="tea", cups=2), Row(drink=None, cups=1), None]
    assert values(df, "key") == [b"ada"] * 3
    assert values(from_stratalog(topic(spark, b'{"cups": 3}'), "json", "drink string, cups int")) == [
        Row(drink=None, cups=3)
    ]


BAD = [b"{", b"", b"tea", b'{"cups": "many"}', b"\xff\xfe"]


def test_invalid_json_is_null_and_its_bytes_are_in_the_errors_column(spark: SparkSession) -> None:
    good = [b'{"cups": 1}', b"null", None]
    df = from_stratalog(topic(spark, *good, *BAD), "json", DRINKS, errors="bad")
    assert values(df) == [Row(drink=None, cups=1), *[None] * (len(good) - 1 + len(BAD))]
    assert values(df, "bad") == [None] * len(good) + [bytearray(bad) for bad in BAD]


def test_failfast_fails_the_query(spark: SparkSession) -> None:
    df = from_stratalog(topic(spark, b'{"cups": 1}', b"{"), "json", DRINKS, mode="FAILFAST")
    with pytest.raises((PySparkException, Py4JError), match="MALFORMED_RECORD"):
        df.collect()


def test_framed_json_is_recognised(spark: SparkSession) -> None:
    both = topic(spark, FRAME + b'{"cups": 1}', b'{"cups": 2}')
    assert values(from_stratalog(both, "json", "cups int")) == [Row(cups=1), Row(cups=2)]
    assert values(from_stratalog(both, "json", "cups int", framed=True)) == [Row(cups=1), None]
    assert values(from_stratalog(both, "json", "cups int", framed=False)) == [None, Row(cups=2)]


def test_a_schema_is_inferred_from_the_first_values_only(spark: SparkSession) -> None:
    df = topic(spark, b'{"cups": 1}', FRAME + b'{"drink": "tea"}', b"{bad", b'{"late": true}').coalesce(1)
    assert infer_json_schema(df, rows=3).simpleString() == "struct<cups:bigint,drink:string>"
    decoded = from_stratalog(df, "json", sample_rows=3)
    assert values(decoded) == [Row(cups=1, drink=None), Row(cups=None, drink="tea"), None, Row(cups=None, drink=None)]


def test_arrays_and_maps_are_decoded_too(spark: SparkSession) -> None:
    assert values(from_stratalog(topic(spark, b"[1, 2]", b"nothing"), "json", "array<int>", errors="bad")) == [
        [1, 2],
        None,
    ]
    assert values(from_stratalog(topic(spark, b'{"a": 1}'), "json", "map<string, int>")) == [{"a": 1}]


def test_keys_as_text(spark: SparkSession) -> None:
    df = topic(spark, b'{"cups": 1}', key="jürgen".encode()).union(topic(spark, None, key=b"\xff"))
    decoded = from_stratalog(from_stratalog(df, "string", column="key", errors="no_text"), "json", "cups int")
    assert [tuple(row) for row in decoded.select("key", "value.cups", "no_text").collect()] == [
        ("jürgen", 1, None),
        (None, None, b"\xff"),
    ]
    with pytest.raises(PySparkException, match="UTF"):
        from_stratalog(df, "string", column="key", mode="FAILFAST").collect()


def test_stream_is_decoded_but_its_schema_is_not_inferred(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().select(f.lit(b'{"cups": 1}').alias("value"))
    assert from_stratalog(stream, "json", DRINKS).isStreaming
    with pytest.raises(ConfigError, match="set schema"):
        from_stratalog(stream, "json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("xml",), "known are: json, avro, protobuf, string"),
        (("json", "a int", {"mode": "DROPMALFORMED"}), "PERMISSIVE"),
        (("json", "a int", {"column": "values"}), "the columns are: key, value, partition"),
        (("json", "a int", {"column": "partition"}), "it must be binary"),
        (("json", "a int", {"errors": "key"}), "that column exists"),
        (("json", "a int", {"errors": "bad", "mode": "FAILFAST"}), "mode is FAILFAST"),
        (("json", "a int", {"registry": "http://localhost"}), "registry is for format avro"),
        (("json", "a int", {"descriptor": b""}), "descriptor is for format protobuf"),
        (("json", "int", {}), "schema is int; JSON needs columns"),
        (("json", None, {"sample_rows": 0}), f"1 to {MOST_SAMPLE_ROWS}"),
        (("json", None, {}), "no schema can be inferred"),
        (("avro", None, {}), "schema is missing"),
        (("avro", "tea", {}), "Avro schema in JSON"),
        (("avro", '"string"', {"framed": True}), "set schemas, or registry"),
        (("avro", '"string"', {"schemas": {}}), "0 schemas"),
        (("avro", None, {"schemas": {1: '"int"'}, "framed": False}), "have no schema ids"),
        (("avro", None, {"schemas": {1: '"int"'}, "registry": "http://localhost"}), "set one of them"),
        (("avro", None, {"subject": "drinks-value"}), "registry is not set"),
        (("avro", None, {"registry": "localhost:8081"}), "http://localhost:8081"),
        (("avro", None, {"registry": "http://localhost:1"}), "no value has a frame"),
        (("protobuf", None, {}), "full name of the message"),
        (("protobuf", "shop.Order", {}), "descriptor is missing"),
    ],
)
def test_contradictory_arguments_are_refused_by_name(
    spark: SparkSession, arguments: Sequence[object], message: str
) -> None:
    format, schema, options = (*arguments, None, {})[:3] if len(arguments) < 3 else arguments
    with pytest.raises(ConfigError, match=message):
        from_stratalog(topic(spark, b"tea"), format, schema, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("format", "schema", "options"),
    [("avro", '"string"', {}), ("protobuf", "shop.Order", {"descriptor": b""})],
)
def test_missing_package_is_named(spark: SparkSession, format: str, schema: str, options: dict[str, bytes]) -> None:
    with pytest.raises(ConfigError, match=rf"spark.jars.packages.*spark-{format}_2.13:{spark.version}"):
        from_stratalog(topic(spark, b"tea"), format, schema, **options)  # type: ignore[arg-type]


def test_frames_are_split_into_id_and_value(spark: SparkSession) -> None:
    rows = [
        (FRAME + b"tea", True, 258, b"tea"),
        (FRAME, True, 258, b""),
        (b"\x00\xff\xff\xff\xff1", True, 0xFFFFFFFF, b"1"),
        (FRAME[:4], False, None, None),
        (b"\x01\x00\x00\x00\x01tea", False, None, None),
        (None, False, None, None),
    ]
    df = spark.createDataFrame(pa.table({"value": pa.array([row[0] for row in rows], pa.binary())}))
    value = f.col("value")
    actual = df.select(is_framed(value), f.when(is_framed(value), schema_id(value)), without_frame(value)).collect()
    for row, (framed, number, rest) in zip(rows, actual, strict=True):
        assert (framed, number) == row[1:3]
        assert not framed or rest == row[3]


def test_message_indexes_of_protobuf_are_skipped(spark: SparkSession) -> None:
    rows = [
        (b"\x00tea", b"tea"),  # the first message, in the short form
        (b"\x02\x00tea", b"tea"),
        (b"\x04\x02\x06tea", b"tea"),
        (b"\x00", b""),
        (b"\x80\x01tea", None),  # 64 indexes
        (b"\x02\x80\x01tea", None),  # a number of two bytes
        (b"\x01tea", None),  # a negative count
        (b"", None),
    ]
    df = spark.createDataFrame(pa.table({"rest": pa.array([row[0] for row in rows], pa.binary())}))
    assert [row[0] for row in df.select(without_indexes(f.col("rest"))).collect()] == [row[1] for row in rows]
