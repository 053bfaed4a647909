"""Members of a classic group for tests. They record the responses that they get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack
from typing import Any

from kio.schema.errors import ErrorCode

from stratalog.broker.groups.classic_group import ClassicGroup
from stratalog.broker.groups.classic_messages import (
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    Now,
    SyncRequest,
    SyncResponse,
)
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.group import GroupRecord
from stratalog.errors import StratalogError

SESSION_MS = 10_000
REBALANCE_MS = 60_000


def subscription(*topics: str) -> bytes:
    """Encode a subscription as consumers do: version 1, topics, no user data, no owned partitions."""
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", 1, len(topics)) + names + pack(">ii", -1, 0)


PROTOCOLS = {"range": subscription("orders")}


def join_request(
    member_id: str = "",
    *,
    instance_id: str | None = None,
    protocols: Mapping[str, bytes] = PROTOCOLS,
    protocol_type: str = "consumer",
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
    needs_known_member_id: bool = False,
    may_skip_assignment: bool = False,
    client_id: str = "client",
) -> JoinRequest:
    return JoinRequest(
        member_id,
        instance_id,
        client_id,
        "/127.0.0.1",
        session_ms,
        rebalance_ms,
        protocol_type,
        protocols,
        needs_known_member_id,
        may_skip_assignment,
    )


class Join(list[JoinResponse]):
    """The responses to one JoinGroup. A second one is an error."""

    def __call__(self, answer: JoinResponse) -> None:
        assert not self, "answered twice"
        self.append(answer)

    @property
    def answer(self) -> JoinResponse:
        assert self, "not answered yet"
        return self[0]


class Sync(list[SyncResponse]):
    def __call__(self, answer: SyncResponse) -> None:
        assert not self, "answered twice"
        self.append(answer)

    @property
    def answer(self) -> SyncResponse:
        assert self, "not answered yet"
        return self[0]


class GroupUnderTest:
    """A classic group with a clock that the test moves, and a store that can be set to fail."""

    def __init__(self, **settings: int) -> None:
        self.stored: list[GroupRecord] = []
        self.failure: StratalogError | None = None
        self.config = GroupConfig(**settings)  # type: ignore[arg-type]
        self._ids = 0
        self.group = ClassicGroup("g", self.config, self._store, self._new_id)
        self.now = Now(1_700_000_000_000, 5_000)

    def _store(self, records: Sequence[GroupRecord]) -> None:
        if self.failure is not None:
            raise self.failure
        self.stored += records

    def _new_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}-{self._ids}"

    def advance(self, milliseconds: int) -> None:
        """Let time pass, and call the group at its `wake_at_ms`."""
        end = self.now.monotonic_ms + milliseconds
        wakes = 0
        while self.group.wake_at_ms is not None and self.group.wake_at_ms <= end:
            wait = max(self.group.wake_at_ms - self.now.monotonic_ms, 0)
            wakes = 0 if wait else wakes + 1
            assert wakes < 100, "woken for nothing, without end"
            self._step(wait)
            self.group.expire(self.now)
        self._step(end - self.now.monotonic_ms)

    def _step(self, milliseconds: int) -> None:
        self.now = Now(self.now.wall_ms + milliseconds, self.now.monotonic_ms + milliseconds)

    def join(self, member_id: str = "", answer: Join | None = None, **changes: Any) -> Join:
        answer = Join() if answer is None else answer
        self.group.join(join_request(member_id, **changes), self.now, answer)
        return answer

    def sync(
        self, member_id: str, assignments: Mapping[str, bytes] | None = None, *, generation: int | None = None,
        instance_id: str | None = None, protocol_type: str | None = None, protocol_name: str | None = None,
        answer: Sync | None = None,
    ) -> Sync:  # fmt: skip
        answer = Sync() if answer is None else answer
        request = SyncRequest(
            member_id,
            instance_id,
            self.group.generation if generation is None else generation,
            protocol_type,
            protocol_name,
            assignments or {},
        )
        self.group.sync(request, self.now, answer)
        return answer

    def heartbeat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> ErrorCode:
        current = self.group.generation if generation is None else generation
        return self.group.heartbeat(member_id, instance_id, current, self.now)

    def leave(self, *identities: MemberIdentity) -> list[ErrorCode]:
        return self.group.leave(identities, self.now)

    def stable(self, count: int = 2, **changes: Any) -> list[str]:
        """Create a stable group of so many members, and return their ids, the leader first. Each member's assignment is
        its own id."""
        joins = [self.join(**changes) for _ in range(count)]
        self.advance(self.config.group_initial_rebalance_delay_ms * (count + 1))
        ids = [join.answer.member_id for join in joins]
        leader = joins[0].answer.leader
        ids.sort(key=lambda member_id: member_id != leader)
        syncs = [self.sync(member_id) for member_id in ids[1:]]
        syncs.append(self.sync(leader, {member_id: member_id.encode() for member_id in ids}))
        assert all(sync.answer.error is ErrorCode.none for sync in syncs)
        return ids
