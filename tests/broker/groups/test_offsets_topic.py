"""__consumer_offsets on real logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from kio.schema.errors import ErrorCode

from stratalog.broker.due_flushes import DueFlushes
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.coordinator import GroupCoordinator
from stratalog.broker.groups.group import GroupRecord
from stratalog.broker.groups.offset_records import CommittedOffset, offset_record, offset_tombstone
from stratalog.broker.groups.offset_service import Committer, OffsetService
from stratalog.broker.groups.offsets import OffsetToCommit
from stratalog.broker.groups.offsets_topic import NAME, REQUIRED_SETTINGS, OffsetsTopic
from stratalog.broker.metadata.embedded import EmbeddedTopics
from stratalog.broker.metadata.store import MetadataStore
from stratalog.clock import ManualClock
from stratalog.errors import UnknownTopicError
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import ControlType
from stratalog.storage.appending import Origin
from stratalog.storage.config import LogConfig
from stratalog.storage.disk import Disk
from stratalog.storage.log_directory import LogDirectory
from tests.broker.groups.manual_coordinator import ManualTimers, no_consumer_records

T = TypeVar("T")
CONFIG = GroupConfig(offsets_topic_num_partitions=3)
SMALL = LogConfig(segment_index_bytes=1024)
AT = 1_700_000_000_000


class Place:
    """A data directory, and the part of a broker that its topics need."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(AT)
        self.timers = ManualTimers(self.clock)
        self.directory = LogDirectory.open(path, clock=self.clock, background=False)
        self.topics = EmbeddedTopics(
            self.directory,
            MetadataStore(path, Disk()),
            lambda: SMALL,
            most_partitions=100,
            on_loop=lambda call: call(),
        )
        self.topics.load()
        self.offsets = OffsetsTopic(self.topics, CONFIG, self.run_in_background, DueFlushes(self.run_in_background))

    async def run_in_background(self, call: Callable[[], T], /) -> T:
        await asyncio.sleep(0)
        return call()

    def coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(CONFIG, self.clock, self.offsets, self.timers.call_later, no_consumer_records)

    def close(self) -> None:
        self.directory.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


def run(test: Awaitable[T]) -> T:
    async def main() -> T:
        return await test

    return asyncio.run(main())


def test_topic_is_created_with_kafkas_settings_and_keeps_the_last_record_of_each_key(place: Place) -> None:
    made_yet = place.offsets.partition_count is not None
    assert not made_yet
    run(place.offsets.create())
    topic = place.topics.get(NAME)
    assert topic is not None
    assert topic.is_internal
    assert place.offsets.partition_count == topic.partition_count == 3
    assert topic.settings == {**REQUIRED_SETTINGS, "segment.bytes": "104857600"}
    partition = place.topics.partition(NAME, 0)
    assert partition is not None
    assert partition.log.config.cleanup_policy == ("compact",)


def test_records_are_one_uncompressed_batch_with_the_time_of_the_clock(place: Place) -> None:
    run(place.offsets.create())
    records = [offset_record("g", "orders", index, CommittedOffset(1, 0, "", AT)) for index in range(3)]
    place.offsets.append(1, records, AT)
    partition = place.topics.partition(NAME, 1)
    assert partition is not None
    (batch,) = partition.log.read(0, 10_000).batches()
    assert (batch.header.record_count, batch.header.codec, batch.header.max_timestamp) == (3, 0, AT)
    assert [(record.key, record.value) for record in partition.log.records()] == records


def test_reading_returns_the_records_of_a_compacted_log(place: Place) -> None:
    run(place.offsets.create())
    first = offset_record("g", "orders", 0, CommittedOffset(1, 0, "", AT))
    second = offset_record("g", "orders", 1, CommittedOffset(2, 0, "", AT))
    again = offset_record("g", "orders", 0, CommittedOffset(3, 0, "", AT))
    gone = offset_record("g", "orders", 2, CommittedOffset(4, 0, "", AT))
    place.offsets.append(0, [first, second, gone], AT)
    place.offsets.append(0, [again, offset_tombstone("g", "orders", 2)], AT)
    assert run(place.offsets.read(0)).records == [second, again]
    assert run(place.offsets.read(1)).records == []


def test_record_without_a_key_is_ignored(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    run(place.offsets.create())
    partition = place.topics.partition(NAME, 0)
    assert partition is not None
    partition.log.append(
        build_batch([(None, b"who wrote this?")]), origin=Origin.COORDINATOR
    )  # without validation, as if Kafka had written it
    kept = offset_record("g", "orders", 0, CommittedOffset(1, 0, "", AT))
    place.offsets.append(0, [kept], AT)
    assert run(place.offsets.read(0)).records == [kept]
    assert "offset 0 has no key" in caplog.text


def test_topic_that_a_user_created_is_set_to_compaction(place: Place) -> None:
    place.topics.create(NAME, 2, {"segment.bytes": "1048576"})
    run(place.offsets.read(0))
    topic = place.topics.get(NAME)
    assert topic is not None
    assert topic.settings == {**REQUIRED_SETTINGS, "segment.bytes": "1048576"}


def test_deleted_topic_is_an_error(place: Place) -> None:
    run(place.offsets.create())
    place.topics.delete(NAME)
    with pytest.raises(UnknownTopicError, match="__consumer_offsets-0 does not exist"):
        place.offsets.append(0, [offset_tombstone("g", "orders", 0)], AT)


def commit(coordinator: GroupCoordinator, group_id: str, offset: int) -> ErrorCode:
    commits = [OffsetToCommit("orders", None, 0, offset, 0, "")]
    (error,) = OffsetService(coordinator).commit(Committer(group_id, "", -1, None, 8), commits, None)
    return error


def test_offsets_of_many_groups_survive_a_restart(tmp_path: Path) -> None:
    async def before(place: Place) -> None:
        coordinator = place.coordinator()
        await coordinator.load()
        for number in range(20):
            assert await coordinator.prepare(f"g{number}") is ErrorCode.none
            assert commit(coordinator, f"g{number}", number) is ErrorCode.none
        coordinator.delete("g3")

    async def after(place: Place) -> dict[str, int]:
        coordinator = place.coordinator()
        loading = asyncio.ensure_future(coordinator.load())
        assert coordinator.status("g1") is ErrorCode.coordinator_load_in_progress
        await loading
        groups = [group.group_id for group in coordinator.groups()]
        return {name: coordinator.offsets.of(name)["orders"][0].offset for name in groups}

    place = Place(tmp_path)
    run(before(place))
    place.close()
    again = Place(tmp_path)
    assert run(after(again)) == {f"g{number}": number for number in range(20) if number != 3}
    again.close()


def test_topic_that_is_deleted_while_groups_use_it_is_created_again(place: Place) -> None:
    async def test() -> None:
        coordinator = place.coordinator()
        await coordinator.load()
        await coordinator.prepare("g")
        assert commit(coordinator, "g", 1) is ErrorCode.none
        place.topics.delete(NAME)
        assert commit(coordinator, "g", 2) is ErrorCode.coordinator_not_available
        assert await coordinator.prepare("g") is ErrorCode.none
        assert commit(coordinator, "g", 3) is ErrorCode.none

    run(test())


def test_offsets_of_transactions_count_only_if_they_were_committed(place: Place) -> None:
    run(place.offsets.create())
    partition = place.topics.partition(NAME, 0)
    assert partition is not None

    def record(index: int, offset: int) -> GroupRecord:
        return offset_record("g", "orders", index, CommittedOffset(offset, 0, "", AT))

    def end(producer_id: int, how: ControlType) -> None:
        partition.append_for_coordinator(build_control_batch(how, producer_id, 0, 0, AT))

    place.offsets.append(0, [record(0, 1), record(1, 1)], AT)
    place.offsets.append_in_transaction(0, [record(0, 2)], AT, 7, 0)
    place.offsets.append_in_transaction(0, [record(1, 2), record(2, 2)], AT, 8, 0)
    place.offsets.append_in_transaction(0, [record(0, 3)], AT, 7, 0)
    end(7, ControlType.COMMIT)
    end(8, ControlType.ABORT)
    place.offsets.append_in_transaction(0, [record(0, 4), record(1, 4)], AT, 9, 0)
    place.offsets.append(0, [record(1, 5)], AT)
    records, pending = run(place.offsets.read(0))
    assert records == [record(0, 3), record(1, 5)]
    assert pending == {9: {record(0, 4)[0]: record(0, 4)[1], record(1, 4)[0]: None}}
