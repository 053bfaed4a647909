"""The interfaces between the coordinator and the groups of both kinds.

- "classic": a leader among the members assigns the partitions (JoinGroup and SyncGroup).
- "consumer" (KIP-848): the broker assigns the partitions (ConsumerGroupHeartbeat).

Offsets are stored by group id, outside the group objects, so a group that changes its kind keeps them. The two kinds
share only the names in this module.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stratalog.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from stratalog.broker.groups.offset_records import StoredGroup

GroupKind = Literal["classic", "consumer"]
GroupRecord = tuple[bytes, bytes | None]  # key and value of a record of __consumer_offsets; None: a tombstone


class Group(Protocol):
    """A group of either kind. Its methods neither wait nor write: the coordinator appends the records they return."""

    @property
    def group_id(self) -> str: ...

    @property
    def kind(self) -> GroupKind: ...

    @property
    def state_name(self) -> str:
        """Kafka's name: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead; Assigning, Reconciling."""

    @property
    def protocol_type(self) -> str:
        """The protocol type that ListGroups shows: "consumer" for consumers, "" for a group that only has offsets."""

    @property
    def state_bytes(self) -> int:
        """The memory that the group takes; see broker/state_budget.py. This is a cheap call."""

    @property
    def is_empty(self) -> bool:
        """True if the group has no members. It may then be deleted or replaced by a group of the other kind."""

    def check_commit(
        self,
        member_id: str,
        generation_or_epoch: int,
        group_instance_id: str | None,
        api_version: int,
        *,
        in_transaction: bool = False,
    ) -> ErrorCode:
        """Return NONE if this member may commit offsets now, else the error to respond with. `api_version` is that of
        OffsetCommit: version 9 added errors. In a transaction the request may leave out the member."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return NONE if offsets may be fetched, else the error to respond with. A request that names no member, like
        all before version 9, has None and -1."""

    def check_offset_delete(self) -> ErrorCode:
        """Return NONE if OffsetDelete may delete offsets of topics that no member subscribes to."""

    def subscribed_to(self, topic: str) -> bool: ...

    def offset_expires_since(self, commit_timestamp_ms: int) -> int | None:
        """Return the time from which offsets.retention.minutes counts for an offset that was committed at this time.
        Return None if it does not expire.

        Not called for topics that the group subscribes to: their offsets never expire.
        """

    def tombstones(self) -> list[GroupRecord]:
        """Return the tombstones that delete the group from the log. Its offsets stay."""


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class GroupTable(Protocol):
    """The existing groups, which the replay of a record changes. Implemented by the coordinator."""

    def group(self, group_id: str) -> Group | None: ...

    def put(self, group: Group) -> None:
        """Add a group. It replaces one of the same id."""

    def remove(self, group_id: str) -> None:
        """Remove a group if it exists. Its offsets stay."""


class GroupHost(GroupTable, Protocol):
    """The interface of the coordinator for the code that runs a kind of group."""

    def check_room(self, more: int, what: str, *, is_new: bool) -> None:
        """Raise StateBudgetError if the budget has no room for so many more bytes."""

    def become_classic(self, group_id: str, stored: StoredGroup, protocols: Mapping[str, Mapping[str, bytes]]) -> None:
        """Replace a KIP-848 group by a classic group, whose records are already in the log. `protocols` has all
        protocols of each member, by member id."""

    def recount(self, group: Group) -> None:
        """Update the count of the memory that a group takes. Call this after each change of the group."""

    async def prepare(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        """Create __consumer_offsets if it is missing, and return the `status` after that. Call this before anything is
        appended for a group."""

    def status(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        """Return NONE if requests for the group can be served, else the error to respond with: INVALID_GROUP_ID,
        COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE. As in Kafka, the group id may be empty only for
        requests about offsets, and to describe and delete groups."""

    def append(self, group_id: str, records: Sequence[GroupRecord]) -> None:
        """Write records as one batch. When this returns they survive kill -9. On StratalogError nothing was written, so
        no client may see the state that the records describe."""

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task. It is cancelled when the broker stops."""

    def call_later(self, seconds: float, call: Callable[[], None]) -> TimerHandle: ...

    def now_ms(self) -> int: ...

    def on_loaded(self, call: Callable[[Group], None]) -> None:
        """Register `call`, which gets each group of kind "consumer" when its records have been replayed, so that it can
        start the group's timers."""


ReplayConsumerRecord = Callable[[GroupTable, bytes, bytes | None], None]
"""Applies one record of a KIP-848 group to the table. The type at the beginning of its key is 3 to 8, or 16.

Records come as from a compacted log: only the last of each key, without tombstones, in the order of those last writes.
So a member's record may come before its group's."""
