"""The data source `stratalog`, which Spark uses for `format("stratalog")`.

Each process that plans, reads or writes creates it again from its options, so each method imports only what it needs.
Options are checked when a read or a write is planned: only then it is known which of the two it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from stratalog.spark import schema as schemas
from stratalog.spark.worker_memory import freeze_modules

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

        columns = schemas.ddl(includes_headers(self.options))
        freeze_modules()
        return columns

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
