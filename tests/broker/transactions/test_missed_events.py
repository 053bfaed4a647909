"""Events that come between a check and an await of the transaction coordinator: none of them is missed.

Each event happens in the turn of the event loop in which the request waits, so the tests depend on no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stratalog.broker.transactions.coordinator import TransactionResponse
from stratalog.broker.transactions.state import (
    HIGHEST_EPOCH,
    NEVER_MS,
    ProducerIdAndEpoch,
    TransactionState,
    TransactionStep,
)
from stratalog.broker.transactions.state import fence as fenced
from stratalog.broker.transactions.transactions_topic import NAME
from stratalog.broker.transactions.two_phase import PreparedProducer, Refusal
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage.names import TopicPartition
from tests.broker.transactions.test_coordinator import TIMEOUT_MS, refuse_markers
from tests.broker.transactions.test_two_phase import IDS, World

NEW_ID = 1_007


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "data") as world:
        world.topics.create("orders", 3, {})
        yield world


@pytest.fixture
def while_it_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Return a function that registers an event, which happens while a request waits for a new producer id."""

    def register(event: Callable[[], None]) -> None:
        async def next_id() -> int:
            await asyncio.sleep(0)
            event()
            return NEW_ID

        monkeypatch.setattr(world.transactions.ids, "next", next_id)

    return register


def exhausted(world: World, transactional_id: str, state: TransactionState) -> PreparedProducer:
    """Give an id its last epoch, so that its next end needs a new producer id."""
    member = world.begin(transactional_id)
    last = ProducerIdAndEpoch(member.producer.producer_id, HIGHEST_EPOCH - 1)
    known = world.coordinator.get(transactional_id)
    assert known is not None
    partitions = frozenset() if state is TransactionState.EMPTY else known.partitions
    world.coordinator.take_together([known._replace(epoch=last.epoch, state=state, partitions=partitions)])
    return PreparedProducer(transactional_id, last)


def written(world: World) -> int:
    """Return how many records __transaction_state has."""
    partitions = [world.topics.partition(NAME, index) for index in range(3)]
    return sum(partition.log.log_end_offset for partition in partitions if partition is not None)


def test_id_that_is_forgotten_during_its_end_is_not_created_again(
    world: World, while_it_waits: Callable[[Callable[[], None]], None]
) -> None:
    member = exhausted(world, "t", TransactionState.EMPTY)
    while_it_waits(lambda: world.coordinator.forget(["t"]))
    response = asyncio.run(world.coordinator.end("t", member.producer, commit=False, version=2))
    assert response.error is ErrorCode.invalid_producer_id_mapping
    assert world.coordinator.get("t") is None


@pytest.mark.parametrize("is_end", [True, False])
def test_request_that_waits_for_a_producer_id_writes_nothing_after_the_stop(
    world: World, while_it_waits: Callable[[Callable[[], None]], None], is_end: bool
) -> None:
    member = exhausted(world, "t", TransactionState.ONGOING)
    before = written(world)
    while_it_waits(world.coordinator.close)
    if is_end:
        response = asyncio.run(world.coordinator.end("t", member.producer, commit=True, version=2))
    else:
        response = asyncio.run(world.coordinator.initialize("new", TIMEOUT_MS, None))
    assert response.error is ErrorCode.coordinator_not_available
    assert written(world) == before


def test_two_instances_that_start_in_the_same_turn_do_not_share_an_epoch(world: World) -> None:
    async def start_both() -> list[TransactionResponse]:
        starts = (world.coordinator.initialize("t", TIMEOUT_MS, None) for _ in range(2))
        return list(await asyncio.gather(*starts))

    first, second = asyncio.run(start_both())
    assert (first.error, second.error) == (ErrorCode.none, ErrorCode.none)
    assert first.producer.producer_id == second.producer.producer_id
    assert (first.producer.epoch, second.producer.epoch) == (0, 1)


def test_prepared_transactions_are_refused_together_if_one_is_aborted_meanwhile(
    world: World, while_it_waits: Callable[[Callable[[], None]], None]
) -> None:
    last, other = exhausted(world, IDS[0], TransactionState.ONGOING), world.begin(IDS[1])
    for member in (last, other):
        assert world.two_phase.prepare(member, NEVER_MS) is None

    def abort_other() -> None:
        known = world.coordinator.get(IDS[1])
        assert known is not None
        step = TransactionStep(ErrorCode.none, fenced(known, world.clock.now_ms()))
        assert world.coordinator.take(step) is ErrorCode.none

    while_it_waits(abort_other)
    refusal = world.finish([last, other], commit=True)
    assert isinstance(refusal, Refusal)
    assert refusal.error is ErrorCode.invalid_txn_state
    assert world.states()[IDS[0]] is TransactionState.ONGOING


def test_id_that_becomes_idle_while_others_are_aborted_is_returned_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin(IDS[0])
    member = world.begin(IDS[1])
    with monkeypatch.context() as patched:
        refuse_markers(patched)
        asyncio.run(world.coordinator.end(IDS[1], member.producer, commit=False, version=2))
    assert world.states()[IDS[1]] is TransactionState.PREPARE_ABORT

    async def abort() -> list[str]:
        aborting = asyncio.ensure_future(world.two_phase.abort("task-", close=True))
        await asyncio.gather(aborting, world.coordinator.complete(IDS[1]))
        return aborting.result()

    assert sorted(asyncio.run(abort())) == sorted(IDS[:2])


def test_second_end_during_the_markers_does_not_complete_the_transaction_early(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.broker.transactions.coordinator._MARKERS_A_TURN", 1)
    member = world.begin("t")
    every = [TopicPartition("orders", index) for index in range(3)]
    assert world.coordinator.add("t", member.producer, every, 2) is ErrorCode.none

    async def end_twice() -> tuple[TransactionResponse, TransactionResponse]:
        ends = (world.coordinator.end("t", member.producer, commit=True, version=2) for _ in range(2))
        first, second = await asyncio.gather(*ends)
        assert world.states()["t"] is TransactionState.COMPLETE_COMMIT
        return first, second

    first, second = asyncio.run(end_twice())
    assert (first.error, second.error) == (ErrorCode.none, ErrorCode.concurrent_transactions)
    assert world.is_stable()


def test_topic_that_another_request_creates_first_is_used(world: World) -> None:
    def create() -> None:
        world.before_background = lambda: None
        world.topics.create(NAME, 3, {})

    world.before_background = create
    response = asyncio.run(world.coordinator.initialize("t", TIMEOUT_MS, None))
    assert response.error is ErrorCode.none
