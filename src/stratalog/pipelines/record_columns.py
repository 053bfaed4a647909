"""The columns of records, made of any others: what becomes key, value, timestamp, headers and partition."""

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
    """Expressions in SQL, over the columns there are; None: the column of that name, if there is one.
    `value_as_json`: the value is a JSON object of all columns that are not used otherwise."""

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    value_as_json: bool = False
    keep_partitions: bool = False


def record_columns(frame: DataFrame, choice: ColumnChoice) -> dict[str, str]:
    """An expression for each column of a record. Raises ConfigError where nothing says what the value is."""
    there = frame.columns
    used = {}
    key = choice.key or ("key" if "key" in there else None)
    timestamp = choice.timestamp or ("timestamp" if "timestamp" in there else None)
    if key is not None:
        used["key"] = as_bytes(frame, key, "key")
    used["value"] = _value(frame, choice, {key, timestamp})
    if timestamp is not None:
        used["timestamp"] = as_timestamp(frame, timestamp)
    if "headers" in there and frame.schema["headers"].dataType.simpleString() == HEADERS_TYPE:
        used["headers"] = "headers"
    if choice.keep_partitions:
        if "partition" not in there:
            raise ConfigError(
                f"partitions can't be kept (--keep-partitions): there is no column 'partition', only {_listed(there)}"
            )
        used["partition"] = "int(partition)"
    return used


def _value(frame: DataFrame, choice: ColumnChoice, used: set[str | None]) -> str:
    if choice.value_as_json:
        if choice.value is not None:
            raise ConfigError(
                f"value (--value) is {choice.value!r}, and --value-as-json is given too; give one of them"
            )
        names = [name for name in frame.columns if name not in used]
        if not names:
            raise ConfigError(f"no column is left for the value; the columns are {_listed(frame.columns)}")
        return f"binary(to_json(struct({', '.join(_quoted(name) for name in names)})))"
    if choice.value is None and "value" not in frame.columns:
        what = f"nothing says what the value is: the columns are {_listed(frame.columns)}, and none is called 'value'"
        raise ConfigError(f"{what}; name one (--value), or take all as JSON (--value-as-json)")
    return as_bytes(frame, choice.value or "value", "value")


def as_bytes(frame: DataFrame, expression: str, what: str) -> str:
    """Binary as it is, text as UTF-8, numbers as their digits, and what has parts as JSON."""
    kind = _type_of(frame, expression, what).typeName()
    if kind == "binary":
        return f"({expression})"
    whole = f"binary({'to_json' if kind in ('struct', 'array', 'map') else 'string'}({expression}))"
    _type_of(frame, expression, what, whole)
    return whole


def as_timestamp(frame: DataFrame, expression: str) -> str:
    """A time as it is, a whole number as milliseconds since 1970, a day as its first moment in the session's zone."""
    kind = _type_of(frame, expression, "timestamp").typeName()
    if kind in ("timestamp", "timestamp_ntz", "date", "string"):
        return f"timestamp({expression})"
    if kind in ("long", "integer"):
        return f"timestamp_millis({expression})"
    raise ConfigError(
        f"timestamp (--timestamp) is {expression!r}, a {kind}; a time, a day, text or milliseconds are wanted"
    )


def _type_of(frame: DataFrame, expression: str, what: str, whole: str | None = None) -> DataType:
    """Of the expression, or of `whole` that is made of it. Beside all columns: so an aggregate, which has no place in a
    record, is refused here."""
    from pyspark.errors import AnalysisException

    try:
        return frame.selectExpr("*", f"({whole or expression}) as it").schema.fields[-1].dataType
    except AnalysisException as error:
        raise ConfigError(
            f"{what} (--{what}) is {expression!r}, which is no SQL expression over the columns "
            f"{_listed(frame.columns)}: {first_line(error)}"
        ) from error


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
