"""Decodes Avro for from_stratalog: with one schema for all values, or by the schema id in each value's frame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DataType

from stratalog.errors import ConfigError
from stratalog.spark import framing, schema_registry

if TYPE_CHECKING:
    from stratalog.spark.decode import Decoding

# A field that no writer has. Readers fill in its default, so it is null only if decoding failed. Spark itself returns a
# row of nulls for a bad value, and a good value can look the same.
_SENTINEL = "__stratalog_decoded"


@dataclass(frozen=True)
class AvroSchemas:
    """`reader` is the schema of the result. `writers` are the schemas of the values, by id; None means that all values
    have the reader schema and no frame."""

    reader: str
    writers: Mapping[int, str] | None


def avro_schemas(
    df: DataFrame,
    raw: Column,
    schema: str | DataType | None,
    framed: bool | None,
    schemas: Mapping[int, str] | None,
    registry: str | None,
    subject: str | None,
) -> AvroSchemas:
    if schema is not None and not isinstance(schema, str):
        raise ConfigError(f"schema is a {type(schema).__name__}; for format avro it must be an Avro schema in JSON")
    if schemas is not None and registry is not None:
        raise ConfigError("schemas and registry are both set; set one of them")
    if subject is not None and registry is None:
        raise ConfigError(f"subject is {subject!r}, but registry is not set; set its URL")
    if schemas is None and registry is None:
        if schema is None:
            raise ConfigError("schema is missing; set an Avro schema in JSON, or schemas, or registry")
        if framed:
            raise ConfigError("framed is True, so values have schema ids; set schemas, or registry")
        return AvroSchemas(_checked(schema, "schema"), None)
    if framed is False:
        raise ConfigError("framed is False, but schemas or registry is set; values without frames have no schema ids")
    writers = dict(schemas) if schemas is not None else _fetch(df, raw, str(registry), subject)
    if not 1 <= len(writers) <= schema_registry.MOST_SCHEMAS:
        raise ConfigError(f"there are {len(writers)} schemas; their number must be 1 to {schema_registry.MOST_SCHEMAS}")
    for number, writer in writers.items():
        _checked(writer, f"schema {number}")
    newest = list(writers.values())[-1] if subject is not None else writers[max(writers)]
    return AvroSchemas(_checked(schema, "schema") if schema is not None else newest, writers)


def _fetch(df: DataFrame, raw: Column, registry: str, subject: str | None) -> dict[int, str]:
    url = schema_registry.check_url(registry)
    if subject is not None:
        return schema_registry.schemas_of_subject(url, subject)
    if df.isStreaming:
        raise ConfigError(
            "the schema ids of a stream are not known yet; set subject, usually the topic's name with -value"
        )
    number = framing.schema_id(raw).alias("id")
    rows = df.where(framing.is_framed(raw)).select(number).distinct().limit(schema_registry.MOST_SCHEMAS + 1).collect()
    if not rows:
        raise ConfigError("no value has a frame with a schema id; set schema, and leave registry out")
    if len(rows) > schema_registry.MOST_SCHEMAS:
        raise ConfigError(
            f"there are more than {schema_registry.MOST_SCHEMAS} schema ids; if values are not framed, set schema"
        )
    return schema_registry.schemas_of_ids(url, [row["id"] for row in rows])


def avro(raw: Column, known: AvroSchemas, options: dict[str, str]) -> Decoding:
    from pyspark.sql.avro.functions import from_avro

    from stratalog.spark.decode import DECODED, Decoding

    reader: Any = json.loads(known.reader)
    has_sentinel = options["mode"] == "PERMISSIVE" and isinstance(reader, dict) and reader.get("type") == "record"
    if has_sentinel:
        reader = reader | {"fields": [*reader["fields"], {"name": _SENTINEL, "type": "int", "default": 1}]}
    options = options | {"avroSchema": json.dumps(reader)}
    if known.writers is None:
        decoded = from_avro(raw, known.reader, options)
    else:
        decoded = _by_id(raw, known.writers, options)
    value = f.col(DECODED)
    if has_sentinel:
        return Decoding(decoded, value.isNull() | value[_SENTINEL].isNull(), value.dropFields(_SENTINEL))
    return Decoding(decoded, value.isNull() & f.lit(not _may_be_null(reader)), value)


def _by_id(raw: Column, writers: Mapping[int, str], options: dict[str, str]) -> Column:
    from pyspark.sql.avro.functions import from_avro

    is_framed, number, payload = framing.is_framed(raw), framing.schema_id(raw), framing.without_frame(raw)
    chosen: Column | None = None
    for known, writer in writers.items():
        is_this, decoded = is_framed & (number == known), from_avro(payload, writer, options)
        chosen = f.when(is_this, decoded) if chosen is None else chosen.when(is_this, decoded)
    assert chosen is not None
    if options["mode"] == "FAILFAST":
        unknown = f.concat(f.lit("a value has an unknown schema id: "), number.cast("string"))
        message = f.when(is_framed, unknown).otherwise("a value has no frame of a schema registry")
        chosen = chosen.when(raw.isNotNull(), f.raise_error(message))
    return chosen


def _may_be_null(reader: Any) -> bool:
    return reader == "null" or (isinstance(reader, list) and "null" in reader)


def _checked(schema: str, what: str) -> str:
    try:
        json.loads(schema)
    except (ValueError, TypeError):
        raise ConfigError(f"{what} is {str(schema)[:60]!r}; it must be an Avro schema in JSON") from None
    return schema
