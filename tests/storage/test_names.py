from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.errors import InvalidTopicError
from stratalog.storage import names
from stratalog.storage.names import TopicPartition


@pytest.mark.parametrize("topic", ["a", "orders", "a.b_c-d", "-", "...", "0", "A" * 249, "__consumer_offsets"])
def test_topic_names_that_kafka_accepts_are_accepted(topic: str) -> None:
    names.check_topic(topic)
    assert names.parse_partition_directory(f"{topic}-3") == TopicPartition(topic, 3)


@pytest.mark.parametrize(
    ("topic", "complaint"),
    [
        ("", "''"),
        (".", "'.'"),
        ("..", "'..'"),
        ("a" * 250, "250 characters; at most 249"),
        ("a/b", "'a/b'"),
        ("../escape", "'../escape'"),
        ("a\0b", r"'a\\x00b'"),
        ("a b", "'a b'"),
        ("a\n", r"'a\\n'"),
        ("käse", "'käse'"),
        ("٣", "'٣'"),
    ],
)
def test_topic_name_that_is_not_valid_is_refused(topic: str, complaint: str) -> None:
    with pytest.raises(InvalidTopicError, match=complaint) as caught:
        names.check_topic(topic)
    assert caught.value.code == 17


@pytest.mark.parametrize("partition", [-1, 2**31])
def test_partition_number_out_of_range_is_refused(partition: int) -> None:
    with pytest.raises(InvalidTopicError, match=str(partition)):
        names.check_partition(partition)


@pytest.mark.parametrize("partition", [0, 2**31 - 1])
def test_lowest_and_highest_partition_number_are_accepted(partition: int) -> None:
    names.check_partition(partition)
    assert names.parse_partition_directory(f"orders-{partition}") == TopicPartition("orders", partition)


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders-",
        "-0",
        "orders-01",
        "orders-00",
        "orders--",
        "orders-x",
        "orders-2147483648",
        "orders-0.0123456789abcdef0123456789abcdef-delete",
        "orders-0.0123456789abcdef0123456789abcdef-future",
        "or/ders-0",
        "orders-٣",
        "..-0",
        ".-0",
        "a" * 250 + "-0",
    ],
)
def test_other_directory_names_are_not_partitions(name: str) -> None:
    assert names.parse_partition_directory(name) is None


def test_topic_may_contain_dashes() -> None:
    assert names.parse_partition_directory("a-1-2") == TopicPartition("a-1", 2)


def test_segment_names_have_twenty_digits(tmp_path: Path) -> None:
    assert names.segment_file(tmp_path, 42, names.LOG).name == "00000000000000000042.log"
    assert names.segment_file(tmp_path, 2**63 - 1, names.LOG).name == "09223372036854775807.log"


@pytest.mark.parametrize("suffix", [*names.SEGMENT_SUFFIXES, names.SNAPSHOT])
def test_segment_name_is_parsed(tmp_path: Path, suffix: str) -> None:
    assert names.parse_segment_file(names.segment_file(tmp_path, 368769, suffix).name) == (368769, suffix)


@pytest.mark.parametrize(
    "name",
    ["42.log", "0000000000000000042.log", "000000000000000000042.log", "0000000000000000004x.log", "notes.txt",
     "00000000000000000042.log.deleted", "00000000000000000042", "leader-epoch-checkpoint", "-0000000000000000042.log"],
)  # fmt: skip
def test_other_file_names_are_not_segments(name: str) -> None:
    assert names.parse_segment_file(name) is None
