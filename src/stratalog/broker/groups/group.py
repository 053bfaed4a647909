"""What the coordinator wants of a group, whatever its kind, and what it offers to the code that runs one.

Two kinds exist: "classic" (members elect a leader, which assigns; JoinGroup and SyncGroup) and "consumer" (KIP-848: the
broker assigns; ConsumerGroupHeartbeat). Offsets are kept by group id, outside the group objects, so a group that turns
from one kind into the other keeps them. Only the names of this module are shared between the two kinds.
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
    """A group of either kind. Nothing here waits or writes: the coordinator appends what the methods return."""

    @property
    def group_id(self) -> str: ...

    @property
    def kind(self) -> GroupKind: ...

    @property
    def state_name(self) -> str:
        """Kafka's name: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead; Assigning, Reconciling."""

    @property
    def protocol_type(self) -> str:
        """As ListGroups shows it: "consumer" for consumers, "" for a group that only has offsets."""

    @property
    def state_bytes(self) -> int:
        """What it takes in memory; see broker/state_budget.py. Quick to ask for."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, so that it may be deleted or turned into the other kind."""

    def check_commit(
        self,
        member_id: str,
        generation_or_epoch: int,
        group_instance_id: str | None,
        api_version: int,
        *,
        in_transaction: bool = False,
    ) -> ErrorCode:
        """Whether this member may commit offsets now. `api_version` is OffsetCommit's: some errors are new in 9.
        In a transaction it need not say who it is."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether offsets may be fetched; None and -1 where the request names no member (all before version 9)."""

    def check_offset_delete(self) -> ErrorCode:
        """Whether offsets of topics nobody subscribes to may be deleted (OffsetDelete)."""

    def subscribed_to(self, topic: str) -> bool: ...

    def offset_expires_since(self, commit_timestamp_ms: int) -> int | None:
        """From when offsets.retention.minutes counts for an offset committed at that time; None: it does not expire.

        Not asked for topics that the group is subscribed to: those never expire.
        """

    def tombstones(self) -> list[GroupRecord]:
        """The records that make the group itself (not its offsets) disappear at the next start."""


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class GroupTable(Protocol):
    """The groups that exist; what a replayed record changes. The coordinator is one."""

    def group(self, group_id: str) -> Group | None: ...

    def put(self, group: Group) -> None:
        """Add a group, in place of one of the same id."""

    def remove(self, group_id: str) -> None:
        """Forget a group, not its offsets; nothing where it does not exist."""


class GroupHost(GroupTable, Protocol):
    """What the code that runs a kind of group gets from the coordinator."""

    def check_room(self, more: int, what: str, *, is_new: bool) -> None:
        """Raise StateBudgetError where there is no room for so many bytes more."""

    def become_classic(self, group_id: str, stored: StoredGroup, protocols: Mapping[str, Mapping[str, bytes]]) -> None:
        """A KIP-848 group is a classic one from now on; its records are in the log. `protocols` are all that a member
        supports, by its id."""

    def recount(self, group: Group) -> None:
        """To be called after a group has changed: what it takes in memory is counted."""

    async def prepare(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        """Before anything is appended for a group: makes __consumer_offsets where it is missing, and says whether
        requests for the group can be served (INVALID_GROUP_ID, COORDINATOR_LOAD_IN_PROGRESS, ...). Kafka takes the
        empty group id only for offsets and for describing and deleting."""

    def status(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        """The same without making anything, for requests that only read."""

    def append(self, group_id: str, records: Sequence[GroupRecord]) -> None:
        """Write records as one batch; when this returns they survive kill -9. Raises StratalogError: nothing was
        written, so the state that they would have made must not be shown to anybody."""

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the requests. It is cancelled when the broker stops."""

    def call_later(self, seconds: float, call: Callable[[], None]) -> TimerHandle: ...

    def now_ms(self) -> int: ...

    def on_loaded(self, call: Callable[[Group], None]) -> None:
        """`call` gets each group of kind "consumer" once its records have been replayed: time to start its timers."""


ReplayConsumerRecord = Callable[[GroupTable, bytes, bytes | None], None]
"""Applies one record of a KIP-848 group (its key begins with the type: 3 to 8, or 16) to the table.

Records come as from a compacted log: only the last of each key, no tombstones, in the order of those last writes. So a
member's record may come before its group's."""
