"""A classic group under random joins, syncs, heartbeats, leaves, disconnects, failing writes, restarts, and time.

It checks that there is one generation at a time, on which all members agree; that every assignment comes from the
leader of its generation; that a stable group is stored; and that no request waits without end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from stratalog.broker.groups.classic_group import NEW_MEMBER_JOIN_TIMEOUT_MS, ClassicGroup
from stratalog.broker.groups.classic_messages import JoinResponse, MemberIdentity, SyncResponse
from stratalog.broker.groups.classic_rebalance import _PENDING_BYTES, ClassicGroupState
from stratalog.broker.groups.offset_records import parse_group
from stratalog.broker.state_budget import OBJECT_BYTES
from stratalog.errors import StorageError
from tests.broker.groups.members import REBALANCE_MS, GroupUnderTest, Join, Sync, subscription

NONE = ErrorCode.none
INSTANCES = ("i", "j")
PROTOCOLS = (
    {"range": subscription("a")},
    {"range": subscription("a", "b")},
    {"range": subscription("a"), "sticky": subscription("a")},
    {"sticky": subscription("a"), "range": subscription("b")},
    {"sticky": subscription("c")},
)
SESSIONS = (6_000, 10_000, 30_000)
REBALANCES = (REBALANCE_MS, 5_000, 0)


@dataclass
class Generation:
    """The responses that clients got about one generation."""

    leader: str = ""
    protocol: str | None = None
    members: set[str] = field(default_factory=set)
    shares: dict[str, bytes] | None = None  # the leader's assignment


class WatchedJoin(Join):
    """A sync whose response is checked when it comes."""

    def __init__(self, model: ClassicGroupModel, instance: str | None) -> None:
        super().__init__()
        self._model = model
        self._instance = instance

    def __call__(self, answer: JoinResponse) -> None:
        super().__call__(answer)
        self._model.check_join(answer, self._instance)


class WatchedSync(Sync):
    def __init__(self, model: ClassicGroupModel, member: str, generation: int) -> None:
        super().__init__()
        self._model = model
        self._member = member
        self._generation = generation

    def __call__(self, answer: SyncResponse) -> None:
        super().__call__(answer)
        self._model.check_sync(answer, self._member, self._generation)


class ClassicGroupModel(RuleBasedStateMachine):
    @initialize(delay=st.sampled_from((0, 3_000)), largest=st.sampled_from((2, 4, 100)))
    def start(self, delay: int, largest: int) -> None:
        self.test = GroupUnderTest(group_initial_rebalance_delay_ms=delay, group_max_size=largest)
        self.joins: list[Join] = []
        self.syncs: list[Sync] = []
        self.assigning: dict[str, bytes] | None = None
        self.generations: dict[int, Generation] = {}
        self.known: dict[str, tuple[str | None, int]] = {}  # member id -> instance id, generation
        self.lives = 0

    @property
    def group(self) -> ClassicGroup:
        return self.test.group

    def _pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([*self.known, "made-up"]), label="member")

    # Requests of clients

    @rule(
        static=st.none() | st.sampled_from(INSTANCES),
        protocols=st.sampled_from(PROTOCOLS),
        session=st.sampled_from(SESSIONS),
        rebalance=st.sampled_from(REBALANCES),
        new=st.booleans(),
    )
    def join_as_new(
        self, static: str | None, protocols: dict[str, bytes], session: int, rebalance: int, new: bool
    ) -> None:
        self.joins.append(
            self.test.join(
                answer=WatchedJoin(self, static),
                instance_id=static,
                protocols=protocols,
                session_ms=session,
                rebalance_ms=rebalance,
                needs_known_member_id=new,
                may_skip_assignment=new,
            )
        )

    @rule(data=st.data(), protocols=st.sampled_from(PROTOCOLS), rebalance=st.sampled_from(REBALANCES))
    def join_again(self, data: st.DataObject, protocols: dict[str, bytes], rebalance: int) -> None:
        member = self._pick(data)
        instance = self.known.get(member, (None, 0))[0]
        watched = WatchedJoin(self, instance)
        self.joins.append(
            self.test.join(member, watched, instance_id=instance, protocols=protocols, rebalance_ms=rebalance)
        )

    @rule(data=st.data(), stale=st.booleans())
    def sync(self, data: st.DataObject, stale: bool) -> None:
        self._sync(self._pick(data), stale=stale)

    def _sync(self, member: str, *, stale: bool = False) -> None:
        instance, generation = self.known.get(member, (None, 0))
        generation -= stale
        current = self.generations.get(generation)
        shares = None
        if current is not None and current.leader == member:
            shares = {each: f"{self.lives}/{generation}/{each}".encode() for each in current.members}
        before, self.assigning = self.group.state, shares
        watched = WatchedSync(self, member, generation)
        self.syncs.append(self.test.sync(member, shares, generation=generation, instance_id=instance, answer=watched))
        if (
            shares is not None
            and before is ClassicGroupState.COMPLETING_REBALANCE
            and self.group.state is ClassicGroupState.STABLE
        ):
            assert current is not None
            assert current.shares is None, "a generation is assigned once"
            current.shares = shares
        self.assigning = None

    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        member = self._pick(data)
        instance, generation = self.known.get(member, (None, 0))
        error = self.test.heartbeat(member, generation, instance)
        if error is NONE:
            assert member in self.group.member_ids
            assert generation == self.group.generation

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        member = self._pick(data)
        instance, generation = self.known.get(member, (None, 0))
        if self.group.check_commit(member, generation, instance, 9) is NONE:
            assert member in self.group.member_ids
            assert generation == self.group.generation
            self.group.committed(member, self.test.now)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = self._pick(data)
        (error,) = self.test.leave(MemberIdentity(member, self.known.get(member, (None, 0))[0]))
        if error is NONE:
            assert member not in self.group.member_ids

    @rule(instance=st.sampled_from(INSTANCES))
    def remove_static(self, instance: str) -> None:
        self.test.leave(MemberIdentity("", instance))

    @precondition(lambda self: any(not join for join in self.joins))
    @rule(data=st.data())
    def hang_up_while_joining(self, data: st.DataObject) -> None:
        join = data.draw(st.sampled_from([one for one in self.joins if not one]))
        self.group.abandon_join(join, self.test.now)
        self.joins = [one for one in self.joins if one is not join]

    @precondition(lambda self: any(not sync for sync in self.syncs))
    @rule(data=st.data())
    def hang_up_while_syncing(self, data: st.DataObject) -> None:
        sync = data.draw(st.sampled_from([one for one in self.syncs if not one]))
        self.group.abandon_sync(sync, self.test.now)
        self.syncs = [one for one in self.syncs if one is not sync]

    @rule(data=st.data())
    def behave(self, data: st.DataObject) -> None:
        """Let all members rejoin and then sync, as clients do in the usual case."""
        for member_id in self.group.pending_ids:
            self._rejoin(member_id)
        if self.group.state is ClassicGroupState.PREPARING_REBALANCE:
            for member in list(self.group._members):
                if member.join_callback is None:
                    self._rejoin(member.member_id, member.protocols)
            self.test.advance(self.test.config.group_initial_rebalance_delay_ms)
        if self.group.state is ClassicGroupState.COMPLETING_REBALANCE:
            for member_id in data.draw(st.permutations(self.group.member_ids)):
                self._sync(member_id)

    def _rejoin(self, member_id: str, protocols: Mapping[str, bytes] = PROTOCOLS[2]) -> None:
        instance = self.known.get(member_id, (None, 0))[0]
        watched = WatchedJoin(self, instance)
        self.joins.append(self.test.join(member_id, watched, instance_id=instance, protocols=protocols))

    # Events of the broker

    @rule(milliseconds=st.sampled_from((0, 1, 500, 1_000, 1_000, 2_000, 3_000, 5_999)))
    def time_passes(self, milliseconds: int) -> None:
        self.test.advance(milliseconds)

    @rule(milliseconds=st.sampled_from((10_000, 60_000, 300_000)), chance=st.integers(0, 4))
    def much_time_passes(self, milliseconds: int, chance: int) -> None:
        if not chance:
            self.test.advance(milliseconds)

    @rule(chance=st.integers(0, 4))
    def disk_fails_or_works(self, chance: int) -> None:
        self.test.failure = None if chance else StorageError("disk full")

    @rule(chance=st.integers(0, 4))
    def restart(self, chance: int) -> None:
        """Restart the group as after kill -9: waiting requests get no response, and the stored state is restored."""
        if chance:
            return
        fresh = GroupUnderTest(
            group_initial_rebalance_delay_ms=self.test.config.group_initial_rebalance_delay_ms,
            group_max_size=self.test.config.group_max_size,
        )
        fresh.stored, fresh.now = self.test.stored, self.test.now
        fresh._ids = self.test._ids
        if fresh.stored:
            value = fresh.stored[-1][1]
            assert value is not None
            fresh.group.restore(parse_group(value))
        fresh.group.start_sessions(fresh.now)
        self.test = fresh
        self.joins.clear()
        self.syncs.clear()
        self.lives += 1
        # A generation that was not stored does not count, and its number is used again.
        self.generations = {
            number: one for number, one in self.generations.items() if number == self.group.generation and one.shares
        }

    # Checks

    def check_sync(self, answer: SyncResponse, member: str, generation: int) -> None:
        if answer.error is NONE:
            assert generation == self.group.generation, "an assignment of another generation than the requested one"
            shares = self.generations[generation].shares or self.assigning
            assert shares is not None, "an assignment that no leader made"
            assert answer.assignment == shares.get(member, b"")

    def check_join(self, answer: JoinResponse, instance: str | None) -> None:
        if answer.error is ErrorCode.member_id_required:
            self.known[answer.member_id] = (instance, 0)
        if answer.error is not NONE:
            assert answer.members == ()
            return
        assert answer.generation == self.group.generation, "a response of another generation"
        assert answer.member_id in self.group.member_ids
        known = self.generations.setdefault(answer.generation, Generation(answer.leader, answer.protocol_name))
        assert known.protocol == answer.protocol_name
        if instance is not None and known.shares is not None:
            self._note_replacement(known, answer.member_id, instance)
        elif not known.shares:
            assert known.leader == answer.leader, "two leaders of one generation"
        if answer.leader == answer.member_id:
            known.members = {one.member_id for one in answer.members}
            assert known.members == set(self.group.member_ids)
        self.known[answer.member_id] = (instance, answer.generation)

    def _note_replacement(self, known: Generation, member: str, instance: str) -> None:
        """Note that a static member rejoined a stable generation: it takes over the assignment of its old id."""
        assert known.shares is not None
        former = [each for each, (held, _) in self.known.items() if held == instance and each in known.shares]
        for each in former:
            if each != member:
                known.shares[member] = known.shares.pop(each)
                if known.leader == each:
                    known.leader = member

    @invariant()
    def states_are_what_they_say(self) -> None:
        members = list(self.group._members)
        joining = [one for one in members if one.join_callback is not None]
        syncing = [one for one in members if one.sync_callback is not None]
        assert self.group._members.awaiting_join == len(joining)
        match self.group.state:
            case ClassicGroupState.EMPTY:
                assert members == []
            case ClassicGroupState.PREPARING_REBALANCE:
                assert syncing == []
            case ClassicGroupState.COMPLETING_REBALANCE:
                assert members
                assert joining == []
            case ClassicGroupState.STABLE:
                assert members
                assert joining == syncing == []
        assert (self.group.leader is None) == (not members)
        for one in members:
            assert one.is_waiting or one.expires_at_ms is not None, "a member that would never expire"
        if members or self.group.has_pending_members:
            assert self.group.wake_at_ms is not None, "no timer would wake the group"

    @invariant()
    def what_it_takes_in_memory_is_counted(self) -> None:
        group = self.group
        members = sum(one.state_bytes for one in group._members)
        topics = sum(OBJECT_BYTES + len(topic) for topic in group._topics or ())
        empty = ClassicGroup("g", self.test.config, self.test._store).state_bytes
        assert group.state_bytes == empty + members + topics + len(group.pending_ids) * _PENDING_BYTES

    @invariant()
    def what_is_stable_is_stored(self) -> None:
        if self.group.state is ClassicGroupState.STABLE:
            value = self.test.stored[-1][1]
            assert value is not None
            copy = GroupUnderTest().group
            copy.restore(parse_group(value))
            assert (copy.describe(), copy.generation, copy.leader) == (
                self.group.describe(),
                self.group.generation,
                self.group.leader,
            )

    def teardown(self) -> None:
        """Let time pass without requests: every waiting request gets a response, and the group becomes empty."""
        if not hasattr(self, "test"):
            return
        for _ in range(4):
            self.test.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
        assert all(self.joins), "a join that never gets a response"
        assert all(self.syncs), "a sync that never gets a response"
        assert self.group.is_empty
        assert self.group.wake_at_ms is None


TestClassicGroupModel = ClassicGroupModel.TestCase
TestClassicGroupModel.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
