"""The data source `stratalog`: what Spark asks for by `format("stratalog")`, put together from the parts.

It is made again in each process that plans, reads or writes, from its options alone, so it imports what a method needs
in that method. Options are checked when a read or a write is planned, as it is known only then which it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from stratalog.spark import schema as schemas
from stratalog.spark.worker_memory import settle

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

NAME = "stratalog"


class StratalogDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        from stratalog.spark.options import includes_headers

        found = schemas.ddl(includes_headers(self.options))
        settle()
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        from stratalog.spark.options import batch_options
        from stratalog.spark.push_down import batch_reader

        return batch_reader(batch_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from stratalog.spark.options import stream_options
        from stratalog.spark.stream import StratalogStreamReader

        return StratalogStreamReader(stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from stratalog.spark.writer import StratalogWriter

        return StratalogWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        from stratalog.spark.stream_writer import StratalogStreamWriter

        return StratalogStreamWriter(self.options, schema)
