"""Exports of topics to a table: each record once, through steps, merges and interrupted runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from stratalog.client import Admin, TopicPartition
from stratalog.errors import ConfigError, OffsetOutOfRangeError, StorageError
from stratalog.pipelines.cluster import ClusterAddress
from stratalog.pipelines.export import Exported, ExportOptions, export
from stratalog.pipelines.table_files import HadoopFiles, LocalFiles, table_files
from tests.pipelines.conftest import HOUR_MS, START_MS, FilledTopic
from tests.pipelines.stopping import StopAfter, StoppedError


def rows(spark: SparkSession, table: Path) -> list[tuple[object, ...]]:
    frame = spark.read.parquet(str(table)).selectExpr(
        "topic", "partition", "offset", "string(key)", "string(value)", "string(date)", "string(headers[0].value)"
    )
    return sorted(tuple(row) for row in frame.collect())


def test_table_has_each_record_once_by_topic_and_day(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    topic = filled_topic(50, partitions=2)
    table = tmp_path / "table"
    # The first run is stopped, the second continues, the third has nothing to do. Small steps make files to merge.
    options = ExportOptions(step_records=15, merge_from=3)
    with pytest.raises(StoppedError):
        export(spark, cluster, [topic], str(table), options, progress=StopAfter(2))
    expected = export(spark, cluster, [topic], str(table), ExportOptions(dry_run=True, step_records=15))
    done = export(spark, cluster, [topic], str(table), options)
    assert (expected.records, expected.steps) == (done.records, done.steps) == (22, 2)
    assert done.merged_files >= 3
    assert export(spark, cluster, [topic], str(table)) == Exported()
    exported = rows(spark, table)
    assert [(row[1], row[2]) for row in exported] == [(p, offset) for p in range(2) for offset in range(25)]
    assert exported[1] == (topic, 0, 1, "key-2", "value-2", "2026-01-01", "2")
    assert sorted(path.name for path in (table / f"topic={topic}").iterdir()) == [
        "date=2025-12-31",
        "date=2026-01-01",
        "date=2026-01-02",
    ]


def test_times_are_utc_for_every_reader_of_parquet(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    topic, table = filled_topic(30), tmp_path / "table"
    export(spark, cluster, [topic], str(table), ExportOptions(step_records=10, merge_from=2))
    utc = pa.timestamp("us", tz="UTC")
    assert {pq.read_schema(path).field("timestamp").type for path in table.rglob("*.parquet")} == {utc}
    expected = [START_MS + n * HOUR_MS for n in range(30)]
    readers = {
        "pyarrow.parquet": pq.read_table(table),
        "pyarrow.dataset": pa_dataset.dataset(table, partitioning="hive").to_table(),
        # All files below the folder, for readers that do not skip hidden names.
        "each file": pa.concat_tables(pq.ParquetFile(path).read() for path in table.rglob("*") if path.is_file()),
        "pandas": pa.table({"timestamp": pd.read_parquet(table)["timestamp"].astype("datetime64[us, UTC]")}),
    }
    for reader, contents in readers.items():
        times = sorted(int(time.timestamp() * 1000) for time in contents["timestamp"].to_pylist())
        assert times == expected, reader
    assert spark.read.parquet(str(table)).count() == 30
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"  # the session's own setting is restored


def test_records_deleted_before_their_export_are_an_error(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    topic = filled_topic(4)
    export(spark, cluster, [topic], str(tmp_path))
    filled_topic(6, name=topic)
    with Admin(cluster.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 7}).check()
    with pytest.raises(OffsetOutOfRangeError, match=rf"3 records of {topic}-0 were deleted"):
        export(spark, cluster, [topic], str(tmp_path))
    assert export(spark, cluster, [topic], str(tmp_path), ExportOptions(allow_data_loss=True)) == Exported(3, 1, 0, 3)


def test_topic_that_was_created_again_is_refused(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    topic = filled_topic(2)
    export(spark, cluster, [topic], str(tmp_path))
    with Admin(cluster.bootstrap_servers) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 1)
    with pytest.raises(StorageError, match="was deleted and created again"):
        export(spark, cluster, [topic], str(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ExportOptions(step_records=0), "step_records is 0"),
        (ExportOptions(every=0), "every is 0"),
    ],
)
def test_bad_options_are_refused_by_name(
    spark: SparkSession, cluster: ClusterAddress, tmp_path: Path, options: ExportOptions, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        export(spark, cluster, ["orders"], str(tmp_path), options)


def test_address_without_a_file_system_in_spark_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"ftps://host/table: Spark has no file system for .*\(--conf\)"):
        table_files(spark, "ftps://host/table")


def test_hadoop_files_behave_like_local_files(spark: SparkSession, tmp_path: Path) -> None:
    files = HadoopFiles(spark, f"file://{tmp_path}")
    files.make_folder("_home")
    (tmp_path / "_file").touch()
    for other in (files, LocalFiles(tmp_path)):
        with pytest.raises(StorageError, match=r"_file/below: is not writable \(.*; name another folder"):
            other.make_folder("_file/below")
    files.create("_home/one.json", b"content \xff")
    with pytest.raises(FileExistsError):
        files.create("_home/one.json", b"other")
    assert files.read("_home/one.json") == b"content \xff"
    assert files.read("_home/two.json") is None
    files.move("_home/one.json", "a/b/two.json")
    files.move("_home/one.json", "a/b/two.json")  # repeating it is allowed
    assert [(file.path, file.size) for file in files.files("")] == [("a/b/two.json", 9)]
    assert files.folders("a") == ["b"]
    files.delete("a")
    files.delete("a")
    assert files.files("a") == []
    assert files.folders("a") == []
    assert files.exists("_file")
    for other in (HadoopFiles(spark, f"file://{tmp_path}/orders"), LocalFiles(tmp_path / "orders")):
        assert other.sibling() == "../.orders.stratalog"
        assert other.display_path("../.orders.stratalog").endswith(f"{tmp_path}/.orders.stratalog")
    assert HadoopFiles(spark, "file:///orders").sibling() is None  # as in a bucket: the table has no parent folder
