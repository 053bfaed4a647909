"""Committing, fetching and deleting offsets, for groups of either kind, whatever the version of the request."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stratalog.broker.groups.classic_group import ClassicGroup
from stratalog.broker.groups.classic_rebalance import append_error, group_bytes
from stratalog.broker.groups.coordinator import GroupCoordinator
from stratalog.broker.groups.offset_records import CommittedOffset, OffsetKey
from stratalog.broker.groups.offsets import Change, Commit
from stratalog.broker.groups.pending_offsets import pending_bytes
from stratalog.errors import StratalogError
from stratalog.protocol.error_codes import ErrorCode

log = logging.getLogger(__name__)

_FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 9


class Committer(NamedTuple):
    """Who commits, as it says itself."""

    group_id: str
    member_id: str
    generation_or_epoch: int
    group_instance_id: str | None
    api_version: int


class OffsetService:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._offsets = coordinator.offsets

    def commit(self, who: Committer, commits: Sequence[Commit], retention_ms: int | None) -> list[ErrorCode]:
        """An error for each commit. For a group that `prepare` found to be fine."""
        error = self._check_commit(who)
        if error is not ErrorCode.none:
            return [error for _ in commits]
        errors, changes = self._offsets.commit(who.group_id, commits, self._coordinator.now_ms(), retention_ms)
        if not changes:
            return errors
        try:
            self._check_room(who.group_id, self._offsets.bytes_added(changes))
            self._coordinator.append_changes(who.group_id, changes)
        except StratalogError as failure:
            log.warning("group %r: offsets could not be committed: %s", who.group_id, failure)
            failed = _commit_error(failure)
            return [failed if each is ErrorCode.none else each for each in errors]
        group = self._coordinator.group(who.group_id) or self._coordinator.new_classic_group(who.group_id)
        if isinstance(group, ClassicGroup):
            group.committed(who.member_id, self._coordinator.now())
            self._coordinator.settle(group)
        return errors

    def check_in_transaction(self, who: Committer) -> ErrorCode:
        group = self._coordinator.group(who.group_id)
        if group is None:
            return ErrorCode.none if who.generation_or_epoch < 0 else ErrorCode.illegal_generation
        return group.check_commit(
            who.member_id, who.generation_or_epoch, who.group_instance_id, who.api_version, in_transaction=True
        )

    def commit_in_transaction(
        self, who: Committer, commits: Sequence[Commit], producer_id: int, epoch: int
    ) -> list[ErrorCode]:
        """An error for each commit; for a group that `check_in_transaction` found to be fine. They are pending until
        the producer's transaction is committed."""
        errors, changes = self._offsets.commit(who.group_id, commits, self._coordinator.now_ms(), None)
        if not changes:
            return errors
        try:
            self._check_room(who.group_id, _pending_bytes(changes))
            self._coordinator.append_pending(who.group_id, changes, producer_id, epoch)
        except StratalogError as failure:
            log.warning("group %r: offsets could not be committed in a transaction: %s", who.group_id, failure)
            failed = _commit_error(failure)
            return [failed if each is ErrorCode.none else each for each in errors]
        if self._coordinator.group(who.group_id) is None:
            self._coordinator.new_classic_group(who.group_id)
        return errors

    def _check_room(self, group_id: str, more: int) -> None:
        """A group that has a member keeps its place in the budget; what is only made for its offsets is new."""
        is_new = self._coordinator.group(group_id) is None
        if is_new:
            more += group_bytes(group_id)
        self._coordinator.check_room(more, f"an offset of group {group_id[:200]!r}", is_new=is_new)

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return OffsetKey(group_id, topic, partition) in self._offsets.pending

    def _check_commit(self, who: Committer) -> ErrorCode:
        group = self._coordinator.group(who.group_id)
        if group is not None:
            return group.check_commit(who.member_id, who.generation_or_epoch, who.group_instance_id, who.api_version)
        if who.generation_or_epoch < 0:
            return ErrorCode.none  # a consumer that assigns its partitions itself needs no group but for its offsets
        if who.api_version >= _FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND:
            return ErrorCode.group_id_not_found
        return ErrorCode.illegal_generation

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """A group that does not exist has no offsets, which is no error."""
        group = self._coordinator.group(group_id)
        return ErrorCode.none if group is None else group.check_fetch(member_id, member_epoch)

    def find(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._offsets.find(OffsetKey(group_id, topic, partition))

    def all(self, group_id: str) -> Mapping[str, Mapping[int, CommittedOffset]]:
        return self._offsets.of(group_id)

    def check_delete(self, group_id: str) -> ErrorCode:
        group = self._coordinator.group(group_id)
        return ErrorCode.group_id_not_found if group is None else group.check_offset_delete()

    def delete(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        """An error for each. Offsets that were never committed are deleted without complaint."""
        group = self._coordinator.group(group_id)
        errors = [
            ErrorCode.group_subscribed_to_topic if group is not None and group.subscribed_to(topic) else ErrorCode.none
            for topic, _ in partitions
        ]
        doomed = [
            OffsetKey(group_id, *partition)
            for partition, error in zip(partitions, errors, strict=True)
            if error is ErrorCode.none
        ]
        try:
            self._coordinator.append_deletions(group_id, self._offsets.delete(doomed))
        except StratalogError as failure:
            log.warning("group %r: offsets could not be deleted: %s", group_id, failure)
            return [append_error(failure) if each is ErrorCode.none else each for each in errors]
        return errors


def _pending_bytes(changes: Sequence[Change]) -> int:
    """When the transaction is committed they take the place of offsets there are, or their own."""
    return sum(pending_bytes(change.key, change.offset) for change in changes)


def _commit_error(error: StratalogError) -> ErrorCode:
    if error.code == ErrorCode.invalid_producer_epoch:
        return ErrorCode.invalid_producer_epoch
    if error.code in (ErrorCode.message_too_large, ErrorCode.record_list_too_large):
        return ErrorCode.invalid_commit_offset_size
    return append_error(error)
