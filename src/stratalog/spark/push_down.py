"""Batch readers that take Spark's filters, where the session pushes them down.

Spark calls `pushFilters` only while spark.sql.python.filterPushdown.enabled is on (`stratalog.spark.session` sets it),
and fails a query whose reader overrides it while that is off. Most want neither an option nor an error: their reader
offers the method without overriding it. `pushFilters=true` demands it, and gets Spark's error where the session does
not allow it; `pushFilters=false` leaves all filters to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter

from stratalog.spark.predicate import from_filters
from stratalog.spark.reader import StratalogBatchReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from stratalog.spark.options import ReadOptions


def batch_reader(options: ReadOptions, schema: StructType) -> StratalogBatchReader:
    if options.push_filters is None:
        return OfferingReader(options, schema)
    return PushDownReader(options, schema) if options.push_filters else StratalogBatchReader(options, schema)


class PushDownReader(StratalogBatchReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        return push(self, filters)


class OfferingReader(StratalogBatchReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.pushFilters = _Offer(self)  # type: ignore[method-assign]


class _Offer:
    """Spark tells an override by the method's function (plan_data_source_read.py): this is the base class's."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: StratalogBatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return push(self._reader, filters)


def push(reader: StratalogBatchReader, filters: list[Filter]) -> list[Filter]:
    """Narrow what the reader asks for; the filters that Spark still has to apply."""
    predicate, left = from_filters(filters)
    reader.request = replace(reader.request, predicate=reader.request.predicate & predicate)
    return left
