"""Checks requests to commit, fetch and delete offsets, and commits and deletes them, for groups of both kinds.

Requests that fetch offsets read them from `GroupCoordinator.offsets`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from stratalog.broker.groups.classic_group import ClassicGroup
from stratalog.broker.groups.classic_rebalance import append_error, group_bytes
from stratalog.broker.groups.coordinator import GroupCoordinator
from stratalog.broker.groups.offset_records import OffsetKey
from stratalog.broker.groups.offsets import OffsetChange, OffsetToCommit
from stratalog.broker.groups.pending_offsets import pending_bytes
from stratalog.errors import StratalogError
from stratalog.protocol.error_codes import ErrorCode

log = logging.getLogger(__name__)

_FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 9


class Committer(NamedTuple):
    """The member that commits, as its request names it. The fields after the group id are for `Group.check_commit`."""

    group_id: str
    member_id: str
    generation_or_epoch: int
    group_instance_id: str | None
    api_version: int


class OffsetService:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._offsets = coordinator.offsets

    def commit(
        self, committer: Committer, commits: Sequence[OffsetToCommit], retention_ms: int | None
    ) -> list[ErrorCode]:
        """Commit offsets of a group for which `prepare` returned no error. Return an error code for each offset."""
        error = self._check_commit(committer)
        if error is not ErrorCode.none:
            return [error for _ in commits]
        errors, changes = self._offsets.commit(committer.group_id, commits, self._coordinator.now_ms(), retention_ms)
        if not changes:
            return errors
        try:
            self._check_room(committer.group_id, self._offsets.bytes_added(changes))
            self._coordinator.append_changes(committer.group_id, changes)
        except StratalogError as failure:
            log.warning("group %r: offsets could not be committed: %s", committer.group_id, failure)
            failed = _commit_error(failure)
            return [failed if each is ErrorCode.none else each for each in errors]
        group = self._coordinator.group(committer.group_id) or self._coordinator.new_classic_group(committer.group_id)
        if isinstance(group, ClassicGroup):
            group.committed(committer.member_id, self._coordinator.now())
            self._coordinator.refresh(group)
        return errors

    def check_in_transaction(self, committer: Committer) -> ErrorCode:
        """Return NONE if the member may commit offsets in a transaction, else the error to respond with."""
        group = self._coordinator.group(committer.group_id)
        if group is None:
            return ErrorCode.none if committer.generation_or_epoch < 0 else ErrorCode.illegal_generation
        return group.check_commit(
            committer.member_id,
            committer.generation_or_epoch,
            committer.group_instance_id,
            committer.api_version,
            in_transaction=True,
        )

    def commit_in_transaction(
        self, committer: Committer, commits: Sequence[OffsetToCommit], producer_id: int, epoch: int
    ) -> list[ErrorCode]:
        """Write offsets that are pending until the producer's transaction ends. Return an error code for each offset.
        `check_in_transaction` must have returned no error."""
        errors, changes = self._offsets.commit(committer.group_id, commits, self._coordinator.now_ms(), None)
        if not changes:
            return errors
        try:
            self._check_room(committer.group_id, _pending_bytes(changes))
            self._coordinator.append_pending(committer.group_id, changes, producer_id, epoch)
        except StratalogError as failure:
            log.warning("group %r: offsets could not be committed in a transaction: %s", committer.group_id, failure)
            failed = _commit_error(failure)
            return [failed if each is ErrorCode.none else each for each in errors]
        if self._coordinator.group(committer.group_id) is None:
            self._coordinator.new_classic_group(committer.group_id)
        return errors

    def _check_room(self, group_id: str, more: int) -> None:
        """Raise StateBudgetError if the budget has no room. A group that would be created for the offsets counts as
        new, which lowers the limit."""
        is_new = self._coordinator.group(group_id) is None
        if is_new:
            more += group_bytes(group_id)
        self._coordinator.check_room(more, f"an offset of group {group_id[:200]!r}", is_new=is_new)

    def _check_commit(self, committer: Committer) -> ErrorCode:
        group = self._coordinator.group(committer.group_id)
        if group is not None:
            return group.check_commit(
                committer.member_id, committer.generation_or_epoch, committer.group_instance_id, committer.api_version
            )
        if committer.generation_or_epoch < 0:
            return ErrorCode.none  # a consumer that assigns its partitions itself uses a group only for its offsets
        if committer.api_version >= _FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND:
            return ErrorCode.group_id_not_found
        return ErrorCode.illegal_generation

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return NONE if offsets may be fetched, else the error to respond with. A missing group has no offsets, which
        is not an error."""
        group = self._coordinator.group(group_id)
        return ErrorCode.none if group is None else group.check_fetch(member_id, member_epoch)

    def check_delete(self, group_id: str) -> ErrorCode:
        """Return NONE if the group exists and its offsets may be deleted, else the error to respond with."""
        group = self._coordinator.group(group_id)
        return ErrorCode.group_id_not_found if group is None else group.check_offset_delete()

    def delete(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        """Delete offsets. Return an error code for each partition. A missing offset is not an error."""
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


def _pending_bytes(changes: Sequence[OffsetChange]) -> int:
    """Return the memory that pending offsets take. Committing the transaction later takes no more than that."""
    return sum(pending_bytes(change.key, change.offset) for change in changes)


def _commit_error(error: StratalogError) -> ErrorCode:
    if error.code == ErrorCode.invalid_producer_epoch:
        return ErrorCode.invalid_producer_epoch
    if error.code in (ErrorCode.message_too_large, ErrorCode.record_list_too_large):
        return ErrorCode.invalid_commit_offset_size
    return append_error(error)
