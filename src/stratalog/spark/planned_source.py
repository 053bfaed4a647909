"""A data source whose options are Python objects, for jobs that have planned what to read.

Spark passes options to a data source as strings. A job registers a class of its own instead, which carries the
ReadOptions; Spark pickles the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader

from stratalog.spark import schema as schemas
from stratalog.spark.read_options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class PlannedDataSource(DataSource):
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


def load(spark: SparkSession, name: str, options: ReadOptions) -> DataFrame:
    """Return a frame that reads with these options.

    The session keeps one data source per name, so choose a name per job, and load one frame after the other.
    """
    attributes = {"source_name": name, "read_options": options}
    spark.dataSource.register(type("JobDataSource", (PlannedDataSource,), attributes))
    return spark.read.format(name).load()
