"""A topic copied: keys, order, timestamps and headers, each record once, also when the job is run again."""

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
from tests.pipelines.stopping import StopAfter, StoppedError, TellToStop


def records_of(cluster: ClusterAddress, topic: str) -> list[ConsumerRecord]:
    """All that is committed, by partition and offset."""
    with Consumer(cluster.bootstrap_servers, isolation_level="read_committed") as consumer:
        places = [TopicPartition(topic, one.partition) for one in consumer.partitions_for(topic)]
        consumer.assign(places)
        consumer.seek_to_beginning(places)
        ends = consumer.end_offsets(places)
        found: list[ConsumerRecord] = []
        while any(consumer.position(place) < ends[place] for place in places):
            for some in consumer.poll(5.0).values():
                found += some
    return sorted(found, key=lambda record: (record.partition, record.offset))


@pytest.fixture
def target(cluster: ClusterAddress, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"target-of-{request.node.name}"
    yield name
    with Admin(cluster.bootstrap_servers) as admin:
        if name in admin.list_topics():
            admin.delete_topic(name)


def test_new_keys_come_with_the_same_values_headers_and_times(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, target: str, tmp_path: Path
) -> None:
    source = filled_topic(30, partitions=2)
    options = CopyOptions("concat('new-', string(value))", partitions=3, state=str(tmp_path), step_records=20)
    would = rekey(spark, cluster, source, target, CopyOptions(options.key, partitions=3, dry_run=True))
    done = rekey(spark, cluster, source, target, options)
    again = rekey(spark, cluster, source, target, options)  # with its state, so there is nothing left to do
    assert (would.records, done.records, again.records) == (30, 30, 0)
    assert (would.made, done.made, again.made) == (True, True, False)
    found = records_of(cluster, target)
    assert len(found) == 30
    assert {record.partition for record in found} == {0, 1, 2}
    for record in found:
        number = int((record.value or b"").removeprefix(b"value-"))
        assert record.key == b"new-value-%d" % number
        assert record.timestamp == START_MS + number * HOUR_MS
        assert list(record.headers) == [("number", b"%d" % number)]


def test_each_key_keeps_its_order_over_more_partitions(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, target: str, tmp_path: Path
) -> None:
    source = filled_topic(60)
    repartition(spark, cluster, source, target, CopyOptions(partitions=4, state=str(tmp_path), step_records=25))
    of_key: dict[bytes | None, list[int]] = {}
    for record in records_of(cluster, target):
        of_key.setdefault(record.key, []).append(int((record.value or b"").removeprefix(b"value-")))
    assert of_key == {b"key-%d" % key: list(range(key, 60, 10)) for key in range(10)}


def test_copy_that_is_interrupted_goes_on_and_copies_each_record_once(
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
    would = rekey(spark, cluster, source, target, replace(options, dry_run=True))
    assert 0 < would.records < 20
    follower = TellToStop(would.records)  # the batch that was interrupted comes first, by itself
    done = rekey(spark, cluster, source, target, replace(options, every=0.1), progress=follower, stop=follower.stop)
    assert (done.records, done.made) == (would.records, False)
    assert sorted(record.value for record in records_of(cluster, target)) == sorted(b"value-%d" % n for n in range(20))
    with pytest.raises(ConfigError, match="is of rekey"):
        rekey(spark, cluster, source, target, replace(options, key="partition"))
    with Admin(cluster.bootstrap_servers) as admin:
        admin.delete_topic(target)
    with pytest.raises(ConfigError, match="there is no such topic; remove the state"):
        rekey(spark, cluster, source, target, options)


def test_target_with_records_of_others_is_refused(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    source, other = filled_topic(1), filled_topic(1)
    with pytest.raises(TopicExistsError, match=f"topic '{other}' has records already"):
        repartition(spark, cluster, source, other, CopyOptions(state=str(tmp_path / "state")))


def test_bad_wishes_are_refused_before_anything_is_made(
    spark: SparkSession, cluster: ClusterAddress, filled_topic: FilledTopic, tmp_path: Path
) -> None:
    source = filled_topic(1)
    state = str(tmp_path / "state")
    with pytest.raises(ConfigError, match="is 'custmer', which is no SQL expression over the columns key, value"):
        rekey(spark, cluster, source, "unmade", CopyOptions("custmer", state=state))
    with pytest.raises(ConfigError, match="source and target are both"):
        repartition(spark, cluster, source, source, CopyOptions(state=state))
    with pytest.raises(ConfigError, match="partitions is 0"):
        repartition(spark, cluster, source, "unmade", CopyOptions(partitions=0, state=state))
    with pytest.raises(ConfigError, match="key is empty"):
        rekey(spark, cluster, source, "unmade", CopyOptions(state=state))
    with pytest.raises(UnknownTopicError):
        repartition(spark, cluster, "nothing", "unmade", CopyOptions(state=state))
    with Admin(cluster.bootstrap_servers) as admin:
        assert "unmade" not in admin.list_topics()
