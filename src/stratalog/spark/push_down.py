"""Batch readers that accept Spark's filters, for the option `pushFilters`.

This is not the default. Up to Spark 4.3.0 at least, Spark stores pushed filters with the loaded frame
(PythonDataSourceV2.readInfo) and not with the scan. Every other use of that frame, even in the same query, then reads
only the rows of the last filter: after `frame.where("offset < 2")`, `frame.count()` is 2. So push-down is for frames
that are used once.

Spark calls `pushFilters` only if spark.sql.python.filterPushdown.enabled is on, as in sessions of
`stratalog.spark.session`. If it is off, Spark fails a query whose reader overrides the method.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import Filter

from stratalog.spark.predicate import from_filters
from stratalog.spark.reader import StratalogBatchReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from stratalog.spark.read_options import ReadOptions


def batch_reader(options: ReadOptions, schema: StructType) -> StratalogBatchReader:
    return PushDownReader(options, schema) if options.push_filters else StratalogBatchReader(options, schema)


class PushDownReader(StratalogBatchReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        return push(self, filters)


def push(reader: StratalogBatchReader, filters: list[Filter]) -> list[Filter]:
    """Add the filters to the reader's predicate. Return those that Spark still has to apply."""
    predicate, remaining = from_filters(filters)
    reader.request = replace(reader.request, predicate=reader.request.predicate & predicate)
    return remaining
