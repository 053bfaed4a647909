"""`from_stratalog` decodes the bytes of a topic's values or keys into columns.

    flights = from_stratalog(records, "json", "carrier string, delay int").select("value.*")

Spark itself decodes all formats. Its functions for Avro and Protobuf are in packages that the session must load; the
error names the package. A value that can't be decoded becomes null, and `errors="name"` adds a column with its bytes.
With mode="FAILFAST" the query fails instead. Frames of schema registries are removed.
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
LARGEST_SAMPLED = 1024 * 1024  # bytes; larger values are not used to infer a schema
_IN_PIPELINE = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
_NOT_LOADED = re.compile("(AVRO|PROTOBUF)_NOT_LOADED")
DECODED, _CORRUPT = "__stratalog_decoded", "__stratalog_corrupt"


@dataclass(frozen=True)
class Decoding:
    """The expressions that decode a column. `is_bad` and `result` refer to the column DECODED, which has the value of
    `decoded`: Spark would compute an expression twice that is used twice."""

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
    """Return `df` with its `column` (value or key) decoded. Raises ConfigError and SchemaRegistryError.

    format      "json", "avro", "protobuf" or "string" (UTF-8)
    schema      JSON: a Spark schema, by default inferred from the first `sample_rows` values (not in streams).
                Avro: the reader schema in JSON, by default the newest of the schemas below.
                Protobuf: the full name of the message.
    errors      the name of a column for the bytes of values that can't be decoded; null for other values
    framed      whether values have the frame of a schema registry. By default, frames of JSON are recognised, and Avro
                is treated as framed if schemas or a registry are set.
    schemas     Avro: the schemas by id. Or `registry`, a URL, to fetch those of the ids in the data, or with `subject`
                all versions of a subject. A stream needs the subject, because its data is not known yet.
    descriptor  Protobuf: a FileDescriptorSet, or its path (protoc --include_imports --descriptor_set_out)
    options     more options for Spark's function, such as timestampFormat
    """
    _check(df, format, column, mode, errors)
    avro_only = {"schemas": schemas, "registry": registry, "subject": subject}
    if format != "avro" and (named := [name for name, value in avro_only.items() if value is not None]):
        raise ConfigError(f"{named[0]} is for format avro, but format is {format!r}")
    if format != "protobuf" and descriptor is not None:
        raise ConfigError(f"descriptor is for format protobuf, but format is {format!r}")
    spark_options = {"mode": mode, **(options or {})}
    if format == "json":
        parsed = infer_json_schema(df, column, sample_rows) if schema is None else _json_schema(schema)
        decoding = _json(_column(column), parsed, framed, spark_options)
    elif format == "avro":
        from stratalog.spark.decode_avro import avro, avro_schemas

        known = avro_schemas(df, _column(column), schema, framed, schemas, registry, subject)
        decoding = avro(_column(column), known, spark_options)
    elif format == "protobuf":
        decoding = _protobuf(_column(column), schema, descriptor, framed, spark_options)
    else:
        decoding = _string(_column(column), mode)
    return _decode(df, column, decoding, mode, errors)


def infer_json_schema(df: DataFrame, column: str = "value", rows: int = SAMPLE_ROWS) -> StructType:
    """Return the schema that Spark infers from the first `rows` values of the column that are at most a mebibyte large.
    Raises ConfigError for a stream, and if there is no JSON object."""
    if df.isStreaming:
        raise ConfigError(
            "schema is missing, and can't be inferred from a stream; set schema, or infer it from a batch read of the "
            "same topic: infer_json_schema(spark.read.format('stratalog')...)"
        )
    if not 1 <= rows <= MOST_SAMPLE_ROWS:
        raise ConfigError(f"sample_rows is {rows}; it must be 1 to {MOST_SAMPLE_ROWS}")
    value = _column(column)
    is_small = value.isNotNull() & (f.octet_length(value) <= LARGEST_SAMPLED)
    sample = df.where(is_small).limit(rows).select(_json_text(value, None).alias("text"))
    inferred = df.sparkSession.read.option("columnNameOfCorruptRecord", _CORRUPT).json(sample).schema
    fields = [field for field in inferred.fields if field.name != _CORRUPT]
    if not fields:
        raise ConfigError(
            f"no schema can be inferred: column {column!r} has no values, or its first {rows} are not JSON objects; "
            f"set schema"
        )
    return StructType(fields)


def _check(df: DataFrame, format: str, column: str, mode: str, errors: str | None) -> None:
    if format not in FORMATS:
        raise ConfigError(f"format is {format!r}; known are: {', '.join(FORMATS)}")
    if mode not in MODES:
        raise ConfigError(f"mode is {mode!r}; it must be PERMISSIVE (null, and the bytes in `errors`) or FAILFAST")
    if errors is not None and mode == "FAILFAST":
        raise ConfigError(f"errors is {errors!r}, but mode is FAILFAST, which has no such column; set one of them")
    types = _types(df)
    if types is None:
        return
    if column not in types:
        raise ConfigError(f"column {column!r} does not exist; the columns are: {', '.join(types)}")
    kind = types[column]
    if kind not in ("binary", "string"):
        raise ConfigError(f"column {column!r} is {kind}; it must be binary, as in topics, or string")
    if errors is not None and errors in types:
        raise ConfigError(f"errors is {errors!r}, but that column exists; choose another name")


def _types(df: DataFrame) -> dict[str, str] | None:
    """Return the types of the columns, by name. Return None in a function of a declarative pipeline, where Spark does
    not analyse frames yet."""
    try:
        return {field.name: field.dataType.typeName() for field in df.schema.fields}
    except AnalysisException as error:
        if error.getCondition() == _IN_PIPELINE:
            return None
        raise


def _decode(df: DataFrame, column: str, decoding: Decoding, mode: str, errors: str | None) -> DataFrame:
    raw = _column(column)
    try:
        decoded = df.withColumn(DECODED, decoding.decoded)
    except AnalysisException as error:
        if (missing := _missing_package(error, df.sparkSession.version)) is not None:
            raise missing from None
        raise
    if mode == "FAILFAST":
        return decoded.withColumn(column, decoding.result).drop(DECODED)
    is_bad = raw.isNotNull() & f.coalesce(decoding.is_bad, f.lit(False))
    columns = {column: f.when(~is_bad, decoding.result)}
    if errors is not None:
        columns[errors] = f.when(is_bad, raw)
    return decoded.withColumns(columns).drop(DECODED)


# JSON and text


def _json(raw: Column, schema: DataType, framed: bool | None, options: dict[str, str]) -> Decoding:
    text, decoded = _json_text(raw, framed), f.col(DECODED)
    is_null = f.trim(text) == "null"  # JSON's null is a value, not an error
    if not isinstance(schema, StructType) or options["mode"] == "FAILFAST":
        return Decoding(f.from_json(text, _for_from_json(schema), options), decoded.isNull() & ~is_null, decoded)
    # Spark returns the readable fields of a bad record. Only the field for corrupt records shows that it is bad.
    with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    is_good = decoded[_CORRUPT].isNull() & decoded.isNotNull()
    options = options | {"columnNameOfCorruptRecord": _CORRUPT}
    result = f.when(is_good, decoded.dropFields(_CORRUPT))
    return Decoding(f.from_json(text, with_corrupt, options), ~is_good & ~is_null, result)


def _json_text(raw: Column, framed: bool | None) -> Column:
    """Return the text, without its frame. JSON never starts with a zero byte, so frames can be recognised."""
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
        raise ConfigError("schema is missing; for format protobuf, set the full name of the message, like 'shop.Order'")
    if descriptor is None:
        raise ConfigError(
            "descriptor is missing; set a FileDescriptorSet, or the path of one, created by "
            "protoc --include_imports --descriptor_set_out=FILE"
        )
    content = bytes(descriptor) if isinstance(descriptor, bytes | bytearray) else Path(descriptor).read_bytes()
    payload = framing.without_indexes(framing.without_frame(raw)) if framed else raw
    if framed:
        payload = f.when(framing.is_framed(raw), payload)
        if options["mode"] == "FAILFAST":
            payload = f.when(raw.isNull() | payload.isNotNull(), payload).otherwise(
                f.raise_error(f.lit("a value has no frame of a schema registry, but framed is True"))
            )
    decoded = from_protobuf(payload, message, options=options, binaryDescriptorSet=content)
    return Decoding(decoded, f.col(DECODED).isNull(), f.col(DECODED))


def _missing_package(error: AnalysisException, version: str) -> ConfigError | None:
    """Return an error that names the missing package for Avro or Protobuf, or None for another error."""
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
                f"schema is {schema!r}; in a function of a declarative pipeline Spark parses no DDL: use a StructType"
            ) from None
        raise
    if not isinstance(parsed, StructType | ArrayType | MapType):
        raise ConfigError(
            f"schema is {parsed.simpleString()}; JSON needs columns ('a int, b string'), an array or a map"
        )
    return parsed


def _for_from_json(schema: DataType) -> str | StructType:
    return schema if isinstance(schema, StructType) else schema.simpleString()
