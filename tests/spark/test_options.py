"""Options of a read: the names and meaning of Spark's Kafka connector; others are refused. No Spark, no broker."""

from __future__ import annotations

import pickle

import pytest

from stratalog.client.metadata import TopicPartition
from stratalog.errors import ConfigError
from stratalog.spark.options import batch_options, includes_headers, stream_options
from stratalog.spark.read_options import (
    EARLIEST,
    LATEST,
    Assigned,
    AtEdge,
    AtOffsets,
    AtTimestamps,
    Matching,
    ReadOptions,
    Subscribed,
)

LEAST = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
ORDERS = TopicPartition("orders", 0)


def batch(**options: str) -> ReadOptions:
    return batch_options(LEAST | options)


def stream(**options: str) -> ReadOptions:
    return stream_options(LEAST | options)


def test_batch_reads_everything_and_stream_new_records_by_default() -> None:
    assert (batch().starting, batch().ending) == (AtEdge(EARLIEST), AtEdge(LATEST))
    assert stream().starting == AtEdge(LATEST)


def test_names_are_case_insensitive() -> None:
    options = {"KAFKA.bootstrap.servers": "localhost:9092", "SUBSCRIBE": "orders", "StartingOFFSETS": "Earliest"}
    assert stream_options(options).starting == AtEdge(EARLIEST)


def test_defaults_are_those_of_sparks_kafka_connector() -> None:
    options = stream()
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.max_trigger_delay_ms == 15 * 60 * 1000
    assert options.isolation == "read_uncommitted"
    assert (options.min_partitions, options.max_offsets_per_trigger, options.group_id) == (None, None, None)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("subscibe", "did you mean subscribe?"),
        ("startingoffset", "did you mean startingOffsets?"),
        ("bootstrap.servers", "did you mean kafka.bootstrap.servers?"),
        ("fetch.max.bytes", "did you mean kafka.fetch.max.bytes?"),
        ("colour", "known are: subscribe"),
    ],
)
def test_unknown_option_is_refused_with_a_suggestion(wrong: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        batch(**{wrong: "x"})
    assert repr(wrong) in str(raised.value)
    assert hint in str(raised.value)


def test_a_path_given_to_load_is_explained() -> None:
    with pytest.raises(ConfigError, match="name topics by subscribe"):
        batch(path="orders")


@pytest.mark.parametrize(
    "name",
    ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"],
)
def test_settings_that_the_reader_sets_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"kafka\.{name} can't be set"):
        stream(**{f"kafka.{name}": "x"})


def test_unknown_kafka_setting_is_refused_with_its_prefix() -> None:
    with pytest.raises(ConfigError, match=r"^kafka\.'fetch\.max\.byte' .* did you mean fetch\.max\.bytes"):
        batch(**{"kafka.fetch.max.byte": "1"})


def test_a_group_for_consumers_is_allowed_and_commits_nothing() -> None:
    assert stream(**{"kafka.group.id": "theirs"}).group_id is None
    assert stream(**{"group.id": "ours"}).group_id == "ours"


def test_missing_servers_are_reported_by_option() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
        batch_options({"subscribe": "orders"})


# Partitions


@pytest.mark.parametrize("options", [{}, {"subscribe": "a", "assign": '{"a": [0]}'}])
def test_exactly_one_strategy_is_required(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="exactly one of subscribe, subscribePattern, assign"):
        batch_options({"kafka.bootstrap.servers": "localhost:9092"} | options)


def test_topics_are_separated_by_commas_and_spaces() -> None:
    assert batch(subscribe=" a, b ,,a").strategy == Subscribed(("a", "b"))


def strategy_of(**options: str) -> object:
    return batch_options({"kafka.bootstrap.servers": "localhost:9092"} | options).strategy


def test_patterns_and_assignments() -> None:
    assert strategy_of(subscribePattern="o.*s") == Matching("o.*s")
    assigned = strategy_of(assign='{"b": [1, 0], "a": [2]}')
    assert assigned == Assigned((TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1)))


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": " , "},
        {"subscribePattern": ""},
        {"subscribePattern": "a("},
        {"assign": "orders"},
        {"assign": "{}"},
        {"assign": '{"a": 0}'},
        {"assign": '{"a": [-1]}'},
        {"assign": '{"a": [true]}'},
        {"assign": "[" * 100_000},
    ],
)
def test_invalid_strategies_are_refused_by_name(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        strategy_of(**options)


# Limits


def test_offsets_in_json_may_be_earliest_or_latest() -> None:
    offsets = '{"orders": {"0": 23, "1": -2}}'
    assert batch(startingOffsets=offsets).starting == AtOffsets({ORDERS: 23, TopicPartition("orders", 1): EARLIEST})
    assert stream(startingOffsets='{"orders":{"0":-1}}').starting == AtOffsets({ORDERS: LATEST})


def test_time_for_all_precedes_times_by_partition_and_offsets() -> None:
    by_time = {"startingOffsetsByTimestamp": '{"orders": {"0": 1000}}', "startingOffsets": "earliest"}
    assert batch(**by_time).starting == AtTimestamps({ORDERS: 1000})
    assert batch(startingTimestamp="2000", **by_time).starting == AtTimestamps(everywhere=2000)
    assert batch(endingTimestamp="3000", endingOffsets="latest").ending == AtTimestamps(everywhere=3000)


def test_strategy_without_a_record_at_that_time() -> None:
    assert stream(startingTimestamp="5").starting == AtTimestamps(everywhere=5, or_latest=False)
    latest = stream(startingTimestamp="5", startingOffsetsByTimestampStrategy="LATEST")
    assert latest.starting == AtTimestamps(everywhere=5, or_latest=True)
    with pytest.raises(ConfigError, match="startingOffsetsByTimestampStrategy is 'first'"):
        stream(startingOffsetsByTimestampStrategy="first")


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"orders": {"0": -1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"orders": {"0": -2}}'},
        {"startingOffsets": "middle"},
        {"startingOffsets": '{"orders": {"0": -3}}'},
        {"startingOffsets": '{"orders": {"0": "7"}}'},
        {"startingOffsets": '{"orders": {"zero": 7}}'},
        {"startingOffsets": '{"orders": 7}'},
        {"startingOffsets": '{"orders": {'},
        {"startingTimestamp": "yesterday"},
        {"startingTimestamp": "-1"},
        {"startingOffsetsByTimestamp": '{"orders": {"0": -2}}'},
    ],
)
def test_invalid_limits_are_refused_by_name(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        batch(**options)


def test_batch_that_ends_before_its_start_is_refused() -> None:
    with pytest.raises(ConfigError, match="which is before that"):
        batch(startingOffsets='{"orders":{"0":9}}', endingOffsets='{"orders":{"0":8}}')
    with pytest.raises(ConfigError, match=r"must name the same partitions; orders-0"):
        batch(startingOffsets='{"orders":{"0":9}}', endingOffsets='{"orders":{"1":18}}')


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is for batches"):
        stream(**{name: "latest"})


# The rest


def test_limits_of_micro_batches() -> None:
    options = stream(
        minOffsetsPerTrigger="5", maxOffsetsPerTrigger="9", maxBytesPerTrigger="1000", maxTriggerDelay="2s"
    )
    assert (options.min_offsets_per_trigger, options.max_offsets_per_trigger) == (5, 9)
    assert (options.max_bytes_per_trigger, options.max_trigger_delay_ms) == (1000, 2000)
    with pytest.raises(ConfigError, match="minOffsetsPerTrigger is 10, more than maxOffsetsPerTrigger"):
        stream(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="9")


def test_options_of_streams_are_ignored_in_batches() -> None:
    assert batch(maxOffsetsPerTrigger="9").ignored == ("maxOffsetsPerTrigger",)


@pytest.mark.parametrize(
    ("duration", "milliseconds"), [("500", 500), ("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("1h", 3_600_000)]
)
def test_durations_are_written_as_spark_writes_them(duration: str, milliseconds: int) -> None:
    assert stream(maxTriggerDelay=duration).max_trigger_delay_ms == milliseconds


@pytest.mark.parametrize(
    "options",
    [
        {"minPartitions": "0"},
        {"maxRecordsPerPartition": "-5"},
        {"maxOffsetsPerTrigger": "many"},
        {"maxBytesPerTrigger": "9999999999999999999999"},
        {"maxTriggerDelay": "soon"},
        {"failOnDataLoss": "maybe"},
        {"includeHeaders": "1"},
        {"isolation.level": "committed"},
        {"log.dirs": "data"},
        {"log.dirs": ""},
        {"group.id": " "},
    ],
)
def test_invalid_values_are_refused_by_name(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        stream(**options)


def test_isolation_by_either_name() -> None:
    assert batch(**{"isolation.level": "read_committed"}).isolation == "read_committed"
    assert batch(**{"kafka.isolation.level": "read_committed"}).isolation == "read_committed"
    with pytest.raises(ConfigError, match="set one of them"):
        batch(**{"kafka.isolation.level": "read_committed", "isolation.level": "read_uncommitted"})


def test_directories_are_detected_named_or_off() -> None:
    assert batch().data_dirs is None
    assert batch(**{"log.dirs": "/a, /b"}).data_dirs == ("/a", "/b")
    assert batch(**{"log.dirs": "none"}).data_dirs == ()


def test_headers_option_is_parsed_alone() -> None:
    assert includes_headers({"IncludeHeaders": "TRUE"})
    assert not includes_headers({})


def test_options_can_be_pickled() -> None:
    options = stream(startingOffsets='{"orders":{"0":-1}}', filterKeys='["a"]')
    assert pickle.loads(pickle.dumps(options)) == options
