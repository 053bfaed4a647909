"""Expressions that make the columns of records (key, value, timestamp, headers, partition) from other columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.errors import ConfigError
from stratalog.pipelines.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

HEADERS_TYPE = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True)
class ColumnChoice:
    """SQL expressions over the existing columns. None means the column of that name, if it exists.

    With `value_as_json`, the value is a JSON object of all columns that are not used otherwise.
    """

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    value_as_json: bool = False
    keep_partitions: bool = False


def record_columns(frame: DataFrame, choice: ColumnChoice) -> dict[str, str]:
    """Return an expression for each column of a record. Raises ConfigError if no column can be the value."""
    existing = frame.columns
    used = {}
    key = choice.key or ("key" if "key" in existing else None)
    timestamp = choice.timestamp or ("timestamp" if "timestamp" in existing else None)
    if key is not None:
        used["key"] = as_bytes(frame, key, "key")
    used["value"] = _value(frame, choice, {key, timestamp})
    if timestamp is not None:
        used["timestamp"] = as_timestamp(frame, timestamp)
    if "headers" in existing and frame.schema["headers"].dataType.simpleString() == HEADERS_TYPE:
        used["headers"] = "headers"
    if choice.keep_partitions:
        if "partition" not in existing:
            raise ConfigError(
                f"partitions can't be kept (--keep-partitions): there is no column 'partition', only "
                f"{_listed(existing)}"
            )
        used["partition"] = "int(partition)"
    return used


def _value(frame: DataFrame, choice: ColumnChoice, used: set[str | None]) -> str:
    if choice.value_as_json:
        if choice.value is not None:
            raise ConfigError(f"value (--value) is {choice.value!r}, and --value-as-json is set too; use one of them")
        names = [name for name in frame.columns if name not in used]
        if not names:
            raise ConfigError(f"no column is left for the value; the columns are {_listed(frame.columns)}")
        return f"binary(to_json(struct({', '.join(_quoted(name) for name in names)})))"
    if choice.value is None and "value" not in frame.columns:
        raise ConfigError(
            f"there is no column 'value' among the columns {_listed(frame.columns)}; name one (--value), or use all "
            "columns as JSON (--value-as-json)"
        )
    return as_bytes(frame, choice.value or "value", "value")


def as_bytes(frame: DataFrame, expression: str, what: str) -> str:
    """Convert to bytes: binary stays, text becomes UTF-8, numbers their digits, and nested types JSON."""
    kind = _type_of(frame, expression, what).typeName()
    if kind == "binary":
        return f"({expression})"
    converted = f"binary({'to_json' if kind in ('struct', 'array', 'map') else 'string'}({expression}))"
    _type_of(frame, expression, what, converted)
    return converted


def as_timestamp(frame: DataFrame, expression: str) -> str:
    """Convert to a timestamp: a whole number is milliseconds since 1970, a date starts in the session's time zone."""
    kind = _type_of(frame, expression, "timestamp").typeName()
    if kind in ("timestamp", "timestamp_ntz", "date", "string"):
        return f"timestamp({expression})"
    if kind in ("long", "integer"):
        return f"timestamp_millis({expression})"
    raise ConfigError(
        f"timestamp (--timestamp) is {expression!r}, a {kind}; it must be a timestamp, a date, text or milliseconds"
    )


def _type_of(frame: DataFrame, expression: str, what: str, converted: str | None = None) -> DataType:
    """Return the type of the expression, or of `converted`, which contains it. It is selected next to all columns, so
    that Spark refuses an aggregate here."""
    from pyspark.errors import AnalysisException

    try:
        return frame.selectExpr("*", f"({converted or expression}) as it").schema.fields[-1].dataType
    except AnalysisException as error:
        raise ConfigError(
            f"{what} (--{what}) is {expression!r}, which is not a valid SQL expression over the columns "
            f"{_listed(frame.columns)}: {first_line(error)}"
        ) from error


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
