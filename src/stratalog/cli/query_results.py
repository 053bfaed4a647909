"""The rows of a query: for people as a table, for programs as JSON or CSV, on stdout; or in files that Spark writes.

Bytes are text where they are UTF-8 that can be printed, else 0x and hex. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import csv
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from stratalog.cli import wording
from stratalog.cli.output import QUIET, Output
from stratalog.cli.program import CommandError, writing
from stratalog.cli.tables import print_table
from stratalog.pipelines.parquet_times import utc_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

TABLE, JSON, CSV, PARQUET = "table", "json", "csv", "parquet"
PRINTED_FORMATS = (TABLE, JSON, CSV)
FORMATS = (*PRINTED_FORMATS, PARQUET)
MOST_TABLE_ROWS = 1000
_WIDEST = 80


def check_format(given: str, path: str | None, known: tuple[str, ...] = FORMATS) -> None:
    if given not in known:
        raise CommandError(f"--format is {given!r}; it must be one of: {', '.join(known)}")
    if given == PARQUET and path is None:
        raise CommandError("--format parquet needs --output DIR: it is no text that could be printed")
    if given == TABLE and path is not None:
        raise CommandError("--output needs --format json, csv or parquet: a table is for the screen")


def show(frame: DataFrame, given: str, waiting: AbstractContextManager[None] | None = None) -> None:
    """`waiting`: entered while Spark works and nothing is printed."""
    if given == TABLE:
        with waiting or nullcontext():
            rows = frame.limit(MOST_TABLE_ROWS + 1).collect()
        _show_table(Output(), frame.schema, [list(row) for row in rows])
    elif given == JSON:
        for row in frame.toLocalIterator():
            with writing():
                sys.stdout.write(json.dumps(_as_json(row, frame.schema)) + "\n")
    else:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        with writing():
            writer.writerow(frame.columns)
        for row in frame.toLocalIterator():
            with writing():
                cells = zip(row, frame.schema, strict=True)
                writer.writerow(["" if cell is None else _as_text(cell, field.dataType) for cell, field in cells])


def show_plan(plan: str) -> None:
    with writing():
        sys.stdout.write(plan.rstrip("\n") + "\n")


def write(frame: DataFrame, given: str, path: str) -> None:
    """In files, as many as Spark has tasks. CSV has no bytes: they are written as text there."""
    from pyspark.errors import AnalysisException

    try:
        _write(frame, given, path)
    except AnalysisException as error:
        if error.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        raise CommandError(f"--output {path} is there already; name another folder, or remove it") from None


def _write(frame: DataFrame, given: str, path: str) -> None:
    if given == CSV:
        texts = [
            f"string(`{field.name}`) as `{field.name}`" if field.dataType.typeName() == "binary" else f"`{field.name}`"
            for field in frame.schema
        ]
        frame.selectExpr(*texts).write.option("header", "true").csv(path)
    else:
        with utc_times(frame.sparkSession):
            frame.write.format(given).save(path)


def _show_table(output: Output, schema: StructType, rows: list[list[object]]) -> None:
    shown = [
        [_cell(cell, field.dataType) for cell, field in zip(row, schema, strict=True)] for row in rows[:MOST_TABLE_ROWS]
    ]
    print_table(output, schema.names, shown)
    if len(rows) > MOST_TABLE_ROWS:
        output.line((f"only the first {MOST_TABLE_ROWS:,} rows; --format json or csv has all", QUIET))
    else:
        output.line((wording.plural(len(rows), "row"), QUIET))


def _cell(value: object, kind: DataType) -> object:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    text = _as_text(value, kind)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _as_text(value: object, kind: DataType) -> str:
    plain = _as_json(value, kind)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _as_json(value: Any, kind: Any) -> Any:
    """`kind`: Spark's type of it, with those of its parts."""
    if isinstance(value, bytes | bytearray):
        text, encoding = wording.encoded(bytes(value))
        return text if encoding == "utf-8" else f"0x{text}"
    if isinstance(value, datetime) and kind.typeName() == "timestamp":
        return value.astimezone(UTC).isoformat()  # PySpark gives it in this machine's zone, and does not say so
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "asDict"):  # a Row
        return {field.name: _as_json(cell, field.dataType) for cell, field in zip(value, kind, strict=True)}
    if isinstance(value, dict):
        return {str(_as_json(name, kind.keyType)): _as_json(cell, kind.valueType) for name, cell in value.items()}
    if isinstance(value, list):
        return [_as_json(cell, kind.elementType) for cell in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
