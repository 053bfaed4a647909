"""Avro for from_stratalog: one schema for all values, or a schema by the id in each value's frame."""

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

# A field that no writer has and whose default every reader fills in: it is null only where decoding failed. Spark's own
# answer to a bad value is a row of nulls, which a good one can be as well.
_SENTINEL = "__stratalog_decoded"


@dataclass(frozen=True)
class AvroSchemas:
    """`reader`: what values are read as. `writers`: what they were written as, by id; None: the same, unframed."""

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
        raise ConfigError(f"schema is a {type(schema).__name__}; for format avro it must be Avro's, in JSON")
    if schemas is not None and registry is not None:
        raise ConfigError("schemas and registry are both given; give one")
    if subject is not None and registry is None:
        raise ConfigError(f"subject is {subject!r}, and registry is not given; give its URL")
    if schemas is None and registry is None:
        if schema is None:
            raise ConfigError("schema is missing: give Avro's in JSON, or schemas by id, or the URL of a registry")
        if framed:
            raise ConfigError("framed values have ids of schemas; give schemas, or registry")
        return AvroSchemas(_checked(schema, "schema"), None)
    if framed is False:
        raise ConfigError("framed is False, and schemas by id are given; without frames there are no ids")
    writers = dict(schemas) if schemas is not None else _fetch(df, raw, str(registry), subject)
    if not 1 <= len(writers) <= schema_registry.MOST_SCHEMAS:
        raise ConfigError(f"{len(writers)} schemas are given or found; it must be 1 to {schema_registry.MOST_SCHEMAS}")
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
            "a stream's schemas can't be looked for in its data; give subject, usually the topic's name with -value"
        )
    number = framing.schema_id(raw).alias("id")
    rows = df.where(framing.is_framed(raw)).select(number).distinct().limit(schema_registry.MOST_SCHEMAS + 1).collect()
    if not rows:
        raise ConfigError("no value is framed, so none has the id of a schema; give schema, and leave registry out")
    if len(rows) > schema_registry.MOST_SCHEMAS:
        raise ConfigError(
            f"there are more than {schema_registry.MOST_SCHEMAS} ids of schemas; are values framed? give schema if not"
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
        unknown = f.concat(f.lit("a value has a schema id that was not given: "), number.cast("string"))
        complaint = f.when(is_framed, unknown).otherwise("a value has no frame of a schema registry")
        chosen = chosen.when(raw.isNotNull(), f.raise_error(complaint))
    return chosen


def _may_be_null(reader: Any) -> bool:
    return reader == "null" or (isinstance(reader, list) and "null" in reader)


def _checked(schema: str, what: str) -> str:
    try:
        json.loads(schema)
    except (ValueError, TypeError):
        raise ConfigError(f"{what} is {str(schema)[:60]!r}; it must be an Avro schema in JSON") from None
    return schema
