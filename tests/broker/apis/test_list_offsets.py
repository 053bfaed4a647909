"""ListOffsets, in every version: earliest and latest offset, offsets by timestamp, and the largest timestamp."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.broker.partition import Partition
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from stratalog.records.format import ControlType
from tests.broker.data_lab import DataLab, end_transaction

VERSIONS = range(1, 12)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6


@pytest.fixture
def lab(data_lab: DataLab) -> DataLab:
    """Return a lab whose log has offsets 0 to 4 with timestamps 100, 200, 500, 300, 400, and starts at offset 1."""
    data_lab.create("topic")
    for timestamps in ((100, 200), (500, 300), (400,)):
        records = [Record(timestamp=timestamp, value=b"value") for timestamp in timestamps]
        data_lab.partition("topic").append(memoryview(build_batch(records)))
    data_lab.partition("topic").log.advance_start(1)
    return data_lab


def find(lab: DataLab, timestamp: int, *, version: int = 11, **given: Any) -> Any:
    isolation = given.pop("isolation_level", 0)
    partition = {"partition_index": 0, "timestamp": timestamp} | given
    request = {"replica_id": -1, "isolation_level": isolation, "topics": [{"name": "topic", "partitions": [partition]}]}
    return lab.ask(ApiKey.LIST_OFFSETS, request, version).topics[0].partitions[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_ends_of_a_log(lab: DataLab, version: int) -> None:
    for timestamp, offset in ((LATEST, 5), (EARLIEST, 1)):
        found = find(lab, timestamp, version=version)
        assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.none, offset, -1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("timestamp", "offset", "told"), [(0, 1, 200), (200, 1, 200), (201, 2, 500), (450, 2, 500), (500, 2, 500)]
)
def test_timestamp_finds_the_first_record_at_or_after_it(
    lab: DataLab, version: int, timestamp: int, offset: int, told: int
) -> None:
    found = find(lab, timestamp, version=version)
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.none, offset, told)


@pytest.mark.parametrize("timestamp", [501, 2**40, 2**63 - 1])
def test_timestamp_after_all_records_finds_no_offset(lab: DataLab, timestamp: int) -> None:
    found = find(lab, timestamp)
    assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (ErrorCode.none, -1, -1, -1)


def test_the_record_with_the_largest_timestamp(lab: DataLab) -> None:
    found = find(lab, MAX_TIMESTAMP)
    assert (found.offset, found.timestamp) == (2, 500)
    lab.create("empty")
    empty = {"topics": [{"name": "empty", "partitions": [{"partition_index": 0, "timestamp": MAX_TIMESTAMP}]}]}
    found = lab.ask(ApiKey.LIST_OFFSETS, empty).topics[0].partitions[0]
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.none, -1, -1)


def test_earliest_local_offset_is_the_earliest_offset(lab: DataLab) -> None:
    assert find(lab, EARLIEST_LOCAL).offset == 1
    for timestamp in (LATEST_TIERED, EARLIEST_PENDING):
        found = find(lab, timestamp)
        assert (found.error_code, found.offset) == (ErrorCode.none, -1)


@pytest.mark.parametrize(
    ("timestamp", "first"),
    [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING, 11), (-7, 12), (-(2**63), 12)],
)
def test_timestamp_that_a_version_does_not_know_is_an_error(lab: DataLab, timestamp: int, first: int) -> None:
    for version in VERSIONS:
        expected = ErrorCode.none if version >= first else ErrorCode.unsupported_version
        assert find(lab, timestamp, version=version).error_code == expected


def test_committed_readers_see_nothing_past_the_last_stable_offset(lab: DataLab) -> None:
    lab.append("topic", b"open", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert [find(lab, LATEST, isolation_level=level).offset for level in (0, 1)] == [6, 5]
    end_transaction(lab, 7, ControlType.COMMIT)
    assert [find(lab, LATEST, isolation_level=level).offset for level in (0, 1)] == [7, 7]


def test_committed_readers_find_no_timestamp_in_an_open_transaction(lab: DataLab) -> None:
    records = [Record(timestamp=900, value=b"open")]
    batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    lab.partition("topic").append(memoryview(batch))
    assert [find(lab, 900, isolation_level=level).offset for level in (0, 1)] == [5, -1]


def test_response_has_the_leader_epoch_of_the_offset(lab: DataLab) -> None:
    lab.partition("topic").leader_epoch = 4
    lab.append("topic", b"later")
    assert [find(lab, timestamp).leader_epoch for timestamp in (EARLIEST, 300, LATEST)] == [0, 0, 4]


@pytest.mark.parametrize(("epoch", "error"), [(-1, "none"), (0, "none"), (1, "unknown_leader_epoch")])
def test_the_leader_epoch_that_a_client_knows_is_checked(lab: DataLab, epoch: int, error: str) -> None:
    assert find(lab, LATEST, current_leader_epoch=epoch).error_code.name == error


def test_unknown_and_repeated_partitions_are_errors(lab: DataLab) -> None:
    request = {
        "topics": [
            {"name": "topic", "partitions": [{"partition_index": index, "timestamp": -1} for index in (0, 1, -1, 0)]},
            {"name": "nope", "partitions": [{"partition_index": 0, "timestamp": -1}]},
        ]
    }
    topics = lab.ask(ApiKey.LIST_OFFSETS, request).topics
    unknown = ErrorCode.unknown_topic_or_partition
    twice = ErrorCode.invalid_request
    assert [each.error_code for each in topics[0].partitions] == [twice, unknown, unknown, twice]
    assert [each.error_code for each in topics[1].partitions] == [unknown]


@pytest.mark.parametrize("version", VERSIONS)
def test_new_leader_returns_a_latest_offset_that_may_be_too_low(
    lab: DataLab, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-207: until the high watermark has reached the start of the leader epoch, clients of the former leader may
    have seen a higher one."""
    monkeypatch.setattr(Partition, "is_confirmed", False)
    error = ErrorCode.offset_not_available if version >= 5 else ErrorCode.leader_not_available
    for timestamp in (LATEST, 500):
        found = find(lab, timestamp, version=version)
        assert (found.error_code, found.offset) == (error, -1)
    assert (find(lab, EARLIEST, version=version).error_code, find(lab, EARLIEST).offset) == (ErrorCode.none, 1)
