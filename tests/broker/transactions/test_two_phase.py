"""Several transactions that end by one append: all or none, for every request, and wherever the broker is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.partition import Partition
from stratalog.broker.state_topic import partition_of
from stratalog.broker.transactions import two_phase
from stratalog.broker.transactions.records import parse_key, parse_transaction, transaction_record
from stratalog.broker.transactions.state import (
    HIGHEST_EPOCH,
    NEVER_MS,
    ProducerIdAndEpoch,
    Transaction,
    TransactionState,
)
from stratalog.broker.transactions.transactions_topic import NAME
from stratalog.broker.transactions.two_phase import PreparedProducer, Refusal, TwoPhase
from stratalog.errors import StorageError
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.builder import build_batch
from stratalog.storage.names import TopicPartition
from tests.broker.apis.admin_lab import AdminLab
from tests.broker.metadata.registry_lab import KilledError, killed_copy
from tests.broker.transactions.test_coordinator import SETTINGS, TIMEOUT_MS, stop_at
from tests.broker.transactions.transaction_lab import tasks_done

HERE = TopicPartition("orders", 0)
WHO = ProducerIdAndEpoch(7, 3)
IDS = [name for name in (f"task-{number}" for number in range(40)) if partition_of(name, 3) == 1][:4]
ELSEWHERE = next(name for name in (f"other-{number}" for number in range(40)) if partition_of(name, 3) == 2)


def ongoing(**fields: object) -> Transaction:
    one = Transaction("t", *WHO, TIMEOUT_MS, TransactionState.ONGOING, frozenset([HERE]), 10, 20, client_version=2)
    return one._replace(**fields)  # type: ignore[arg-type]


def prepared(**fields: object) -> Transaction:
    found = two_phase.prepare(
        ongoing(**fields), ProducerIdAndEpoch(7, ongoing(**fields).epoch), NEVER_MS, 50
    ).transaction
    assert found is not None
    return found


class TestPreparing:
    def test_producers_timeout_does_not_abort_a_prepared_transaction(self) -> None:
        one = prepared()
        assert one.awaits_end
        assert ongoing().has_timed_out(10 + TIMEOUT_MS + 1)
        assert not one.has_timed_out(2**62)
        assert (one.timeout_ms, one.own_timeout_ms) == (2**31 - 1, TIMEOUT_MS)

    def test_time_limit_counts_from_the_preparation(self) -> None:
        one = two_phase.prepare(ongoing(), WHO, 1_000_000, 5_000).transaction
        assert one is not None
        assert not one.has_timed_out(1_005_000)
        assert one.has_timed_out(1_005_001)

    def test_second_preparation_changes_nothing(self) -> None:
        assert two_phase.prepare(prepared(), WHO, 1, 60) == (ErrorCode.none, None, False)

    @pytest.mark.parametrize(
        ("who", "state", "error"),
        [
            (ProducerIdAndEpoch(8, 3), TransactionState.ONGOING, ErrorCode.invalid_producer_id_mapping),
            (ProducerIdAndEpoch(7, 2), TransactionState.ONGOING, ErrorCode.producer_fenced),
            (ProducerIdAndEpoch(7, 4), TransactionState.ONGOING, ErrorCode.producer_fenced),
            (WHO, TransactionState.EMPTY, ErrorCode.invalid_txn_state),
            (WHO, TransactionState.COMPLETE_COMMIT, ErrorCode.invalid_txn_state),
            (WHO, TransactionState.PREPARE_ABORT, ErrorCode.concurrent_transactions),
        ],
    )
    def test_only_the_producers_open_transaction_can_be_prepared(
        self, who: ProducerIdAndEpoch, state: TransactionState, error: ErrorCode
    ) -> None:
        assert two_phase.prepare(ongoing(state=state), who, NEVER_MS, 50) == (error, None, False)

    @given(st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1), st.integers(10, 2**45))
    def test_record_of_a_prepared_transaction_is_read_back(self, timeout_ms: int, within_ms: int, now_ms: int) -> None:
        one = two_phase.prepare(ongoing(timeout_ms=timeout_ms), WHO, within_ms, now_ms).transaction
        assert one is not None
        key, value = transaction_record(one)
        assert value is not None
        assert parse_transaction(parse_key(key), value) == one


class TestEnding:
    @pytest.mark.parametrize("commit", [True, False])
    def test_end_raises_the_epoch_and_restores_the_producers_timeout(self, commit: bool) -> None:
        one = two_phase.end(prepared(), WHO, commit=commit, now_ms=60, new_id=None).transaction
        assert one is not None
        assert (one.state, one.epoch) == (
            TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            4,
        )
        assert (one.timeout_ms, one.awaits_end) == (TIMEOUT_MS, False)

    def test_transaction_that_is_not_prepared_is_refused(self) -> None:
        for commit in (True, False):
            for state in (
                TransactionState.EMPTY,
                TransactionState.ONGOING,
                TransactionState.COMPLETE_ABORT,
                TransactionState.COMPLETE_COMMIT,
            ):
                step = two_phase.end(ongoing(state=state), WHO, commit=commit, now_ms=60, new_id=None)
                assert step == (ErrorCode.invalid_txn_state, None, False)

    @pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT])
    def test_repeated_end_succeeds_and_the_opposite_is_refused(self, state: TransactionState) -> None:
        ended = ongoing(state=state, epoch=4)
        assert two_phase.end(ended, WHO, commit=True, now_ms=60, new_id=None) == (ErrorCode.none, None, False)
        assert two_phase.end(ended, WHO, commit=False, now_ms=60, new_id=None).error is ErrorCode.invalid_txn_state

    def test_fenced_and_foreign_producers_are_refused(self) -> None:
        fenced = ongoing(state=TransactionState.COMPLETE_ABORT, epoch=5)  # by a new instance, or by its time limit
        assert two_phase.end(fenced, WHO, commit=True, now_ms=60, new_id=None).error is ErrorCode.producer_fenced
        assert two_phase.end(fenced, WHO, commit=False, now_ms=60, new_id=None).error is ErrorCode.producer_fenced
        foreign = two_phase.end(fenced, ProducerIdAndEpoch(9, 4), commit=True, now_ms=60, new_id=None)
        assert foreign.error is ErrorCode.invalid_producer_id_mapping

    def test_exhausted_epochs_lead_to_a_new_producer_id(self) -> None:
        last = prepared(epoch=HIGHEST_EPOCH - 1)
        who = ProducerIdAndEpoch(7, HIGHEST_EPOCH - 1)
        assert two_phase.end(last, who, commit=True, now_ms=60, new_id=None).needs_id
        one = two_phase.end(last, who, commit=True, now_ms=60, new_id=99).transaction
        assert one is not None
        assert (one.next_id, one.epoch) == (99, HIGHEST_EPOCH)


class World(AdminLab):
    """Each id has a transaction with one record in orders-0 and one in a partition of its own."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, **SETTINGS)
        self.coordinator = self.transactions.coordinator
        self.two_phase = TwoPhase(self.coordinator, self.transactions.ids, self.clock)

    def begin(self, transactional_id: str) -> PreparedProducer:
        error, who = asyncio.run(self.coordinator.initialize(transactional_id, TIMEOUT_MS, None))
        assert error is ErrorCode.none
        self.write(PreparedProducer(transactional_id, who))
        return PreparedProducer(transactional_id, who)

    def write(self, member: PreparedProducer) -> None:
        who = member.producer
        places = [HERE, TopicPartition("orders", 1 + hash(member.transactional_id) % 2)]
        assert self.coordinator.add(member.transactional_id, who, places, 2) is ErrorCode.none
        for place in places:
            batch = build_batch(
                [(b"k", b"v")],
                base_sequence=0,
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
                is_transactional=True,
            )
            self.place(place).append(memoryview(batch))

    def prepared(self, count: int = len(IDS)) -> list[PreparedProducer]:
        members = [self.begin(name) for name in IDS[:count]]
        for member in members:
            assert self.two_phase.prepare(member, NEVER_MS) is None
        return members

    def finish(self, members: list[PreparedProducer], *, commit: bool) -> Refusal | list[ProducerIdAndEpoch]:
        return asyncio.run(self.two_phase.finish(members, commit=commit))

    def states(self) -> dict[str, TransactionState]:
        return {one.transactional_id: one.state for one in self.coordinator.all()}

    def place(self, place: TopicPartition) -> Partition:
        found = self.topics.partition(*place)
        assert found is not None
        return found

    def is_stable(self) -> bool:
        places = [self.place(TopicPartition("orders", index)) for index in range(3)]
        return all(place.last_stable_offset == place.high_watermark for place in places)

    def aborted(self) -> int:
        return len(self.place(HERE).log.aborted_transactions(0, 99))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "data") as world:
        world.topics.create("orders", 3, {})
        yield world


def error_of(result: Refusal | list[ProducerIdAndEpoch]) -> ErrorCode:
    assert isinstance(result, Refusal), result
    return result.error


class TestTogether:
    @pytest.mark.parametrize("commit", [True, False])
    def test_all_end_and_a_repeated_request_gets_the_same_response(self, world: World, commit: bool) -> None:
        members = world.prepared()
        answer = world.finish(members, commit=commit)
        assert answer == [ProducerIdAndEpoch(one.producer.producer_id, one.producer.epoch + 1) for one in members]
        assert set(world.states().values()) == {
            TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        }
        assert world.is_stable()
        assert world.aborted() == (0 if commit else len(members))
        assert world.finish(members, commit=commit) == answer
        assert error_of(world.finish(members, commit=not commit)) is ErrorCode.invalid_txn_state

    def test_end_of_several_transactions_is_one_batch(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        members = world.prepared()
        log = world.place(TopicPartition(NAME, 1)).log
        before = log.log_end_offset
        with monkeypatch.context() as patched:
            stop_at(patched, 1)
            with pytest.raises(KilledError):
                world.finish(members, commit=True)
        assert log.log_end_offset == before + len(members)

    def test_producers_continue_with_the_returned_epoch_and_their_own_timeout(self, world: World) -> None:
        members = world.prepared(2)
        answer = world.finish(members, commit=True)
        assert isinstance(answer, list)
        next_ones = [PreparedProducer(one.transactional_id, who) for one, who in zip(members, answer, strict=True)]
        for member in next_ones:
            world.write(member)
        assert [one.timeout_ms for one in world.coordinator.all()] == [TIMEOUT_MS] * 2
        assert error_of(world.finish(members, commit=True)) is ErrorCode.producer_fenced
        assert error_of(world.finish(next_ones, commit=True)) is ErrorCode.invalid_txn_state  # not prepared

    def test_disconnect_after_the_append_leaves_no_transaction_incomplete(self, world: World) -> None:
        members = world.prepared()

        async def hang_up() -> None:
            finishing = asyncio.ensure_future(world.two_phase.finish(members, commit=True))
            await asyncio.sleep(0)  # the end is written, and the first transaction is complete
            assert sorted(world.states().values()) == [TransactionState.PREPARE_COMMIT] * 3 + [
                TransactionState.COMPLETE_COMMIT
            ]
            finishing.cancel()
            await asyncio.wait([finishing])
            await tasks_done(world.coordinator)
            assert finishing.cancelled()

        asyncio.run(hang_up())
        assert set(world.states().values()) == {TransactionState.COMPLETE_COMMIT}
        assert world.is_stable()

    def test_only_prepared_transactions_with_a_time_limit_are_aborted_by_it(self, world: World) -> None:
        first, second = world.begin(IDS[0]), world.begin(IDS[1])
        assert world.two_phase.prepare(first, NEVER_MS) is None
        assert world.two_phase.prepare(second, 3_600_000) is None

        async def time_passes(milliseconds: int) -> None:
            world.clock.advance(milliseconds)
            world.coordinator.abort_timed_out()
            await tasks_done(world.coordinator)

        asyncio.run(time_passes(3_600_000))
        assert set(world.states().values()) == {TransactionState.ONGOING}
        asyncio.run(time_passes(1))
        assert world.states() == {IDS[0]: TransactionState.ONGOING, IDS[1]: TransactionState.COMPLETE_ABORT}
        assert error_of(world.finish([first, second], commit=True)) is ErrorCode.invalid_txn_state
        asyncio.run(time_passes(2**40))
        assert world.states()[IDS[0]] is TransactionState.ONGOING
        assert isinstance(world.finish([first], commit=True), list)

    def test_prepared_transaction_takes_no_more_partitions(self, world: World) -> None:
        (member,) = world.prepared(1)
        place = TopicPartition("orders", 2)
        for error in (
            world.coordinator.add(member.transactional_id, member.producer, [place], 2),
            world.coordinator.verify(member.transactional_id, member.producer, HERE),
        ):
            assert error is ErrorCode.invalid_txn_state

    def test_new_instance_aborts_a_prepared_transaction_as_in_kafka(self, world: World) -> None:
        members = world.prepared(2)
        answer = asyncio.run(world.coordinator.initialize(IDS[0], TIMEOUT_MS, None))
        assert answer.error is ErrorCode.concurrent_transactions
        assert world.states() == {IDS[0]: TransactionState.COMPLETE_ABORT, IDS[1]: TransactionState.ONGOING}
        assert error_of(world.finish(members, commit=True)) is ErrorCode.invalid_txn_state
        assert world.states()[IDS[1]] is TransactionState.ONGOING

    def test_producer_may_end_its_prepared_transaction_itself(self, world: World) -> None:
        (member,) = world.prepared(1)
        answer = asyncio.run(world.coordinator.end(*member, commit=True, version=2))
        assert answer.error is ErrorCode.none
        assert world.states() == {IDS[0]: TransactionState.COMPLETE_COMMIT}

    def test_exhausted_epochs_get_new_producer_ids(self, world: World) -> None:
        members = []
        for name in IDS[:2]:
            error, who = asyncio.run(world.coordinator.initialize(name, TIMEOUT_MS, None))
            known = world.coordinator.get(name)
            assert error is ErrorCode.none
            assert known is not None
            world.coordinator.take_together([known._replace(epoch=HIGHEST_EPOCH - 1)])
            members.append(PreparedProducer(name, ProducerIdAndEpoch(who.producer_id, HIGHEST_EPOCH - 1)))
            world.write(members[-1])
            assert world.two_phase.prepare(members[-1], NEVER_MS) is None
        answer = world.finish(members, commit=True)
        assert isinstance(answer, list)
        assert [who.epoch for who in answer] == [0, 0]
        assert len({who.producer_id for who in answer} | {one.producer.producer_id for one in members}) == 4
        assert world.finish(members, commit=True) == answer


class TestRefused:
    """Each of these requests changes nothing."""

    def refused(self, world: World, members: list[PreparedProducer]) -> ErrorCode:
        before = {one.transactional_id: one for one in world.coordinator.all()}
        refusal = world.finish(members, commit=True)
        assert {one.transactional_id: one for one in world.coordinator.all()} == before
        return error_of(refusal)

    def test_member_that_is_not_prepared(self, world: World) -> None:
        assert self.refused(world, [*world.prepared(2), world.begin(IDS[2])]) is ErrorCode.invalid_txn_state

    def test_unknown_member(self, world: World) -> None:
        unknown = PreparedProducer(IDS[3], WHO)
        assert self.refused(world, [*world.prepared(2), unknown]) is ErrorCode.invalid_producer_id_mapping

    def test_member_with_the_producer_id_or_epoch_of_another(self, world: World) -> None:
        first, (name, who) = world.prepared(2)
        foreign = PreparedProducer(name, ProducerIdAndEpoch(who.producer_id + 5, who.epoch))
        assert self.refused(world, [first, foreign]) is ErrorCode.invalid_producer_id_mapping
        fenced = PreparedProducer(name, ProducerIdAndEpoch(who.producer_id, who.epoch - 1))
        assert self.refused(world, [first, fenced]) is ErrorCode.producer_fenced

    def test_member_that_ended_without_the_others(self, world: World) -> None:
        members = world.prepared(3)
        assert isinstance(world.finish(members[:1], commit=True), list)
        assert self.refused(world, members) is ErrorCode.invalid_txn_state

    def test_member_in_another_partition(self, world: World) -> None:
        elsewhere = world.begin(ELSEWHERE)
        assert world.two_phase.prepare(elsewhere, NEVER_MS) is None
        assert self.refused(world, [*world.prepared(2), elsewhere]) is ErrorCode.invalid_request

    def test_member_that_is_listed_twice(self, world: World) -> None:
        members = world.prepared(2)
        assert self.refused(world, [*members, members[0]]) is ErrorCode.invalid_request

    def test_full_disk(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object, **__: object) -> None:
            raise StorageError("the disk is full")

        members = world.prepared(2)
        with monkeypatch.context() as patched:
            patched.setattr(Partition, "append_for_coordinator", full)
            assert self.refused(world, members) is ErrorCode.kafka_storage_error
        assert isinstance(world.finish(members, commit=True), list)


class TestKilled:
    @pytest.mark.parametrize("commit", [True, False])
    @pytest.mark.parametrize("at", range(10))
    def test_kill_at_any_step_leaves_all_or_nothing(
        self, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, commit: bool
    ) -> None:
        """Ten appends: one for the end of all three, and for each transaction two markers and the completion."""
        members = world.prepared(3)
        with monkeypatch.context() as patched:
            stop_at(patched, at)
            with pytest.raises(KilledError):
                world.finish(members, commit=commit)
        ended = [ProducerIdAndEpoch(one.producer.producer_id, one.producer.epoch + 1) for one in members]
        with World(killed_copy(tmp_path / "data", tmp_path / "killed")) as again:
            if at == 0:
                assert again.two_phase.prepared("") == world.two_phase.prepared("")
                assert len(again.two_phase.prepared("task-")) == 3
                assert again.finish(members, commit=commit) == ended
            assert again.two_phase.prepared("") == []
            assert set(again.states().values()) == {
                TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
            }
            assert again.is_stable()
            assert again.aborted() == (0 if commit else 3)
            assert again.finish(members, commit=commit) == ended

    @pytest.mark.parametrize("torn", [1, 40, 200])
    def test_torn_end_counts_as_no_end(
        self, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: int
    ) -> None:
        """As after a power cut: the last bytes never reached the disk."""
        members = world.prepared(3)
        with monkeypatch.context() as patched:
            stop_at(patched, 1)
            with pytest.raises(KilledError):
                world.finish(members, commit=True)
        killed = killed_copy(tmp_path / "data", tmp_path / "torn")
        (segment,) = (killed / f"{NAME}-1").glob("*.log")
        written = segment.read_bytes().rstrip(b"\0")
        segment.write_bytes(written[:-torn])
        with World(killed) as again:
            assert [one.transactional_id for one in again.two_phase.prepared("")] == sorted(IDS[:3])
            assert isinstance(again.finish(members, commit=False), list)
            assert again.is_stable()

    def test_prepared_transaction_stays_prepared_after_a_restart(self, world: World, tmp_path: Path) -> None:
        (member,) = world.prepared(1)
        with World(killed_copy(tmp_path / "data", tmp_path / "killed")) as again:
            again.clock.advance(2**40)
            again.coordinator.abort_timed_out()
            assert again.states() == {IDS[0]: TransactionState.ONGOING}
            assert isinstance(again.finish([member], commit=True), list)
            assert [one.timeout_ms for one in again.coordinator.all()] == [TIMEOUT_MS]


class TestForgetting:
    def test_forgotten_ids_stay_deleted_after_a_restart(self, world: World, tmp_path: Path) -> None:
        members = world.prepared(3)
        world.finish(members, commit=True)
        assert world.two_phase.forget([IDS[0], IDS[1], IDS[0], "never-known"]) is None
        assert set(world.states()) == {IDS[2]}
        assert error_of(world.finish(members, commit=True)) is ErrorCode.invalid_producer_id_mapping
        with World(killed_copy(tmp_path / "data", tmp_path / "killed")) as again:
            assert set(again.states()) == {IDS[2]}

    def test_unknown_id_does_not_keep_the_next_ones(self, world: World) -> None:
        world.finish(world.prepared(2), commit=True)
        assert world.two_phase.forget([IDS[0], "never-known", IDS[1]]) is None
        assert set(world.states()) == set()

    def test_ids_that_are_not_loaded_yet_are_not_deleted(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        world.finish(world.prepared(1), commit=True)
        loading = world.coordinator.loading
        with monkeypatch.context() as patched:
            patched.setattr(loading, "_ended", False)
            patched.setattr(loading, "_partitions_at_start", None)
            refusal = world.two_phase.forget(IDS[:1])
        assert refusal is not None
        assert refusal.error is ErrorCode.coordinator_load_in_progress
        assert refusal.reason == f"transactional id '{IDS[0]}' is not available yet; retry the request"
        assert set(world.states()) == {IDS[0]}

    def test_many_ids_are_deleted_by_one_batch(self, world: World) -> None:
        world.finish(world.prepared(), commit=True)
        log = world.place(TopicPartition(NAME, 1)).log
        before = log.log_end_offset
        assert world.two_phase.forget(IDS) is None
        batches = list(log.read(before, 100_000).batches())
        assert [batch.header.record_count for batch in batches] == [len(IDS)]

    def test_open_transaction_is_refused_and_nothing_is_deleted(self, world: World) -> None:
        members = world.prepared(2)
        world.finish(members[:1], commit=True)
        refusal = world.two_phase.forget(IDS[:2])
        assert refusal is not None
        assert (refusal.error, "is prepared; end it first" in refusal.reason) == (ErrorCode.invalid_txn_state, True)
        assert set(world.states()) == set(IDS[:2])


def test_end_larger_than_max_message_bytes_of_clients_is_one_batch(world: World) -> None:
    world.prepared(1)  # creates the topic
    names = [name for name in (f"task-{number}" for number in range(4_000)) if partition_of(name, 3) == 1]
    partitions = frozenset(TopicPartition(f"{number}" * 200, 0) for number in range(5))
    log = world.place(TopicPartition(NAME, 1)).log
    end, size = log.log_end_offset, log.size
    world.coordinator.take_together([prepared(transactional_id=name, partitions=partitions) for name in names])
    assert log.log_end_offset == end + len(names)
    assert log.size - size > 1_200_000
