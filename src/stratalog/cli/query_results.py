"""The rows of a query, printed as a table, JSON or CSV, or in files that Spark writes.

Bytes are text if they are printable UTF-8, otherwise 0x and hex. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from stratalog.cli.output import QUIET, Output
from stratalog.cli.program import CommandError, writing_to_stdout
from stratalog.cli.wording import decode_bytes, pluralize
from stratalog.pipelines.parquet_times import utc_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

TABLE, JSON, CSV, PARQUET = "table", "json", "csv", "parquet"
PRINTED_FORMATS = (TABLE, JSON, CSV)
FORMATS = (*PRINTED_FORMATS, PARQUET)
MOST_TABLE_ROWS = 1000
_WIDEST = 80


def check_format(name: str, path: str | None, known: tuple[str, ...] = FORMATS) -> None:
    if name not in known:
        raise CommandError(f"--format is {name!r}; it must be one of: {', '.join(known)}")
    if name == PARQUET and path is None:
        raise CommandError("--format parquet needs --output DIR, because Parquet can't be printed")
    if name == TABLE and path is not None:
        raise CommandError("--output needs --format json, csv or parquet, because a table is for the screen")


def show(frame: DataFrame, name: str, waiting: AbstractContextManager[None] | None = None) -> None:
    """Print the rows. `waiting` is entered while Spark runs and nothing is printed."""
    output, types = Output(), [field.dataType for field in frame.schema]
    if name == TABLE:
        with waiting or nullcontext():
            rows = frame.limit(MOST_TABLE_ROWS + 1).collect()
        shown = rows[:MOST_TABLE_ROWS]
        cells = [[_table_cell(cell, kind) for cell, kind in zip(row, types, strict=True)] for row in shown]
        output.table(frame.schema.names, cells)
        has_more = len(rows) > len(shown)
        more = f"only the first {MOST_TABLE_ROWS:,} rows; --format json or csv has all"
        output.line((more if has_more else pluralize(len(rows), "row"), QUIET))
        return
    if name == CSV:
        output.csv(frame.columns)
    for row in frame.toLocalIterator():
        if name == JSON:
            output.json(_plain(row, frame.schema))
        else:
            output.csv(None if cell is None else _text(cell, kind) for cell, kind in zip(row, types, strict=True))


def show_plan(plan: str) -> None:
    with writing_to_stdout():
        sys.stdout.write(plan.rstrip("\n") + "\n")


def write(frame: DataFrame, name: str, path: str) -> None:
    """Write files, as many as Spark has tasks. CSV has no bytes: they are written as text."""
    from pyspark.errors import AnalysisException

    try:
        if name == CSV:
            columns = [
                f"string(`{field.name}`) as `{field.name}`"
                if field.dataType.typeName() == "binary"
                else f"`{field.name}`"
                for field in frame.schema
            ]
            frame.selectExpr(*columns).write.option("header", "true").csv(path)
        else:
            with utc_times(frame.sparkSession):
                frame.write.format(name).save(path)
    except AnalysisException as error:
        if error.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        raise CommandError(f"--output {path} already exists; name another folder, or remove it") from None


def _table_cell(value: object, kind: DataType) -> object:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    text = _text(value, kind)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _text(value: object, kind: DataType) -> str:
    plain = _plain(value, kind)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _plain(value: Any, kind: Any) -> Any:
    """Return a value as JSON has it. `kind` is its type in Spark, with the types of its parts."""
    if isinstance(value, bytes | bytearray):
        text, encoding = decode_bytes(bytes(value))
        return text if encoding == "utf-8" else f"0x{text}"
    if isinstance(value, datetime) and kind.typeName() == "timestamp":
        return value.astimezone(UTC).isoformat()  # PySpark returns this machine's time, without a zone
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "asDict"):  # a Row
        return {field.name: _plain(cell, field.dataType) for cell, field in zip(value, kind, strict=True)}
    if isinstance(value, dict):
        return {str(_plain(name, kind.keyType)): _plain(cell, kind.valueType) for name, cell in value.items()}
    if isinstance(value, list):
        return [_plain(cell, kind.elementType) for cell in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
