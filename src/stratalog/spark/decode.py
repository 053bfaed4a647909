"""from_stratalog: the bytes of a topic's values or keys as columns.

    flights = from_stratalog(records, "json", "carrier string, delay int").select("value.*")

JSON is read by Spark itself; Avro and Protobuf by Spark's own functions, which are in packages that a session must have
(the error says which). A value that can't be decoded is null, and with `errors="name"` its bytes are in that column;
with mode="FAILFAST" the query fails. The frame that schema registries use is taken off.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from stratalog.errors import ConfigError
from stratalog.spark import framing

FORMATS = ("json", "avro", "protobuf", "string")
MODES = ("PERMISSIVE", "FAILFAST")
SAMPLE_ROWS = 1000
MOST_SAMPLE_ROWS = 100_000
LARGEST_SAMPLED = 1024 * 1024  # bytes of a value that a schema is inferred from
_IN_PIPELINE = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
_NOT_LOADED = re.compile("(AVRO|PROTOBUF)_NOT_LOADED")
DECODED, _CORRUPT = "__stratalog_decoded", "__stratalog_corrupt"


@dataclass(frozen=True)
class Decoding:
    """How a column is decoded. `is_bad` and `result` are given what `decoded` became, as a column of its own: an
    expression that is used twice would be computed twice."""

    decoded: Column
    is_bad: Column
    result: Column


def from_stratalog(
    df: DataFrame,
    format: str,
    schema: str | DataType | None = None,
    *,
    column: str = "value",
    mode: str = "PERMISSIVE",
    errors: str | None = None,
    framed: bool | None = None,
    schemas: Mapping[int, str] | None = None,
    registry: str | None = None,
    subject: str | None = None,
    descriptor: bytes | str | os.PathLike[str] | None = None,
    sample_rows: int = SAMPLE_ROWS,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """`df` with its `column` (value, or key) decoded.

    format      "json", "avro", "protobuf" or "string" (UTF-8)
    schema      of JSON: a Spark schema, by default inferred from the first `sample_rows` values (not in streams);
                of Avro: the schema to read as, in JSON, by default the newest of those below;
                of Protobuf: the message's full name
    errors      a column for the bytes of what could not be decoded, null where it could
    framed      whether values are framed by a schema registry. By default JSON that is framed is recognised, and Avro
                is taken for framed if schemas or a registry are given
    schemas     Avro's schemas by their ids; or `registry`, a URL, to fetch those that are in the data, or, with
                `subject`, all versions of one (a stream must be told the subject: what will come is not known)
    descriptor  of Protobuf: a FileDescriptorSet, or the path of one (protoc --include_imports --descriptor_set_out)
    options     further ones for Spark's function, like timestampFormat
    """
    _check(df, format, column, mode, errors)
    given = {"schemas": schemas, "registry": registry, "subject": subject}
    if format != "avro" and (named := [name for name, value in given.items() if value is not None]):
        raise ConfigError(f"{named[0]} is for format avro, and format is {format!r}")
    if format != "protobuf" and descriptor is not None:
        raise ConfigError(f"descriptor is for format protobuf, and format is {format!r}")
    spark_options = {"mode": mode, **(options or {})}
    if format == "json":
        wanted = infer_json_schema(df, column, sample_rows) if schema is None else _json_schema(schema)
        how = _json(_column(column), wanted, framed, spark_options)
    elif format == "avro":
        from stratalog.spark.decode_avro import avro, avro_schemas

        known = avro_schemas(df, _column(column), schema, framed, schemas, registry, subject)
        how = avro(_column(column), known, spark_options)
    elif format == "protobuf":
        how = _protobuf(_column(column), schema, descriptor, framed, spark_options)
    else:
        how = _string(_column(column), mode)
    return _decode(df, column, how, mode, errors)


def infer_json_schema(df: DataFrame, column: str = "value", rows: int = SAMPLE_ROWS) -> StructType:
    """The schema that Spark finds in the first values of the column: so many at most, none larger than a mebibyte."""
    if df.isStreaming:
        raise ConfigError(
            "a stream's JSON has no schema to be inferred from; give schema, or infer it from a batch read of the same "
            "topic: infer_json_schema(spark.read.format('stratalog')...)"
        )
    if not 1 <= rows <= MOST_SAMPLE_ROWS:
        raise ConfigError(f"sample_rows is {rows}; it must be 1 to {MOST_SAMPLE_ROWS}")
    value = _column(column)
    is_small = value.isNotNull() & (f.octet_length(value) <= LARGEST_SAMPLED)
    sample = df.where(is_small).limit(rows).select(_json_text(value, None).alias("text"))
    found = df.sparkSession.read.option("columnNameOfCorruptRecord", _CORRUPT).json(sample).schema
    fields = [field for field in found.fields if field.name != _CORRUPT]
    if not fields:
        raise ConfigError(
            f"no schema can be inferred: column {column!r} has no values, or its first {rows} are no JSON objects; "
            f"give schema"
        )
    return StructType(fields)


def _check(df: DataFrame, format: str, column: str, mode: str, errors: str | None) -> None:
    if format not in FORMATS:
        raise ConfigError(f"format is {format!r}; known are: {', '.join(FORMATS)}")
    if mode not in MODES:
        raise ConfigError(f"mode is {mode!r}; it must be PERMISSIVE (null, and the bytes in `errors`) or FAILFAST")
    if errors is not None and mode == "FAILFAST":
        raise ConfigError("errors names a column for what can't be decoded, and with mode FAILFAST there is none")
    types = _types(df)
    if types is None:
        return
    if column not in types:
        raise ConfigError(f"column {column!r} is not there; there are: {', '.join(types)}")
    kind = types[column]
    if kind not in ("binary", "string"):
        raise ConfigError(f"column {column!r} is {kind}; it must be binary, as topics have it, or string")
    if errors is not None and errors in types:
        raise ConfigError(f"errors is {errors!r}, and there is a column of that name; give another")


def _types(df: DataFrame) -> dict[str, str] | None:
    """Of the columns, by name. None in the functions of a declarative pipeline: there Spark looks at nothing yet."""
    try:
        return {field.name: field.dataType.typeName() for field in df.schema.fields}
    except AnalysisException as error:
        if error.getCondition() == _IN_PIPELINE:
            return None
        raise


def _decode(df: DataFrame, column: str, how: Decoding, mode: str, errors: str | None) -> DataFrame:
    raw = _column(column)
    try:
        decoded = df.withColumn(DECODED, how.decoded)
    except AnalysisException as error:
        if (missing := _missing_package(error, df.sparkSession.version)) is not None:
            raise missing from None
        raise
    if mode == "FAILFAST":
        return decoded.withColumn(column, how.result).drop(DECODED)
    is_bad = raw.isNotNull() & f.coalesce(how.is_bad, f.lit(False))
    columns = {column: f.when(~is_bad, how.result)}
    if errors is not None:
        columns[errors] = f.when(is_bad, raw)
    return decoded.withColumns(columns).drop(DECODED)


# JSON and text


def _json(raw: Column, schema: DataType, framed: bool | None, options: dict[str, str]) -> Decoding:
    text, decoded = _json_text(raw, framed), f.col(DECODED)
    is_null = f.trim(text) == "null"  # a value, and nothing bad
    if not isinstance(schema, StructType) or options["mode"] == "FAILFAST":
        return Decoding(f.from_json(text, _for_from_json(schema), options), decoded.isNull() & ~is_null, decoded)
    # Spark fills in what it could read of a bad record; only the field for corrupt ones tells that it was one.
    with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    is_good = decoded[_CORRUPT].isNull() & decoded.isNotNull()
    options = options | {"columnNameOfCorruptRecord": _CORRUPT}
    result = f.when(is_good, decoded.dropFields(_CORRUPT))
    return Decoding(f.from_json(text, with_corrupt, options), ~is_good & ~is_null, result)


def _json_text(raw: Column, framed: bool | None) -> Column:
    """No JSON text begins with a zero byte, so a frame can't be taken for one."""
    if framed is None:
        return f.when(framing.is_framed(raw), framing.without_frame(raw)).otherwise(raw).cast("string")
    return (f.when(framing.is_framed(raw), framing.without_frame(raw)) if framed else raw).cast("string")


def _string(raw: Column, mode: str) -> Decoding:
    text = raw.cast("string")
    if mode == "FAILFAST":
        return Decoding(f.validate_utf8(text), f.lit(False), f.col(DECODED))
    return Decoding(text, ~f.is_valid_utf8(f.col(DECODED)), f.col(DECODED))


# Protobuf


def _protobuf(
    raw: Column,
    message: str | DataType | None,
    descriptor: bytes | str | os.PathLike[str] | None,
    framed: bool | None,
    options: dict[str, str],
) -> Decoding:
    from pyspark.sql.protobuf.functions import from_protobuf

    if not isinstance(message, str):
        raise ConfigError("schema is the message's full name for format protobuf, like 'shop.Order'; give it")
    if descriptor is None:
        raise ConfigError(
            "descriptor is missing: a FileDescriptorSet, or the path of one that "
            "protoc --include_imports --descriptor_set_out=FILE makes"
        )
    content = bytes(descriptor) if isinstance(descriptor, bytes | bytearray) else Path(descriptor).read_bytes()
    payload = framing.without_indexes(framing.without_frame(raw)) if framed else raw
    if framed:
        payload = f.when(framing.is_framed(raw), payload)
        if options["mode"] == "FAILFAST":
            payload = f.when(raw.isNull() | payload.isNotNull(), payload).otherwise(
                f.raise_error(f.lit("a value has no frame of a schema registry; framed was True"))
            )
    decoded = from_protobuf(payload, message, options=options, binaryDescriptorSet=content)
    return Decoding(decoded, f.col(DECODED).isNull(), f.col(DECODED))


def _missing_package(error: AnalysisException, version: str) -> ConfigError | None:
    """Spark's functions for Avro and Protobuf are in packages of their own, and it says so, but not in full."""
    match = _NOT_LOADED.match(error.getCondition() or "")
    if match is None:
        return None
    package = f"org.apache.spark:spark-{match[1].lower()}_2.13:{version}"
    return ConfigError(
        f"Spark's functions for {match[1].lower()} are not in this session; start it with their package: "
        f"stratalog.spark.session(**{{'spark.jars.packages': '{package}'}}), or spark-submit --packages {package}"
    )


def _column(name: str) -> Column:
    return f.col("`" + name.replace("`", "``") + "`")


def _json_schema(schema: str | DataType) -> DataType:
    try:
        parsed = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    except AnalysisException as error:
        if error.getCondition() == _IN_PIPELINE:
            raise ConfigError(
                f"schema is {schema!r}; in a function of a declarative pipeline Spark reads no text: give a StructType"
            ) from None
        raise
    if not isinstance(parsed, StructType | ArrayType | MapType):
        raise ConfigError(
            f"schema is {parsed.simpleString()}; JSON is read as columns ('a int, b string'), an array or a map"
        )
    return parsed


def _for_from_json(schema: DataType) -> str | StructType:
    return schema if isinstance(schema, StructType) else schema.simpleString()
