"""The members of a classic group: their ids, pending responses and supported protocols. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stratalog.broker.groups.classic_messages import (
    JoinCallback,
    JoinedMember,
    JoinResponse,
    SyncCallback,
    SyncResponse,
)
from stratalog.broker.groups.offset_records import StoredMember
from stratalog.broker.state_budget import OBJECT_BYTES, text_bytes
from stratalog.protocol.error_codes import ErrorCode

_MEMBER_BYTES = 1_000  # for a member, without its ids, protocols and assignment


def protocols_size(protocols: Mapping[str, bytes]) -> int:
    """Return the bytes that protocols take on the wire."""
    return sum(len(name) + len(metadata) for name, metadata in protocols.items())


def protocols_bytes(protocols: Mapping[str, bytes]) -> int:
    """Return the memory that protocols take."""
    return sum(OBJECT_BYTES + text_bytes(name) + len(metadata) for name, metadata in protocols.items())


def member_bytes(member_id: str, instance_id: str | None, client_id: str, protocols: Mapping[str, bytes]) -> int:
    """Return the memory that a member takes before it has an assignment."""
    names = 2 * text_bytes(member_id) + 2 * text_bytes(instance_id) + text_bytes(client_id)
    return _MEMBER_BYTES + names + protocols_bytes(protocols)


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member. While it waits for a response, the callback of its request is in `join_callback` or `sync_callback`."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Mapping[str, bytes]
    assignment: bytes = b""
    is_new: bool = False  # it has not been in a generation yet, so it sends no heartbeats
    expires_at_ms: int | None = None  # None: it waits for a response, so its session does not expire
    join_callback: JoinCallback | None = None
    sync_callback: SyncCallback | None = None
    counted_bytes: int = 0  # the part of `ClassicMembers.state_bytes` that is for this member

    @property
    def state_bytes(self) -> int:
        fixed = member_bytes(self.member_id, self.group_instance_id, self.client_id, self.protocols)
        return fixed + len(self.assignment)

    @property
    def is_waiting(self) -> bool:
        return self.join_callback is not None or self.sync_callback is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        return b"" if protocol_name is None else self.protocols.get(protocol_name, b"")

    def has_protocols(self, protocols: Mapping[str, bytes]) -> bool:
        """Return whether the member has the same protocols, in the same order of preference."""
        return list(self.protocols.items()) == list(protocols.items())

    def finish_join(self, response: JoinResponse) -> None:
        """Respond to the JoinGroup that the member waits for, if any."""
        callback, self.join_callback = self.join_callback, None
        if callback is not None:
            callback(response)

    def finish_sync(self, response: SyncResponse) -> None:
        """Respond to the SyncGroup that the member waits for, if any."""
        callback, self.sync_callback = self.sync_callback, None
        if callback is not None:
            callback(response)

    def fail(self, join_error: ErrorCode, member_id: str, sync_error: ErrorCode) -> None:
        """Respond with errors to all requests that the member waits for. `member_id` is for the JoinGroup response."""
        self.finish_join(JoinResponse(join_error, member_id))
        self.finish_sync(SyncResponse(sync_error))

    def joined(self, protocol_name: str | None) -> JoinedMember:
        return JoinedMember(self.member_id, self.group_instance_id, self.metadata(protocol_name))

    def stored(self, protocol_name: str | None, assignment: bytes) -> StoredMember:
        return StoredMember(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol_name),
            assignment,
        )


class ClassicMembers:
    """The members, in the order in which they joined. The first is the leader until it leaves."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self._by_id: dict[str, ClassicMember] = {}
        self._static: dict[str, str] = {}  # group instance id -> member id
        self._supporters: Counter[str] = Counter()  # protocol name -> how many members support it
        self._awaiting_join = 0
        self.protocol_bytes = 0  # wire size of all members' protocols; the leader gets them in one response
        self.state_bytes = 0  # memory of all members

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(list(self._by_id.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> ClassicMember | None:
        return self._by_id.get(member_id)

    def static_id(self, group_instance_id: str | None) -> str | None:
        return None if group_instance_id is None else self._static.get(group_instance_id)

    def check(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return NONE if the id belongs to a member, and the instance id, if there is one, to the same member."""
        if group_instance_id is not None:
            holder = self._static.get(group_instance_id)
            if holder is None:
                return ErrorCode.unknown_member_id
            if holder != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self._by_id else ErrorCode.unknown_member_id

    def add(self, member: ClassicMember) -> None:
        self._by_id[member.member_id] = member
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member.member_id
        self._count(member.protocols, 1)
        self._recount(member)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> ClassicMember | None:
        member = self._by_id.pop(member_id, None)
        if member is None:
            return None
        self._count(member.protocols, -1)
        self.state_bytes -= member.counted_bytes
        if member.join_callback is not None:
            self._awaiting_join -= 1
        if member.group_instance_id is not None and self._static.get(member.group_instance_id) == member_id:
            del self._static[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._by_id), None)
        return member

    def rename(self, member: ClassicMember, new_id: str) -> None:
        """Give a static member that rejoins a new id. It keeps its position in the order and its leadership."""
        was_leader = self.leader == member.member_id
        member.member_id = new_id
        self._by_id = {member.member_id: member for member in self._by_id.values()}
        assert member.group_instance_id is not None, "only static members get a new id"
        self._static[member.group_instance_id] = new_id
        self._recount(member)
        if was_leader:
            self.leader = new_id

    def set_protocols(self, member: ClassicMember, protocols: Mapping[str, bytes]) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)
        self._recount(member)

    def set_client(self, member: ClassicMember, client_id: str, client_host: str) -> None:
        member.client_id, member.client_host = client_id, client_host
        self._recount(member)

    def set_assignment(self, member: ClassicMember, assignment: bytes) -> None:
        member.assignment = assignment
        self._recount(member)

    def _recount(self, member: ClassicMember) -> None:
        counted, member.counted_bytes = member.counted_bytes, member.state_bytes
        self.state_bytes += member.counted_bytes - counted

    def _count(self, protocols: Mapping[str, bytes], by: int) -> None:
        self.protocol_bytes += by * protocols_size(protocols)
        for name in protocols:
            self._supporters[name] += by
            if not self._supporters[name]:
                del self._supporters[name]

    # Waiting for the join phase

    def await_join(self, member: ClassicMember, callback: JoinCallback) -> None:
        """Hold a JoinGroup until the join phase ends. An earlier one of the same member, which its client has given up
        on, gets REBALANCE_IN_PROGRESS."""
        self.finish_join(member, JoinResponse(ErrorCode.rebalance_in_progress, member.member_id))
        member.join_callback = callback
        self._awaiting_join += 1

    def finish_join(self, member: ClassicMember, response: JoinResponse) -> None:
        if member.join_callback is not None:
            self._awaiting_join -= 1
            member.finish_join(response)

    def stop_awaiting_join(self, member: ClassicMember) -> None:
        """Drop the JoinGroup of a client that has disconnected."""
        if member.join_callback is not None:
            self._awaiting_join -= 1
            member.join_callback = None

    @property
    def awaiting_join(self) -> int:
        """The number of members that have joined and wait for the join phase to end."""
        return self._awaiting_join

    def elect_joined_leader(self) -> bool:
        """Make a member that has joined the leader, the current leader if possible. Return False if none has joined."""
        leader = None if self.leader is None else self._by_id[self.leader]
        if leader is not None and leader.join_callback is not None:
            return True
        for member in self._by_id.values():
            if member.join_callback is not None:
                self.leader = member.member_id
                return True
        return False

    # Protocols

    def support(self, protocols: Mapping[str, bytes]) -> bool:
        """Return whether all members support one of these protocols."""
        return any(self._supporters[name] == len(self._by_id) for name in protocols)

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer, among those that all members support."""
        candidates = {name for name, count in self._supporters.items() if count == len(self._by_id)}
        votes = Counter(
            next(name for name in member.protocols if name in candidates) for member in self._by_id.values()
        )
        return votes.most_common(1)[0][0]

    def longest_rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self._by_id.values()), default=0)
