"""Copies of topics: keys, order, timestamps and headers; each record once, even if the job runs again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stratalog.client import Admin, Consumer, ConsumerRecord, TopicPartition
from stratalog.errors import ConfigError, TopicExistsError, UnknownTopicError
from stratalog.pipelines import streams
from stratalog.pipelines.cluster import ClusterAddress
from stratalog.pipelines.copy_topic import CopyOptions, rekey, repartition
from tests.pipelines.conftest import HOUR_MS, START_MS, FilledTopic
from tests.pipelines.stopping import SetStop, StopAfter, StoppedError


def records_of(cluster: ClusterAddress, topic: str) -> list[ConsumerRecord]:
    """Return all committed records, by partition and offset."""
    with Consumer(cluster.bootstrap_servers, isolation_level="read_committed") as consumer:
        partitions = [TopicPartition(topic, info.partition) for info in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        ends = consumer.end_offsets(partitions)
        records: list[ConsumerRecord] = []
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for polled in consumer.poll(5.0).values():
                records += polled
    return sorted(records, key=lambda record: (record.partition, record.offset))


@pytest.fixture
def target(cluster: ClusterAddress, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"target-of-{request.node.name}"
    yield name
    with Admin(cluster.bootstrap_servers) as admin:
        if name in admin.list_topics():
            admin.delete_topic(name)


def test_rekey_keeps_values_headers_and_timestamps(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, target: str, tmp_path: Path
) -> None:
    source = filled_topic(30, partitions=2)
    options = CopyOptions("concat('new-', string(value))", partitions=3, state=str(tmp_path), step_records=20)
    expected = rekey(spark, cluster, source, target, CopyOptions(options.key, partitions=3, dry_run=True))
    done = rekey(spark, cluster, source, target, options)
    again = rekey(spark, cluster, source, target, options)  # its state shows that nothing is left to do
    assert (expected.records, done.records, again.records) == (30, 30, 0)
    assert (expected.made, done.made, again.made) == (True, True, False)
    copied = records_of(cluster, target)
    assert len(copied) == 30
    assert {record.partition for record in copied} == {0, 1, 2}
    for record in copied:
        number = int((record.value or b"").removeprefix(b"value-"))
        assert record.key == b"new-value-%d" % number
        assert record.timestamp == START_MS + number * HOUR_MS
        assert list(record.headers) == [("number", b"%d" % number)]


def test_each_key_keeps_its_order_over_more_partitions(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, target: str, tmp_path: Path
) -> None:
    source = filled_topic(60)
    repartition(spark, cluster, source, target, CopyOptions(partitions=4, state=str(tmp_path), step_records=25))
    by_key: dict[bytes | None, list[int]] = {}
    for record in records_of(cluster, target):
        by_key.setdefault(record.key, []).append(int((record.value or b"").removeprefix(b"value-")))
    assert by_key == {b"key-%d" % key: list(range(key, 60, 10)) for key in range(10)}


def test_interrupted_copy_continues_and_copies_each_record_once(
    spark: SparkSession,
    cluster: ClusterAddress,
    filled_topic: FilledTopic,
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_POLL_SECONDS", 0.01)
    source, state = filled_topic(20), str(tmp_path / "state")
    with pytest.raises(StoppedError):
        rekey(
            spark,
            cluster,
            source,
            target,
            CopyOptions("value", None, step_records=1, state=state),
            progress=StopAfter(1),
        )
    options = CopyOptions("value", state=state)
    expected = rekey(spark, cluster, source, target, replace(options, dry_run=True))
    assert 0 < expected.records < 20
    follower = SetStop(expected.records)  # the interrupted micro-batch comes first, by itself
    done = rekey(spark, cluster, source, target, replace(options, every=0.1), progress=follower, stop=follower.stop)
    assert (done.records, done.made) == (expected.records, False)
    assert sorted(record.value for record in records_of(cluster, target)) == sorted(b"value-%d" % n for n in range(20))
    with pytest.raises(ConfigError, match="belongs to rekey"):
        rekey(spark, cluster, source, target, replace(options, key="partition"))
    with Admin(cluster.bootstrap_servers) as admin:
        admin.delete_topic(target)
    with pytest.raises(ConfigError, match="which does not exist; remove the state"):
        rekey(spark, cluster, source, target, options)


def test_target_with_other_records_is_refused(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    source, other = filled_topic(1), filled_topic(1)
    with pytest.raises(TopicExistsError, match=f"topic '{other}' contains records"):
        repartition(spark, cluster, source, other, CopyOptions(state=str(tmp_path / "state")))


def test_bad_options_are_refused_before_the_topic_is_created(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    source = filled_topic(1)
    state = str(tmp_path / "state")
    with pytest.raises(ConfigError, match="is 'custmer', which is not a valid SQL expression over the columns key"):
        rekey(spark, cluster, source, "uncreated", CopyOptions("custmer", state=state))
    with pytest.raises(ConfigError, match="source and target are both"):
        repartition(spark, cluster, source, source, CopyOptions(state=state))
    with pytest.raises(ConfigError, match="partitions is 0"):
        repartition(spark, cluster, source, "uncreated", CopyOptions(partitions=0, state=state))
    with pytest.raises(ConfigError, match="key is empty"):
        rekey(spark, cluster, source, "uncreated", CopyOptions(state=state))
    with pytest.raises(UnknownTopicError):
        repartition(spark, cluster, "nothing", "uncreated", CopyOptions(state=state))
    with Admin(cluster.bootstrap_servers) as admin:
        assert "uncreated" not in admin.list_topics()
