"""The data sources of Spark: `stratalog`, for `format("stratalog")`, and one for jobs that plan their reads themselves.

Each process that plans, reads or writes creates them again from their options, so each method imports only what it
needs. Options are checked when a read or a write is planned: only then it is known which of the two it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from stratalog.spark import schema as schemas
from stratalog.spark.worker_process import freeze_modules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from stratalog.spark.read_options import ReadOptions

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


class PlannedDataSource(DataSource):
    """A data source whose options are Python objects, for jobs that have planned what to read.

    Spark passes options to a data source as strings. A job registers a class of its own instead, which carries the
    ReadOptions; Spark pickles the class.
    """

    source_name: ClassVar[str]
    read_options: ClassVar[ReadOptions]

    @classmethod
    def name(cls) -> str:
        return cls.source_name

    def schema(self) -> str:
        return schemas.ddl(self.read_options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from stratalog.spark.reader import StratalogBatchReader

        return StratalogBatchReader(self.read_options, schema)


def load_planned(spark: SparkSession, name: str, options: ReadOptions) -> DataFrame:
    """Return a frame that reads with these options.

    The session keeps one data source per name, so choose a name per job, and load one frame after the other.
    """
    attributes = {"source_name": name, "read_options": options}
    spark.dataSource.register(type("JobDataSource", (PlannedDataSource,), attributes))
    return spark.read.format(name).load()
