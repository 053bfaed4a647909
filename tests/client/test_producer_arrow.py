"""send_arrow stores a table's rows as if each had been sent by itself."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from stratalog.client._partitioner import partition_for_key
from stratalog.client.errors import ClientClosedError, RecordTooLargeError, UnknownTopicOrPartitionError
from stratalog.client.producer import Producer
from stratalog.errors import InvalidRecordError
from stratalog.records.arrow import HEADER
from tests.client.conftest import NewTopic
from tests.client.read_back import read_partition, read_topic

SECONDS = 60.0
pytestmark = pytest.mark.any_broker


def test_all_columns_are_stored(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    when = datetime.datetime(2024, 5, 17, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "value": pa.array([b"a", None, b"c", b"d"], pa.binary()),
            "key": pa.array(["k", "k", None, None], pa.string()),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}], None, [], [{"key": "n", "value": None}]], pa.list_(HEADER)
            ),
            "timestamp": pa.array([when, when, None, None], pa.timestamp("us", "UTC")),
            "partition": pa.array([None, 2, 1, 1], pa.int64()),
            "something else": [1, 2, 3, 4],
        }
    )
    with Producer(bootstrap) as producer:
        stored_parts = producer.send_arrow(topic, table).result(SECONDS)
    by_key = partition_for_key(b"k", 3)
    stored = {record.value: record for record in read_topic(bootstrap, topic, 3)}
    assert sum(part.rows for part in stored_parts) == len(stored) == 4
    milliseconds = int(when.timestamp() * 1000)
    assert stored[b"a"][2:] == (milliseconds, b"k", b"a", [("h", b"1")])
    assert stored[b"a"].partition == by_key
    assert (stored[None].partition, stored[None].key, stored[None].timestamp) == (2, b"k", milliseconds)
    assert [(stored[value].partition, stored[value].offset - stored[b"c"].offset) for value in (b"c", b"d")] == [
        (1, 0),
        (1, 1),
    ]
    assert stored[b"c"].timestamp > milliseconds  # now
    assert stored[b"d"].headers == [("n", None)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_rows_go_to_the_partition_of_their_key_in_order(bootstrap: str, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic(5)
    rows = 20_000
    keys = [b"%d" % (number % 97) for number in range(rows)]
    table = pa.table({"key": keys, "value": [b"%d" % number for number in range(rows)]})
    with Producer(bootstrap, batch_size=10_000, compression_type=codec, buffer_memory=200_000) as producer:
        stored_parts = producer.send_arrow(topic, table.slice(3)).result(SECONDS)
    assert sum(part.rows for part in stored_parts) == rows - 3
    for partition in range(5):
        stored = read_partition(bootstrap, topic, partition)
        expected = [number for number in range(3, rows) if partition_for_key(keys[number], 5) == partition]
        assert [int(record.value or b"") for record in stored] == expected
        offsets = [part.offset for part in stored_parts if part.partition == partition]
        assert offsets == sorted(offsets)


def test_keyless_rows_change_partition_from_batch_to_batch(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(4)
    table = pa.table({"value": [bytes(1000)] * 2000})
    with Producer(bootstrap, batch_size=20_000) as producer:
        delivery = producer.send_arrow(topic, table)
        stored_parts = delivery.result(SECONDS)
        assert delivery.done()
    assert {part.partition for part in stored_parts} == {0, 1, 2, 3}
    assert len(read_topic(bootstrap, topic, 4)) == 2000


def test_tables_and_records_of_one_thread_are_stored_in_order(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, linger_ms=500) as producer:
        for number in range(0, 30, 3):
            producer.send(topic, b"%d" % number)
            producer.send_arrow(topic, pa.table({"value": [b"%d" % (number + 1), b"%d" % (number + 2)]}))
    assert [int(record.value or b"") for record in read_partition(bootstrap, topic)] == list(range(30))


def test_small_chunks_are_joined(bootstrap: str, topic: str) -> None:
    table = pa.concat_tables([pa.table({"value": [b"%d" % number]}) for number in range(200)])
    with Producer(bootstrap) as producer:
        assert len(producer.send_arrow(topic, table).result(SECONDS)) == 1
        assert producer.send_arrow(topic, table.slice(0, 0)).result(SECONDS) == []
        assert len(producer.send_arrow(topic, table.to_batches()[7]).result(SECONDS)) == 1
    assert len(read_partition(bootstrap, topic)) == 201


def test_batches_that_are_too_large_for_the_topic_are_split(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1, {"max.message.bytes": "5000"})
    values = [b"%d" % number * 100 for number in range(200)]
    with Producer(bootstrap) as producer:
        stored_parts = producer.send_arrow(topic, pa.table({"value": values})).result(SECONDS)
    assert sum(part.rows for part in stored_parts) == 200
    assert [record.value for record in read_partition(bootstrap, topic)] == values


def test_an_error_in_a_table_is_raised_before_anything_is_sent(bootstrap: str, topic: str) -> None:
    fine, large = [b"a", b"b"], bytes(2_000_000)
    headers = pa.array([[{"key": "a", "value": large}]], pa.list_(HEADER))
    with Producer(bootstrap, max_block_ms=2000) as producer:
        for table, kind, words in (
            (pa.table({"key": fine}), ValueError, "column 'value' is missing"),
            (pa.table({"value": [1, 2]}), TypeError, "column 'value' is int64"),
            (pa.table({"value": fine, "key": [1.5, 2]}), TypeError, "column 'key' is double"),
            (pa.table({"value": fine, "partition": ["a", "b"]}), TypeError, "column 'partition' has type string"),
            (pa.table({"value": fine, "partition": [0, -2]}), ValueError, "column 'partition' contains -2"),
            (pa.table({"value": fine, "partition": [0, 2**40]}), ValueError, "contains 1099511627776; the limit is"),
            (pa.table({"value": fine, "partition": [0, 9]}), UnknownTopicOrPartitionError, "partitions 0 to 0"),
            (pa.table({"value": fine, "timestamp": ["a", "b"]}), TypeError, "column 'timestamp' is string"),
            (pa.table({"value": [b"", bytes(2_000_000)]}), RecordTooLargeError, "row 1 of 2000128 bytes"),
            (pa.table({"value": pa.array([large], pa.binary_view())}), RecordTooLargeError, "a row of 20000"),
            (pa.table({"value": pa.array([large]).dictionary_encode()}), RecordTooLargeError, "a row of 20000"),
            (pa.table({"value": [b""], "headers": headers}), RecordTooLargeError, "a row of 20000"),
            (pa.table({"value": fine, "timestamp": [1, -5]}), InvalidRecordError, "row 1: timestamp is negative"),
            (pa.table({"value": fine, "key": fine, "timestamp": [1, -5]}), InvalidRecordError, "timestamp is negative"),
        ):
            with pytest.raises(kind, match=words):
                producer.send_arrow(topic, table)
        with pytest.raises(TypeError, match="table is of type list; it must be a pyarrow Table or RecordBatch"):
            producer.send_arrow(topic, [b"a"])
        assert producer.send(topic, b"").result(SECONDS).offset == 0
    with pytest.raises(ClientClosedError):
        producer.send_arrow(topic, pa.table({"value": fine}))


def test_nothing_is_sent_of_a_table_with_a_row_larger_than_the_buffer(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, buffer_memory=4000, batch_size=1000, linger_ms=0) as producer:
        with pytest.raises(RecordTooLargeError, match=r"buffer\.memory = 4000"):
            producer.send_arrow(topic, pa.table({"value": [b"a"] * 100 + [bytes(5000)]}))
        assert producer.send(topic, b"").result(SECONDS).offset == 0
