"""Loading files into a topic: key, value and timestamp of the records; each file is loaded once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stratalog.errors import ConfigError
from stratalog.pipelines import streams
from stratalog.pipelines.backfill import BackfillOptions, backfill, format_of
from stratalog.pipelines.cluster import ClusterAddress
from stratalog.pipelines.export import export
from stratalog.pipelines.progress import NoProgress
from stratalog.pipelines.record_columns import ColumnChoice, as_timestamp, record_columns
from stratalog.testing import BrokerProcess
from tests.pipelines.conftest import FilledTopic
from tests.pipelines.stopping import SetStop
from tests.pipelines.test_copy_topic import records_of


@pytest.mark.parametrize(
    ("path", "format", "expected"),
    [
        ("a/b.csv", None, "csv"),
        ("a/*.jsonl", None, "json"),
        ("warehouse/orders", None, "parquet"),
        ("x.csv", "json", "json"),
    ],
)
def test_format_is_derived_from_the_path_by_default(path: str, format: str | None, expected: str) -> None:
    assert format_of(path, format) == expected


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="the format is 'xls'"):
        format_of("x", "xls")


def test_exported_table_is_loaded_back_with_keys_and_times(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    source, target = filled_topic(30, partitions=2), filled_topic(0, partitions=2)
    export(spark, cluster, [source], str(tmp_path / "table"))
    options = BackfillOptions(columns=ColumnChoice(keep_partitions=True), state=str(tmp_path / "state"))
    done = backfill(spark, cluster, str(tmp_path / "table"), target, options)
    again = backfill(spark, cluster, str(tmp_path / "table"), target, options)
    assert (done.records, again.records) == (30, 0)
    before, after = records_of(cluster, source), records_of(cluster, target)
    content = [
        sorted((r.partition, r.key, r.value, r.timestamp, tuple(r.headers)) for r in records)
        for records in (before, after)
    ]
    assert content[0] == content[1]


def test_csv_lines_become_json_with_key_and_timestamp(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    topic = filled_topic(0)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "flights.csv").write_text("carrier,number,at\nUA,1,1767225600000\nAA,2,1767225600001\n")
    with pytest.raises(ConfigError, match=r"in can't be read as parquet.*set the format \(--format parquet\|csv"):
        backfill(spark, cluster, str(tmp_path / "in"), topic)
    columns = ColumnChoice(key="lower(carrier)", timestamp="bigint(at)", value_as_json=True)
    options = BackfillOptions("csv", columns, state=str(tmp_path / "state"))
    path = str(tmp_path / "in")
    expected = backfill(spark, cluster, path, topic, BackfillOptions("csv", columns, dry_run=True))
    assert (expected.records, list(expected.columns)) == (2, ["key", "value", "timestamp"])
    assert backfill(spark, cluster, path, topic, options).records == 2
    by_key = {record.key: record for record in records_of(cluster, topic)}
    assert by_key[b"aa"].timestamp == 1767225600001
    assert json.loads(by_key[b"ua"].value or b"") == {"carrier": "UA", "number": "1", "at": "1767225600000"}


def test_missing_topic_is_created_and_reported(
    spark: SparkSession, stratalog_new_broker: Callable[[], BrokerProcess], tmp_path: Path
) -> None:
    cluster = ClusterAddress(stratalog_new_broker().bootstrap_servers)
    (tmp_path / "in.csv").write_text("value\na\nb\n")
    options = BackfillOptions(state=str(tmp_path / "state"), partitions=3)
    source = str(tmp_path / "in.csv")
    expected = backfill(spark, cluster, source, "drinks", replace(options, dry_run=True))
    assert (expected.records, expected.created, expected.partitions) == (2, True, 3)
    with pytest.raises(ConfigError, match="not a valid SQL expression"):
        backfill(spark, cluster, source, "drinks", replace(options, columns=ColumnChoice(value="no_column")))
    with cluster.admin() as admin:
        assert admin.list_topics() == {}
    notes = Notes()
    done = backfill(spark, cluster, source, "drinks", options, progress=notes)
    assert (done.records, done.created, done.partitions) == (2, True, 3)
    assert notes.texts == ["created topic drinks with 3 partitions"]
    again = backfill(spark, cluster, source, "drinks", replace(options, partitions=None))
    assert (again.records, again.created, again.partitions) == (0, False, 3)
    with pytest.raises(ConfigError, match="topic 'drinks' has 3 partitions, not 2; leave the number out"):
        backfill(spark, cluster, source, "drinks", replace(options, partitions=2))


class Notes(NoProgress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_stopped_load_continues_with_the_remaining_and_new_files(
    spark: SparkSession,
    cluster: ClusterAddress,
    filled_topic: FilledTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_POLL_SECONDS", 0.01)
    topic, folder = filled_topic(0), tmp_path / "in"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.json").write_text(json.dumps({"value": number}))
    options = BackfillOptions("json", state=str(tmp_path / "state"), step_bytes=1, every=0.1)
    stopper = SetStop()
    first = backfill(spark, cluster, str(folder), topic, options, progress=stopper, stop=stopper.stop)
    assert 0 < first.records < 8
    assert backfill(spark, cluster, str(folder), topic, replace(options, dry_run=True)).goes_on
    (folder / "8.json").write_text(json.dumps({"value": 8}))
    second = backfill(spark, cluster, str(folder), topic, replace(options, step_bytes=1000, every=None))
    assert first.records + second.records == 9
    assert sorted(record.value or b"" for record in records_of(cluster, topic)) == [b"%d" % n for n in range(9)]


def test_ambiguous_or_invalid_columns_are_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "id int, name string")
    with pytest.raises(ConfigError, match="there is no column 'value' among the columns id, name"):
        record_columns(frame, ColumnChoice())
    with pytest.raises(ConfigError, match="use one of them"):
        record_columns(frame, ColumnChoice(value="name", value_as_json=True))
    with pytest.raises(ConfigError, match="there is no column 'partition'"):
        record_columns(frame, ColumnChoice(value="name", keep_partitions=True))
    with pytest.raises(
        ConfigError,
        match=r"value \(--value\) is 'nam', which is not a valid SQL expression over the columns id, name: A col",
    ):
        record_columns(frame, ColumnChoice(value="nam"))
    with pytest.raises(ConfigError, match="is 'id = 1', a boolean"):
        as_timestamp(frame, "id = 1")


def test_columns_become_bytes_by_their_type(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(7, "é", bytearray(b"\xff"), [1])], "n int, s string, b binary, a array<int>")
    for name, expected in {"n": b"7", "s": "é".encode(), "b": b"\xff", "a": b"[1]"}.items():
        columns = record_columns(frame, ColumnChoice(value=name))
        (row,) = frame.selectExpr(f"{columns['value']} as value").collect()
        assert bytes(row.value) == expected
