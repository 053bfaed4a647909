"""Spark's plan of a query, with readable pushed-down filters.

Spark prints the bytes of a filter as a Java address: [B@1f2e3d. This module reads the values from the filters instead.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PUSHED = re.compile(r"PushedFilters: \[.*\]")


def explained(frame: DataFrame) -> str:
    execution = frame._jdf.queryExecution()
    jvm: Any = frame.sparkSession._jvm
    plan = str(jvm.PythonSQLUtils.explainString(execution, "formatted"))
    if "[B@" not in plan:
        return plan
    try:
        (filters,) = [_filters(leaf.scan()) for leaf in _list(execution.sparkPlan().collectLeaves()) if _is_scan(leaf)]
    except (Py4JError, ValueError):
        return plan  # the internals of this Spark version differ
    return _PUSHED.sub(lambda _: f"PushedFilters: [{', '.join(map(_text, filters))}]", plan)


def _is_scan(leaf: Any) -> bool:
    return str(leaf.getClass().getSimpleName()) == "BatchScanExec"


def _filters(scan: Any) -> list[Any]:
    """Return the pushed filters of a Python source's scan, which are in a private field."""
    for field in scan.getClass().getDeclaredFields():
        if str(field.getType().getSimpleName()) == "Filter[]":
            field.setAccessible(True)
            return list(field.get(scan))
    return []


def _list(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _text(part: Any) -> str:
    """Format a filter or a part of it: EqualTo(key, 'ada'), In(key, ['ada', X'00FF'])."""
    if isinstance(part, bytes | bytearray):
        return _bytes(bytes(part))
    if not hasattr(part, "getClass"):
        return repr(part) if isinstance(part, str) else str(part)
    if part.getClass().isArray():
        return f"[{', '.join(map(_text, part))}]"
    if not str(part.getClass().getName()).startswith("org.apache.spark.sql.sources."):
        return str(part.toString())
    parts = [part.productElement(index) for index in range(part.productArity())]
    name = [str(parts.pop(0))] if isinstance(parts[0], str) else []
    return f"{part.productPrefix()}({', '.join([*name, *map(_text, parts)])})"


def _bytes(value: bytes) -> str:
    text = value.decode(errors="replace")
    return repr(text) if text.isprintable() and "\ufffd" not in text else f"X'{value.hex().upper()}'"
