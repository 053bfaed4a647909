from __future__ import annotations

import uuid

from kio.schema.errors import ErrorCode

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.offset_records import CommittedOffset, OffsetKey, offset_record, offset_tombstone
from stratalog.broker.groups.offsets import OffsetChange, Offsets, OffsetToCommit

AT = 1_700_000_000_000
WEEK_MS = 7 * 86_400_000
TOPIC_ID = uuid.UUID(int=1)


class StillGroup:
    """The part of a group that the expiry of offsets needs."""

    group_id = "g"

    def __init__(self, *topics: str, since: int | None = None, expires: bool = True) -> None:
        self._topics = topics
        self._since = since
        self._expires = expires

    def subscribed_to(self, topic: str) -> bool:
        return topic in self._topics

    def offset_expires_since(self, commit_timestamp_ms: int) -> int | None:
        if not self._expires:
            return None
        return commit_timestamp_ms if self._since is None else self._since


def commit(
    offsets: Offsets, *commits: OffsetToCommit, at: int = AT, retention_ms: int | None = None
) -> list[ErrorCode]:
    errors, changes = offsets.commit("g", commits, at, retention_ms)
    offsets.apply(changes)
    return errors


def one(topic: str = "orders", partition: int = 0, offset: int = 5, metadata: str | None = "m") -> OffsetToCommit:
    return OffsetToCommit(topic, TOPIC_ID, partition, offset, 3, metadata)


def expired(offsets: Offsets, group: StillGroup, now: int) -> set[tuple[str, int]]:
    return {(change.key.topic, change.key.partition) for change in offsets.expire(group, now)}  # type: ignore[arg-type]


def test_committed_offset_is_returned() -> None:
    offsets = Offsets(GroupConfig())
    assert commit(offsets, one(), one(partition=1, offset=9, metadata=None)) == [ErrorCode.none] * 2
    assert offsets.find(OffsetKey("g", "orders", 0)) == CommittedOffset(5, 3, "m", AT, None, TOPIC_ID)
    assert offsets.find(OffsetKey("g", "orders", 1)) == CommittedOffset(9, 3, "", AT, None, TOPIC_ID)
    assert offsets.find(OffsetKey("g", "orders", 2)) is None
    assert offsets.find(OffsetKey("other", "orders", 0)) is None
    assert set(offsets.of("g")["orders"]) == {0, 1}


def test_commit_changes_nothing_before_its_record_is_written() -> None:
    offsets = Offsets(GroupConfig())
    _, changes = offsets.commit("g", [one()], AT, None)
    assert offsets.of("g") == {}
    assert [change.record() for change in changes] == [
        offset_record("g", "orders", 0, CommittedOffset(5, 3, "m", AT, None, TOPIC_ID))
    ]


def test_metadata_that_is_too_long_is_refused_and_the_rest_committed() -> None:
    offsets = Offsets(GroupConfig(offset_metadata_max_bytes=3))
    errors = commit(offsets, one(metadata="long"), one(partition=1, metadata="ok"))
    assert errors == [ErrorCode.offset_metadata_too_large, ErrorCode.none]
    assert set(offsets.of("g")["orders"]) == {1}


def test_group_without_offsets_takes_no_entry() -> None:
    offsets = Offsets(GroupConfig())
    commit(offsets, one(), one("payments"))
    offsets.apply(offsets.delete([OffsetKey("g", "orders", 0), OffsetKey("g", "orders", 0)]))
    assert set(offsets.of("g")) == {"payments"}
    offsets.apply(offsets.delete_group("g"))
    assert offsets.group_ids() == []
    offsets.apply([OffsetChange(OffsetKey("g", "orders", 0), None)])
    assert offsets.group_ids() == []


def test_only_existing_offsets_get_a_tombstone() -> None:
    offsets = Offsets(GroupConfig())
    commit(offsets, one())
    doomed = offsets.delete([OffsetKey("g", "orders", 0), OffsetKey("g", "orders", 1), OffsetKey("x", "orders", 0)])
    assert [change.record() for change in doomed] == [offset_tombstone("g", "orders", 0)]


def test_topic_is_deleted_with_all_its_partitions() -> None:
    offsets = Offsets(GroupConfig())
    commit(offsets, one(), one(partition=1), one("payments"))
    offsets.apply(offsets.delete_topic("g", "orders"))
    assert set(offsets.of("g")) == {"payments"}


def test_offsets_expire_a_week_after_the_time_that_their_group_returns() -> None:
    offsets = Offsets(GroupConfig())
    commit(offsets, one())
    assert expired(offsets, StillGroup(), AT + WEEK_MS - 1) == set()
    assert expired(offsets, StillGroup(), AT + WEEK_MS) == {("orders", 0)}
    assert expired(offsets, StillGroup(since=AT + 5), AT + WEEK_MS) == set()
    assert expired(offsets, StillGroup(since=AT + 5), AT + WEEK_MS + 5) == {("orders", 0)}


def test_offsets_of_subscribed_topics_do_not_expire() -> None:
    offsets = Offsets(GroupConfig())
    commit(offsets, one(), one("payments"))
    assert expired(offsets, StillGroup("orders"), AT + 10 * WEEK_MS) == {("payments", 0)}
    assert expired(offsets, StillGroup(expires=False), AT + 10 * WEEK_MS) == set()


def test_retention_is_a_setting() -> None:
    offsets = Offsets(GroupConfig(offsets_retention_minutes=1))
    commit(offsets, one())
    assert expired(offsets, StillGroup(), AT + 59_999) == set()
    assert expired(offsets, StillGroup(), AT + 60_000) == {("orders", 0)}


def test_old_clients_set_the_expiry_of_their_offsets() -> None:
    offsets = Offsets(GroupConfig())
    commit(offsets, one(), retention_ms=1_000)
    commit(offsets, one(partition=1), retention_ms=2**63 - 1)
    committed = offsets.find(OffsetKey("g", "orders", 1))
    assert committed is not None
    assert committed.expire_timestamp_ms == 2**63 - 1, "but not beyond the largest timestamp of a record"
    assert expired(offsets, StillGroup(since=AT + WEEK_MS), AT + 999) == set()
    assert expired(offsets, StillGroup(since=AT + WEEK_MS), AT + 1_000) == {("orders", 0)}
