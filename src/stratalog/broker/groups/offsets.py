"""The committed offsets of all groups: group id -> topic -> partition -> offset. Pure.

A change has two steps: a method returns the changes, and after their records are in the log, `apply` applies them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.group import Group, GroupRecord
from stratalog.broker.groups.offset_records import CommittedOffset, OffsetKey, offset_record, offset_tombstone
from stratalog.broker.groups.pending_offsets import PendingOffsets, offset_bytes
from stratalog.broker.state_budget import text_bytes
from stratalog.protocol.error_codes import ErrorCode

_END_OF_TIME = 2**63 - 1
_GROUP_BYTES = 500  # for a group, without its offsets
_TOPIC_BYTES = 400
_NO_OFFSETS: Mapping[str, Mapping[int, CommittedOffset]] = {}


class OffsetToCommit(NamedTuple):
    """One partition of an OffsetCommit or TxnOffsetCommit request."""

    topic: str
    topic_id: uuid.UUID | None
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


class OffsetChange(NamedTuple):
    """A key and its new committed offset. None: the offset is deleted."""

    key: OffsetKey
    offset: CommittedOffset | None

    def record(self) -> GroupRecord:
        return offset_tombstone(*self.key) if self.offset is None else offset_record(*self.key, self.offset)


class Offsets:
    """All committed offsets, and the pending ones of open transactions."""

    def __init__(self, config: GroupConfig) -> None:
        self._config = config
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self.pending = PendingOffsets()
        self._committed_bytes = 0

    @property
    def state_bytes(self) -> int:
        """The memory that all offsets take."""
        return self._committed_bytes + self.pending.state_bytes

    def of(self, group_id: str) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """Return the committed offsets of a group, by topic and partition."""
        return self._groups.get(group_id, _NO_OFFSETS)

    def find(self, key: OffsetKey) -> CommittedOffset | None:
        return self.of(key.group_id).get(key.topic, {}).get(key.partition)

    def topics(self, group_id: str) -> set[str]:
        """Return the topics for which a group has committed or pending offsets."""
        return {*self.of(group_id), *(key.topic for key in self.pending.of(group_id))}

    def group_ids(self) -> list[str]:
        return list(dict.fromkeys([*self._groups, *self.pending.group_ids()]))

    def apply(self, changes: Iterable[OffsetChange]) -> None:
        """Apply changes. They are newer than all pending offsets."""
        for change in changes:
            self.pending.supersede(change.key)
            self._apply(change)

    def end_transaction(self, producer_id: int, keys: Iterable[OffsetKey], *, commit: bool) -> None:
        """Apply a producer's pending offsets (commit), unless newer ones were written since, or drop them (abort)."""
        for key in keys:
            offset = self.pending.take(producer_id, key, commit=commit)
            if offset is not None:
                self._apply(OffsetChange(key, offset))

    def _apply(self, change: OffsetChange) -> None:
        if change.offset is None:
            self._forget(change.key)
        else:
            group_id, topic, partition = change.key
            self._committed_bytes += self._bytes_added(change)
            self._groups.setdefault(group_id, {}).setdefault(topic, {})[partition] = change.offset

    def _bytes_added(self, change: OffsetChange) -> int:
        """Return the memory that a new or changed offset adds."""
        group_id, topic, _ = change.key
        known = self.find(change.key)
        if known is not None:
            return offset_bytes(change.offset) - offset_bytes(known)
        topics = self.of(group_id)
        new_topic = 0 if topic in topics else _TOPIC_BYTES + text_bytes(topic)
        new_group = 0 if topics else _GROUP_BYTES + text_bytes(group_id)
        return offset_bytes(change.offset) + new_topic + new_group

    def bytes_added(self, changes: Sequence[OffsetChange]) -> int:
        """Return an upper limit of the memory that changes add: a topic or group that they share may count twice."""
        return sum(self._bytes_added(change) for change in changes)

    def _forget(self, key: OffsetKey) -> None:
        topics = self._groups.get(key.group_id, {})
        partitions = topics.get(key.topic, {})
        known = partitions.pop(key.partition, None)
        if known is None:
            return
        self._committed_bytes -= offset_bytes(known)
        if not partitions:
            del topics[key.topic]
            self._committed_bytes -= _TOPIC_BYTES + text_bytes(key.topic)
        if not topics:
            del self._groups[key.group_id]
            self._committed_bytes -= _GROUP_BYTES + text_bytes(key.group_id)

    # Changes by requests and by time

    def commit(
        self, group_id: str, commits: Sequence[OffsetToCommit], now_ms: int, retention_ms: int | None
    ) -> tuple[list[ErrorCode], list[OffsetChange]]:
        """Return an error code for each offset, and the changes of the valid ones. Only old clients set
        `retention_ms`."""
        errors, changes = [], []
        expires = None if retention_ms is None else min(now_ms + retention_ms, _END_OF_TIME)
        for commit in commits:
            metadata = commit.metadata or ""
            if len(metadata) > self._config.offset_metadata_max_bytes:
                errors.append(ErrorCode.offset_metadata_too_large)
                continue
            errors.append(ErrorCode.none)
            offset = CommittedOffset(commit.offset, commit.leader_epoch, metadata, now_ms, expires, commit.topic_id)
            changes.append(OffsetChange(OffsetKey(group_id, commit.topic, commit.partition), offset))
        return errors, changes

    def delete(self, keys: Iterable[OffsetKey]) -> list[OffsetChange]:
        """Return the changes that delete keys. Only existing and pending offsets need a tombstone."""
        return [
            OffsetChange(key, None) for key in dict.fromkeys(keys) if self.find(key) is not None or key in self.pending
        ]

    def delete_group(self, group_id: str) -> list[OffsetChange]:
        return [OffsetChange(key, None) for key in dict.fromkeys([*self._keys(group_id), *self.pending.of(group_id)])]

    def delete_topic(self, group_id: str, topic: str) -> list[OffsetChange]:
        pending = (key for key in self.pending.of(group_id) if key.topic == topic)
        committed = (OffsetKey(group_id, topic, each) for each in self.of(group_id).get(topic, {}))
        return [OffsetChange(key, None) for key in dict.fromkeys([*committed, *pending])]

    def expire(self, group: Group, now_ms: int) -> list[OffsetChange]:
        """Return the changes that delete expired offsets. As in Kafka, offsets of subscribed topics stay. For other
        topics the time counts from `Group.offset_expires_since`, unless the client set the expiry of the offset."""
        retention_ms = self._config.offsets_retention_minutes * 60_000
        changes = []
        for topic, partitions in self.of(group.group_id).items():
            if group.subscribed_to(topic):
                continue
            for partition, offset in partitions.items():
                if OffsetKey(group.group_id, topic, partition) in self.pending:
                    continue  # an open transaction uses it
                since = group.offset_expires_since(offset.commit_timestamp_ms)
                if since is None:
                    continue
                ends = offset.expire_timestamp_ms
                has_expired = now_ms >= ends if ends is not None else now_ms - since >= retention_ms
                if has_expired:
                    changes.append(OffsetChange(OffsetKey(group.group_id, topic, partition), None))
        return changes

    def _keys(self, group_id: str) -> Iterator[OffsetKey]:
        for topic, partitions in self.of(group_id).items():
            for partition in partitions:
                yield OffsetKey(group_id, topic, partition)
