"""Batch readers that take Spark's filters, where the option `pushFilters` asks for it.

Not by default: up to Spark 4.3.0 at least, what a filter was pushed into is kept with the frame that was loaded
(PythonDataSourceV2.readInfo), and not with the scan. Each other use of that frame, in the same query too, then reads
what the last filter left: `frame.where("offset < 2")`, and `frame.count()` is 2. So it is for who uses a frame once.

Spark calls `pushFilters` only while spark.sql.python.filterPushdown.enabled is on (`stratalog.spark.session` sets it),
and fails a query whose reader overrides it while that is off.
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
    """Narrow what the reader asks for; the filters that Spark still has to apply."""
    predicate, left = from_filters(filters)
    reader.request = replace(reader.request, predicate=reader.request.predicate & predicate)
    return left
