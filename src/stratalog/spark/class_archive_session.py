"""The session whose classes are archived (class_archive.py). It runs a few typical queries, and then waits until Java
exits, because Java writes the archive at its exit. Run as a module, in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from stratalog.spark.schema import ALL_COLUMNS, arrow_schema, ddl
from stratalog.spark.session import session


class FewRecords(DataSource):
    """A data source like `stratalog`, but without a broker."""

    @classmethod
    def name(cls) -> str:
        return "stratalog-few-records"

    def schema(self) -> str:
        return ddl(include_headers=True)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return FewRecordsReader()


class FewRecordsReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        row = {"key": b"k", "value": b"v", "topic": "t", "partition": partition.value, "offset": 0, "headers": []}
        yield pa.RecordBatch.from_pylist([row], schema=arrow_schema(ALL_COLUMNS))


def main() -> None:
    spark = session("local[2]")
    spark.dataSource.register(FewRecords)
    _work(spark)
    gateway = spark.sparkContext._gateway
    spark.stop()
    assert gateway is not None
    java = gateway.proc
    java.stdin.close()
    java.wait()


def _work(spark: SparkSession) -> None:
    records = spark.read.format(FewRecords.name()).load()
    assert records.count() == 2
    records.createOrReplaceTempView("records")
    sql = "SELECT partition, count(*), max(string(value)) FROM records WHERE offset >= 0 GROUP BY partition ORDER BY 1"
    assert len(spark.sql(sql).collect()) == 2
    with tempfile.TemporaryDirectory() as directory:
        records.write.partitionBy("topic").parquet(f"{directory}/table")
        assert spark.read.parquet(f"{directory}/table").limit(5).count() == 2


if __name__ == "__main__":
    main()
