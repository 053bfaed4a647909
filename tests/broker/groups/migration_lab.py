"""A group that is upgraded and downgraded while it runs: a coordinator, and consumers of both protocols.

Classic consumers follow the protocol. Eager ones stop reading before they join. Cooperative ones stop reading revoked
partitions before they join again. `reading` has the partitions that a consumer reads at the moment.
"""

from __future__ import annotations

import asyncio
from struct import pack

from kio.schema.errors import ErrorCode

from stratalog.broker.groups.classic_group import ClassicGroup
from stratalog.broker.groups.classic_messages import JoinResponse, MemberIdentity, SyncRequest, SyncResponse
from stratalog.broker.groups.classic_service import ClassicGroups
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.consumer_classic_members import with_ids
from stratalog.broker.groups.consumer_coordinator import ConsumerGroups
from stratalog.broker.groups.consumer_group import ConsumerGroup, replay
from stratalog.broker.groups.consumer_protocol import encode_assignment, parse_assignment, parse_subscription
from stratalog.broker.groups.consumer_requests import GroupRefusedError, Heartbeat, HeartbeatResponse
from tests.broker.groups.consumer_world import FakeTopics, InBackground, run
from tests.broker.groups.manual_coordinator import ListLog, ManualCoordinator
from tests.broker.groups.members import Join, Sync, join_request
from tests.broker.groups.test_consumer_group_model import Client, Partition, flat

NONE = ErrorCode.none
SESSION_MS = 45_000
EAGER, COOPERATIVE = "range", "cooperative-sticky"


class MigrationLab:
    """One broker and the group "g"."""

    def __init__(self, topics: FakeTopics, config: GroupConfig | None = None) -> None:
        self.topics = topics
        self.config = config or GroupConfig(group_initial_rebalance_delay_ms=0)
        self.log = ListLog()
        self._start(None)

    def _start(self, former: ManualCoordinator | None) -> None:
        clock = None if former is None else former.manual_clock
        self.host = ManualCoordinator(self.config, self.log, replay, clock)
        self.consumer_groups = ConsumerGroups(self.host, self.topics, self.config, InBackground)
        self.classic_groups = ClassicGroups(self.host, self.consumer_groups)
        asyncio.run(self.host.load())

    def restart(self) -> None:
        """Restart the broker as after kill -9."""
        self.host._closed = True
        self.topics.forget_listeners()
        self._start(self.host)

    @property
    def kind(self) -> str | None:
        group = self.host.group("g")
        return None if group is None else group.kind

    @property
    def member_ids(self) -> set[str]:
        match self.host.group("g"):
            case ConsumerGroup(members=members):
                return set(members)
            case ClassicGroup(member_ids=ids):
                return set(ids)
            case _:
                return set()

    def send(self, request: Heartbeat, api_version: int = 1) -> HeartbeatResponse:
        return run(self.consumer_groups.heartbeat(request, api_version))

    def advance(self, milliseconds: int) -> None:
        self.host.timers.advance(milliseconds)

    def commit_error(self, member_id: str, generation: int, version: int = 9) -> ErrorCode:
        group = self.host.group("g")
        assert group is not None
        return group.check_commit(member_id, generation, None, version)


class NewConsumer(Client):
    """A consumer that uses the KIP-848 protocol."""

    def __init__(self, lab: MigrationLab, member_id: str, *topics: str) -> None:
        super().__init__(lab, member_id, (topics, ""), None)  # type: ignore[arg-type]

    def step(self) -> None:
        try:
            self.beat()
        except GroupRefusedError as refused:
            assert refused.code is ErrorCode.group_id_not_found  # it was removed, and the group is a classic one
            self._start_anew()
        else:
            self.give_up()

    def beat_in_vain(self) -> None:
        """Send a heartbeat whose response is lost."""
        try:
            self.beat(answer_is_lost=True)
        except GroupRefusedError as refused:
            assert refused.code is ErrorCode.group_id_not_found
            self._start_anew()

    def close(self) -> None:
        self.leave(-1)


class ClassicConsumer:
    def __init__(
        self,
        lab: MigrationLab,
        *topics: str,
        protocol: str = EAGER,
        instance_id: str | None = None,
        other_protocols: tuple[str, ...] = (),
    ) -> None:
        self.lab = lab
        self.topics = topics
        self.protocol = protocol
        self.other_protocols = other_protocols
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.reading: set[Partition] = set()
        self.lost = 0  # how often it was removed and could not commit its position
        self._must_join = True
        self._join: Join | None = None
        self._sync: Sync | None = None

    @property
    def is_settled(self) -> bool:
        return not self._must_join and self._join is None and self._sync is None

    def step(self) -> None:
        """Do the consumer's next step. While it waits for a response, do nothing."""
        if self._join is not None:
            if self._join:
                answer, self._join = self._join.answer, None
                self._joined(answer)
        elif self._sync is not None:
            if self._sync:
                synced, self._sync = self._sync.answer, None
                self._synced(synced)
        elif self._must_join:
            self._send_join()
        else:
            error = self.lab.classic_groups.heartbeat("g", self.member_id, self.instance_id, self.generation)
            if error is ErrorCode.rebalance_in_progress:
                assert self.lab.commit_error(self.member_id, self.generation) is NONE, "it must be able to commit"
                self._send_join()
            elif error is not NONE:
                self._start_anew()

    def close(self) -> None:
        if self.member_id:
            self.lab.classic_groups.leave("g", [MemberIdentity(self.member_id, self.instance_id)])
        self.reading = set()

    def hang_up(self) -> None:
        """Drop a waiting request, as the broker was restarted and will not respond."""
        if self._join is not None or self._sync is not None:
            self._join = self._sync = None
            self._must_join = True

    def lose_connection(self) -> None:
        if self._join is not None:
            self.lab.classic_groups.abandon_join("g", self._join)
        if self._sync is not None:
            self.lab.classic_groups.abandon_sync("g", self._sync)
        self.hang_up()

    def _send_join(self) -> None:
        if self.protocol == EAGER:
            self.reading = set()
        self._must_join = False
        self._join = Join()
        request = join_request(
            self.member_id,
            protocols=dict.fromkeys((self.protocol, *self.other_protocols), self._metadata()),
            session_ms=SESSION_MS,
            instance_id=self.instance_id,
            needs_known_member_id=True,
        )
        self.lab.classic_groups.join("g", request, self._join)

    def _metadata(self) -> bytes:
        names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in sorted(self.topics))
        owned: dict[str, list[int]] = {}
        for topic_id, index in self.reading:
            topic = self.lab.topics.by_id(topic_id)
            if topic is not None:
                owned.setdefault(topic.name, []).append(index)
        claims = b"".join(
            pack(">h", len(topic)) + topic.encode() + pack(f">i{len(indexes)}i", len(indexes), *sorted(indexes))
            for topic, indexes in owned.items()
        )
        return pack(">hi", 1, len(self.topics)) + names + pack(">ii", -1, len(owned)) + claims

    def _joined(self, answer: JoinResponse) -> None:
        if answer.error is ErrorCode.member_id_required:
            self.member_id, self._must_join = answer.member_id, True
        elif answer.error is ErrorCode.rebalance_in_progress:
            self._must_join = True
        elif answer.error is not NONE:
            self._start_anew()
        else:
            self.member_id, self.generation = answer.member_id, answer.generation
            shares = self._shares(answer) if answer.leader == answer.member_id else {}
            request = SyncRequest(
                self.member_id, self.instance_id, self.generation, "consumer", answer.protocol_name, shares
            )
            self._sync = Sync()
            self.lab.classic_groups.sync("g", request, self._sync)

    def _shares(self, answer: JoinResponse) -> dict[str, bytes]:
        """Assign the partitions as the leader. Partitions that another member still owns stay free in this
        generation."""
        members = {one.member_id: parse_subscription(one.metadata) for one in answer.members}
        owner = {
            (topic, index): member_id
            for member_id, subscription in members.items()
            for topic, indexes in subscription.owned.items()
            for index in indexes
        }
        shares: dict[str, dict[str, frozenset[int]]] = {member_id: {} for member_id in members}
        for topic in self.lab.topics.all():
            subscribers = sorted(each for each, subscription in members.items() if topic.name in subscription.topics)
            for index in range(topic.partition_count):
                if subscribers:
                    taker = subscribers[index % len(subscribers)]
                    if owner.get((topic.name, index), taker) == taker:
                        mine = shares[taker].get(topic.name, frozenset())
                        shares[taker][topic.name] = mine | {index}
        return {member_id: encode_assignment(share, 1) for member_id, share in shares.items()}

    def _synced(self, answer: SyncResponse) -> None:
        if answer.error is ErrorCode.rebalance_in_progress:
            self._must_join = True
        elif answer.error is not NONE:
            self._start_anew()
        else:
            share = flat(with_ids(parse_assignment(answer.assignment).partitions, self.lab.topics))
            self._must_join = bool(self.reading - share)  # it has revoked partitions that others wait for
            self.reading = share

    def _start_anew(self) -> None:
        self.lost += bool(self.reading)
        self.member_id, self.generation = "", -1
        self.reading = set()
        self._must_join = True
