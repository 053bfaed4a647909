"""The transaction coordinator over real logs: its responses, its timeouts, and its state after a restart and a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from stratalog.broker.metadata.store import METADATA_FILE
from stratalog.broker.partition import Partition
from stratalog.broker.transactions.coordinator import TransactionResponse
from stratalog.broker.transactions.records import transaction_record
from stratalog.broker.transactions.state import HIGHEST_EPOCH, ProducerIdAndEpoch, Transaction, TransactionState
from stratalog.broker.transactions.transactions_topic import NAME
from stratalog.errors import StorageError
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.builder import build_batch
from stratalog.storage.names import TopicPartition
from stratalog.storage.transaction_index import AbortedTransaction
from tests.broker.apis.admin_lab import AdminLab
from tests.broker.metadata.registry_lab import KilledError, killed_copy
from tests.broker.transactions.transaction_lab import tasks_done

SETTINGS: dict[str, Any] = {"transaction_state_log_num_partitions": 3, "offsets_topic_num_partitions": 2}
PLACES = [TopicPartition("orders", index) for index in range(3)]
TIMEOUT_MS = 60_000


class World(AdminLab):
    def __init__(self, data: Path) -> None:
        super().__init__(data, **SETTINGS)
        self.coordinator = self.transactions.coordinator

    def begin(self, transactional_id: str = "t") -> ProducerIdAndEpoch:
        error, producer = asyncio.run(self.coordinator.initialize(transactional_id, TIMEOUT_MS, None))
        assert error is ErrorCode.none
        return producer

    def write(self, who: ProducerIdAndEpoch, sequence: int = 0, version: int = 2) -> None:
        assert self.coordinator.add("t", who, PLACES, version) is ErrorCode.none
        for place in PLACES:
            fields = {"producer_id": who.producer_id, "producer_epoch": who.epoch, "is_transactional": True}
            batch = build_batch([(b"k", b"v")], base_sequence=sequence, **fields)  # type: ignore[arg-type]
            self.place(place).append(memoryview(batch))

    def end(self, who: ProducerIdAndEpoch, *, commit: bool, version: int = 2) -> TransactionResponse:
        return asyncio.run(self.coordinator.end("t", who, commit=commit, version=version))

    def place(self, place: TopicPartition) -> Partition:
        found = self.topics.partition(*place)
        assert found is not None
        return found

    def t(self) -> Transaction:
        known = self.coordinator.get("t")
        assert known is not None
        return known

    def aborted(self) -> list[int]:
        found: list[list[AbortedTransaction]] = [self.place(place).log.aborted_transactions(0, 99) for place in PLACES]
        return [len(one) for one in found]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "data") as world:
        world.topics.create("orders", 3, {})
        world.topics.create("first", 1, {})
        yield world


def restarted(world: World, tmp_path: Path, name: str = "killed") -> World:
    return World(killed_copy(tmp_path / "data", tmp_path / name))


def test_every_partition_gets_its_marker_although_the_producer_disconnects(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.broker.transactions.coordinator._MARKERS_A_TURN", 1)
    who = world.begin()
    world.write(who)

    async def hang_up() -> None:
        ending = asyncio.ensure_future(world.coordinator.end("t", who, commit=True, version=2))
        await asyncio.sleep(0)
        assert world.t().state is TransactionState.PREPARE_COMMIT
        ending.cancel()
        await asyncio.wait([ending])
        await tasks_done(world.coordinator)
        assert ending.cancelled()

    asyncio.run(hang_up())
    assert world.t().state is TransactionState.COMPLETE_COMMIT
    assert all(world.place(one).last_stable_offset == world.place(one).high_watermark for one in PLACES)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_every_partition_has_its_marker_when_the_end_is_acknowledged(world: World, version: int, commit: bool) -> None:
    who = world.begin()
    world.write(who, version=version)
    assert all(world.place(place).last_stable_offset == 0 for place in PLACES)
    error, producer = world.end(who, commit=commit, version=version)
    assert error is ErrorCode.none
    assert producer == (ProducerIdAndEpoch(who.producer_id, 1) if version == 2 else ProducerIdAndEpoch(-1, -1))
    assert all(world.place(place).last_stable_offset == 2 for place in PLACES)
    assert world.aborted() == [0 if commit else 1] * 3
    assert world.t().state is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)


def test_older_client_continues_its_sequence_and_newer_client_starts_at_zero(world: World) -> None:
    who = world.begin()
    for sequence in range(3):
        world.write(who, sequence, version=0)
        world.end(who, commit=True, version=0)
    for _ in range(3):
        world.coordinator.add("t", who, PLACES, 2)
        _, who = world.end(who, commit=False)
        world.write(who, 0)
        _, who = world.end(who, commit=True)


def test_repeated_end_gets_the_same_response(world: World) -> None:
    who = world.begin()
    world.write(who)
    first = world.end(who, commit=True)
    ends = [world.place(place).log.log_end_offset for place in PLACES]
    assert world.end(who, commit=True) == first
    assert world.end(who, commit=False).error is ErrorCode.invalid_txn_state
    assert [world.place(place).log.log_end_offset for place in PLACES] == ends


def test_unknown_id_and_foreign_producer_are_refused(world: World) -> None:
    who = world.begin()
    other = ProducerIdAndEpoch(who.producer_id + 1, 0)
    assert world.end(other, commit=True).error is ErrorCode.invalid_producer_id_mapping
    assert world.coordinator.add("nobody", who, PLACES, 2) is ErrorCode.invalid_producer_id_mapping
    assert world.coordinator.add("", who, PLACES, 2) is ErrorCode.invalid_request
    assert world.t().state is TransactionState.EMPTY


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeout_that_is_not_allowed_is_refused(world: World, timeout_ms: int) -> None:
    answer = asyncio.run(world.coordinator.initialize("t", timeout_ms, None))
    assert answer.error is ErrorCode.invalid_transaction_timeout


def test_transaction_past_its_timeout_is_aborted_and_its_producer_fenced(world: World) -> None:
    who = world.begin()
    world.write(who)

    async def time_passes() -> None:
        world.clock.advance(TIMEOUT_MS)
        world.coordinator.abort_timed_out()
        assert world.t().state is TransactionState.ONGOING
        world.transactions.timers.advance(10_000)  # the coordinator's own timer
        await tasks_done(world.coordinator)

    asyncio.run(time_passes())
    assert world.aborted() == [1, 1, 1]
    assert world.end(who, commit=True).error is ErrorCode.invalid_txn_state
    assert world.coordinator.add("t", who, PLACES, 2) is ErrorCode.producer_fenced
    assert world.end(who, commit=False) == TransactionResponse(
        ErrorCode.none, ProducerIdAndEpoch(who.producer_id, who.epoch + 1)
    )


def test_unused_id_expires_and_stays_deleted_after_a_restart(world: World, tmp_path: Path) -> None:
    world.begin()
    world.clock.advance(604_800_000 - 1)
    world.coordinator.forget_expired()
    assert world.coordinator.get("t") is not None
    world.clock.advance(1)
    world.coordinator.forget_expired()
    assert world.coordinator.get("t") is None
    with restarted(world, tmp_path) as again:
        assert again.coordinator.get("t") is None


def test_second_instance_aborts_the_open_transaction_of_the_first(world: World) -> None:
    old = world.begin()
    world.write(old)
    answer = asyncio.run(world.coordinator.initialize("t", TIMEOUT_MS, None))
    assert answer.error is ErrorCode.concurrent_transactions
    assert world.aborted() == [1, 1, 1]
    new = world.begin()
    assert new > old
    assert world.end(old, commit=True).error is ErrorCode.producer_fenced
    world.write(new)
    assert world.end(new, commit=True).error is ErrorCode.none


def test_marker_that_the_disk_refuses_is_written_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    who = world.begin()
    world.write(who)
    with monkeypatch.context() as patched:
        refuse_markers(patched)
        assert world.end(who, commit=True).error is ErrorCode.none
        assert world.t().state is TransactionState.PREPARE_COMMIT
        assert world.coordinator.add("t", ProducerIdAndEpoch(0, 1), PLACES, 2) is ErrorCode.concurrent_transactions
        answer = asyncio.run(world.coordinator.initialize("t", TIMEOUT_MS, None))
        assert answer.error is ErrorCode.concurrent_transactions

    async def time_passes() -> None:
        world.transactions.timers.advance(1_000)
        await tasks_done(world.coordinator)

    asyncio.run(time_passes())
    assert world.t().state is TransactionState.COMPLETE_COMMIT
    assert all(world.place(place).last_stable_offset == 2 for place in PLACES)


def test_forgotten_id_frees_its_share_of_the_state_budget(world: World) -> None:
    budget = world.transactions.groups.budget
    at_first = budget.used
    who = world.begin()
    idle = budget.used
    assert idle > at_first
    world.write(who)
    assert budget.used > idle, "the partitions of an open transaction take room"
    assert world.end(who, commit=True).error is ErrorCode.none
    assert budget.used < idle + (idle - at_first)
    world.coordinator.forget(["t"])
    assert budget.used == at_first


def _full_disk(*_: object, **__: object) -> NoReturn:
    raise StorageError("the disk is full")


def refuse_markers(patched: pytest.MonkeyPatch) -> None:
    """Make appends to users' partitions fail. Appends to internal topics succeed."""
    append = Partition.append_for_coordinator

    def to_own_topics(partition: Partition, data: bytearray, **named: bool) -> object:
        return append(partition, data, **named) if partition.is_internal else _full_disk()

    patched.setattr(Partition, "append_for_coordinator", to_own_topics)


def test_step_that_can_not_be_written_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    who = world.begin()
    world.write(who)
    with monkeypatch.context() as patched:
        patched.setattr(Partition, "append_for_coordinator", _full_disk)
        assert world.end(who, commit=True).error is ErrorCode.not_coordinator
        assert world.t().state is TransactionState.ONGOING
    assert world.end(who, commit=False).error is ErrorCode.none


def test_deleted_topic_does_not_block_the_end_of_a_transaction(world: World) -> None:
    who = world.begin()
    world.write(who)
    assert world.coordinator.add("t", who, [TopicPartition("first", 0)], 2) is ErrorCode.none
    world.topics.delete("first")
    assert world.end(who, commit=True).error is ErrorCode.none
    assert world.t().state is TransactionState.COMPLETE_COMMIT


def test_new_producer_id_after_the_last_epoch_survives_a_kill(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = world.begin()
    world.coordinator._put(world.t()._replace(epoch=HIGHEST_EPOCH - 1))
    who = ProducerIdAndEpoch(who.producer_id, HIGHEST_EPOCH - 1)
    world.write(who)
    with monkeypatch.context() as patched:
        refuse_markers(patched)
        _, told = world.end(who, commit=True)
    assert (told.epoch, told.producer_id != who.producer_id) == (0, True)
    with restarted(world, tmp_path) as again:
        assert ProducerIdAndEpoch(again.t().producer_id, again.t().epoch) == told
        assert again.end(who, commit=True) == TransactionResponse(ErrorCode.none, told)
        again.write(told)
        assert again.end(told, commit=True).error is ErrorCode.none


def stop_at(monkeypatch: pytest.MonkeyPatch, append: int) -> None:
    """Raise KilledError at the n-th append from now on, as if the process were killed before it."""
    left = append
    original = Partition.append_for_coordinator

    def counted(partition: Partition, data: bytearray, **named: bool) -> object:
        nonlocal left
        if left == 0:
            raise KilledError
        left -= 1
        return original(partition, data, **named)

    monkeypatch.setattr(Partition, "append_for_coordinator", counted)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("at", range(5))
def test_kill_at_any_step_of_an_end_leaves_all_or_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, version: int, commit: bool
) -> None:
    """An end is five appends: PrepareCommit or PrepareAbort, three markers, the completion."""
    who = world.begin()
    world.write(who, version=version)
    with monkeypatch.context() as patched:
        stop_at(patched, at)
        with pytest.raises(KilledError):
            world.end(who, commit=commit, version=version)
    with restarted(world, tmp_path) as again:
        if at == 0:  # nothing is written: the transaction is still open, and may end either way
            assert again.t().state is TransactionState.ONGOING
            assert all(again.place(place).last_stable_offset == 0 for place in PLACES)
            assert again.end(who, commit=commit, version=version).error is ErrorCode.none
        assert again.t().state is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
        assert all(again.place(place).last_stable_offset == again.place(place).high_watermark >= 2 for place in PLACES)
        assert again.aborted() == [0 if commit else 1] * 3
        repeated = again.end(who, commit=commit, version=version)
        assert repeated.error is ErrorCode.none
        assert repeated.producer == (ProducerIdAndEpoch(who.producer_id, 1) if version == 2 else (-1, -1))


def test_open_transaction_is_open_after_a_kill_and_its_timeout_still_counts(world: World, tmp_path: Path) -> None:
    who = world.begin()
    world.write(who)
    with restarted(world, tmp_path) as again:
        assert again.t() == world.t()
        assert again.t().has_timed_out(world.clock.now_ms() + TIMEOUT_MS + 1)
        assert again.end(who, commit=True).error is ErrorCode.none


def test_transaction_with_an_unreadable_state_is_not_aborted_as_an_orphan(world: World, tmp_path: Path) -> None:
    """A record of another version may say that the transaction is committed."""
    who = world.begin()
    world.write(who)
    key, value = transaction_record(world.t())
    assert value is not None
    partition = world.coordinator.loading.partition_of("t")
    world.transactions.state_topic.append(partition, [(key, b"\x7f\xff" + value[2:])], world.clock.now_ms())
    with restarted(world, tmp_path) as again:
        assert again.coordinator.get("t") is None
        assert again.aborted() == [0, 0, 0]


def test_id_is_not_served_before_its_state_is_read(tmp_path: Path) -> None:
    with World(tmp_path / "data") as world:
        world.topics.create("orders", 3, {})
        who = world.begin()
        lab = type(world.transactions)(world.topics, world.store, world.clock, world.config, world.run_in_background)
        assert lab.coordinator.status("t") is ErrorCode.coordinator_load_in_progress
        assert lab.coordinator.add("t", who, PLACES, 2) is ErrorCode.coordinator_load_in_progress
        lab.load()
        assert lab.coordinator.add("t", who, PLACES, 2) is ErrorCode.none


def test_state_topic_is_created_with_kafkas_settings(world: World) -> None:
    world.begin()
    topic = world.topics.get(NAME)
    assert topic is not None
    assert (topic.partition_count, topic.is_internal) == (3, True)
    assert topic.settings["cleanup.policy"] == "compact"
    assert topic.settings["segment.bytes"] == str(100 * 1024**2)


def test_producer_ids_in_another_brokers_state_are_not_assigned_again(world: World, tmp_path: Path) -> None:
    given = world.begin().producer_id
    killed = killed_copy(tmp_path / "data", tmp_path / "adopted")
    (killed / METADATA_FILE).unlink()  # a data directory of Kafka has no such file
    with World(killed) as adopted:
        assert adopted.t().producer_id == given
        assert adopted.begin("another").producer_id > given
