"""Changes of ISRs, with a ZooKeeper that refuses, loses answers, or lets them come late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.broker.metadata.cluster_view import ClusterView, PartitionId, RegisteredBroker
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.zookeeper_errors import OutcomeUnknownError
from stratalog.broker.replication import isr_changes
from stratalog.broker.replication.isr_changes import IsrChanges
from tests.broker.replication.partition_lab import LAG_MS, PartitionLab, state

Answer = Callable[[PartitionState], PartitionState]


class ScriptedMetadata:
    """Stands for ZooKeeper: answers each write as the test says."""

    def __init__(self) -> None:
        brokers = {node_id: RegisteredBroker(node_id, "host", 9092, node_id) for node_id in (1, 2, 3)}
        self.view = ClusterView("cluster", brokers)
        self.answers: list[Answer | Exception] = []
        self.writes: list[tuple[PartitionState, Mapping[int, int] | None]] = []
        self.answered = asyncio.Event()

    async def change_state(
        self, id: PartitionId, state: PartitionState, joining: Mapping[int, int] | None = None
    ) -> PartitionState:
        self.writes.append((state, joining))
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if not self.answers:
            self.answered.set()
        if isinstance(answer, Exception):
            raise answer
        return answer(state)


def accept(state: PartitionState) -> PartitionState:
    return replace(state, partition_epoch=state.partition_epoch + 1)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PartitionLab]:
    monkeypatch.setattr(isr_changes, "_RETRY_SECONDS", 0)
    with PartitionLab(tmp_path / "data") as running:
        yield running


def begin(lab: PartitionLab, *answers: Answer | Exception) -> tuple[ScriptedMetadata, IsrChanges]:
    metadata = ScriptedMetadata()
    metadata.answers = list(answers)
    return metadata, IsrChanges(metadata, lab.context, lambda: [lab.partition])  # type: ignore[arg-type]


async def answered(metadata: ScriptedMetadata) -> None:
    await metadata.answered.wait()
    for _ in range(3):  # for the task that has got the answer
        await asyncio.sleep(0)


def test_a_follower_that_has_caught_up_stays_outside_the_isr(lab: PartitionLab) -> None:
    async def run() -> None:
        metadata, changes = begin(lab, accept)
        partition = lab.lead(state(isr=(1, 2)))
        lab.fetch(3, 0)
        await answered(metadata)
        assert metadata.writes == [(state(isr=(1, 2, 3)), {3: 3})]
        assert partition.state is not None
        assert (partition.state.isr, changes.expands) == ((1, 2, 3), 1)

    asyncio.run(run())


def test_a_lost_answer_forgets_the_proposed_member(lab: PartitionLab) -> None:
    """ZooKeeper may have written the ISR: the high watermark must wait for the new member all the same."""

    async def run() -> None:
        metadata, _ = begin(lab, OutcomeUnknownError("lost"), accept)
        partition = lab.lead(state(isr=(1, 2)))
        lab.fetch(3, 0)
        await asyncio.sleep(0)
        end = lab.append(b"value")
        lab.fetch(2, end)
        assert partition.high_watermark == 0
        await answered(metadata)
        assert [written.isr for written, _ in metadata.writes] == [(1, 2, 3)] * 2
        assert partition.high_watermark == 0
        lab.fetch(3, end)
        assert partition.high_watermark == end

    asyncio.run(run())


def test_a_refused_change_keeps_its_member_in_the_maximal_isr(lab: PartitionLab) -> None:
    async def run() -> None:
        unchanged = state(isr=(1, 2))
        metadata, changes = begin(lab, lambda _: unchanged)
        partition = lab.lead(unchanged)
        lab.fetch(3, 0)
        await answered(metadata)
        assert partition.leadership is not None
        assert partition.leadership.maximal_isr == {1, 2}
        assert changes.expands == 0

    asyncio.run(run())


def test_a_broker_that_may_not_join_is_proposed(lab: PartitionLab) -> None:
    async def run() -> None:
        metadata, _ = begin(lab)
        lab.lead(state(isr=(1, 2)))
        for broken in ({"lost_tail": True}, {"is_leaving": True}, {"epoch": 33}):
            brokers = {**metadata.view.brokers, 3: replace(RegisteredBroker(3, "host", 9092, 3), **broken)}
            metadata.view = replace(metadata.view, brokers=brokers)
            lab.fetch(3, 0)
        await asyncio.sleep(0)
        assert metadata.writes == []

    asyncio.run(run())


def test_a_change_is_written_after_the_leadership_has_ended(lab: PartitionLab) -> None:
    async def run() -> None:
        metadata, _ = begin(lab, OutcomeUnknownError("lost"))
        partition = lab.lead(state(isr=(1, 2)))
        lab.fetch(3, 0)
        await asyncio.sleep(0)
        partition.follow(state(leader=2, epoch=1))
        await answered(metadata)
        assert len(metadata.writes) == 1

    asyncio.run(run())


def test_a_lagging_follower_stays_in_the_isr(lab: PartitionLab) -> None:
    async def run() -> None:
        metadata, changes = begin(lab, accept)
        partition = lab.lead()
        end = lab.append(b"value")
        lab.fetch(2, end)
        lab.fetch(3, 0)
        lab.clock.advance(2 * LAG_MS)
        lab.fetch(2, end)
        changes.remove_lagging()
        await answered(metadata)
        assert partition.state is not None
        assert (partition.state.isr, changes.shrinks) == ((1, 2), 1)
        assert partition.high_watermark == end, "the members that are left have it"

    asyncio.run(run())


def test_a_broker_without_its_lease_shrinks_isrs(lab: PartitionLab) -> None:
    async def run() -> None:
        metadata, changes = begin(lab)
        lab.lead()
        lab.append(b"value")
        lab.clock.advance(2 * LAG_MS)
        lab.has_lease = False
        changes.remove_lagging()
        await asyncio.sleep(0)
        assert metadata.writes == []

    asyncio.run(run())
