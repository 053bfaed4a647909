"""Topics as views: created when a query names them; filters are pushed down to the scan."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

from stratalog.errors import UnknownTopicError
from stratalog.pipelines.cluster import ClusterAddress
from stratalog.pipelines.query import query
from tests.pipelines.conftest import PUSH_DOWN, FilledTopic


def test_topic_with_dots_is_a_view_in_backquotes(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic
) -> None:
    topic = filled_topic(20, partitions=2)
    sql = f"SELECT partition, count(*) AS records FROM `{topic}` GROUP BY partition ORDER BY partition"
    assert [tuple(row) for row in query(spark, cluster, sql).collect()] == [(0, 10), (1, 10)]


def test_conditions_on_key_and_time_reach_the_scan(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic
) -> None:
    topic = filled_topic(40)
    spark.conf.set(PUSH_DOWN, "true")
    sql = f"""SELECT offset, string(value) FROM `{topic}`
              WHERE key = 'key-3' AND timestamp >= '2026-01-01' ORDER BY offset"""
    frame = query(spark, cluster, sql, runs_once=True)
    left_to_spark = frame._jdf.queryExecution().executedPlan().toString()
    assert [tuple(row) for row in frame.collect()] == [
        (3, "value-3"),
        (13, "value-13"),
        (23, "value-23"),
        (33, "value-33"),
    ]
    assert "BatchScan" in left_to_spark
    assert "Filter (" not in left_to_spark


def test_topics_can_be_joined_and_used_in_subqueries(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic
) -> None:
    first, second = filled_topic(5), filled_topic(7)
    sql = f"""SELECT count(*), max(b.value) FROM `{first}` a JOIN `{second}` b USING (key)
              WHERE a.partition IN (SELECT min(partition) FROM `{second}` WHERE size(headers) = 1)"""
    assert tuple(query(spark, cluster, sql).collect()[0]) == (5, b"value-4")
    assert query(spark, cluster, f"SELECT count(*) FROM `{second}`").collect()[0][0] == 7


def test_topic_that_is_named_twice_is_not_narrowed_by_either_filter(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic
) -> None:
    topic = filled_topic(40)
    spark.conf.set(PUSH_DOWN, "true")
    sql = f"""WITH t AS (SELECT * FROM `{topic}`)
              SELECT offset FROM t WHERE offset < 2 UNION ALL SELECT offset FROM t WHERE offset > 36 ORDER BY 1"""
    assert [row[0] for row in query(spark, cluster, sql, runs_once=True).collect()] == [0, 1, 37, 38, 39]


def test_unknown_topic_is_reported_with_the_existing_topics(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic
) -> None:
    topic = filled_topic(1)
    with pytest.raises(UnknownTopicError, match=rf"there is no topic or view 'nothing'.*{topic}"):
        query(spark, cluster, "SELECT * FROM nothing")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {} SELECT * FROM {}",
        "INSERT INTO {} VALUES (1, 2)",
        "INSERT OVERWRITE {} SELECT 1",
        "UPDATE {} SET key = 'a'",
        "DELETE FROM {} WHERE offset < 3",
        "TRUNCATE TABLE {}",
        "DROP TABLE {}",
        "MERGE INTO {} a USING {} b ON a.key = b.key WHEN MATCHED THEN DELETE",
        "ALTER TABLE {} ADD COLUMN x int",
    ],
)
def test_statements_that_change_a_topic_are_refused(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, statement: str
) -> None:
    topic = f"`{filled_topic(1, name='changed')}`"
    with pytest.raises(
        UnknownTopicError, match=r"there is no table 'changed'; queries can only read topics \(SELECT\)"
    ):
        query(spark, cluster, statement.format(topic, topic))


def test_mistyped_topic_gets_a_suggestion(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic
) -> None:
    topic = filled_topic(1)
    with pytest.raises(UnknownTopicError, match=rf"did you mean '{topic}'\? Topics are: "):
        query(spark, cluster, f"SELECT * FROM `{topic}s`")


def test_name_with_dots_needs_backquotes(spark: SparkSession, cluster: ClusterAddress) -> None:
    with pytest.raises(UnknownTopicError, match=r"in backquotes: `a\.b`"):
        query(spark, cluster, "SELECT * FROM a.b")


def test_faulty_sql_raises_sparks_errors(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic
) -> None:
    topic = filled_topic(1)
    with pytest.raises(ParseException):
        query(spark, cluster, "SELEKT 1")
    with pytest.raises(AnalysisException, match="no_such_column"):
        query(spark, cluster, f"SELECT no_such_column FROM `{topic}`")
    assert not spark.catalog.tableExists(f"`{topic}`")  # the next query creates the view again


def test_command_runs_once(spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic) -> None:
    topic = filled_topic(3)
    spark.conf.set(PUSH_DOWN, "true")
    try:
        query(spark, cluster, f"CREATE TEMPORARY VIEW copy_of_it AS SELECT key FROM `{topic}`", runs_once=True)
        assert query(spark, cluster, "SELECT count(*) FROM copy_of_it", runs_once=True).collect()[0][0] == 3
    finally:
        spark.catalog.dropTempView("copy_of_it")
