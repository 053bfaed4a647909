"""Several brokers read and write the metadata of a cluster, in a real ZooKeeper."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from dataclasses import replace

import pytest

from stratalog.broker.metadata import znodes
from stratalog.broker.metadata.attempts import BusyMetadataError
from stratalog.broker.metadata.cluster_view import PartitionId
from stratalog.broker.metadata.topic_changes import ConcurrentSettingsError
from stratalog.broker.metadata.transaction_sizes import LARGEST_TRANSACTION
from stratalog.broker.metadata.zookeeper_errors import OutcomeUnknownError
from stratalog.broker.metadata.zookeeper_requests import Create, Delete, SetData
from stratalog.errors import InvalidPartitionsError, TopicExistsError, UnknownTopicError
from tests.broker.metadata.cluster_lab import ClusterLab, LabBroker, LostResponses, ReadPaths, halt, topic


def test_a_topic_is_not_seen_by_all_brokers(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1, broker_2 = await lab.start(3)
            assert await broker_0.metadata.create_topics([topic("orders", (0, 1), (1, 2), min_insync=2, a="b")]) == [
                None
            ]
            assert broker_0.view.topics["orders"].partition_count == 2, "its own view has it at once"
            await lab.until_equal()
            state = broker_2.state("orders", 1)
            assert (state.replicas, state.leader, state.isr, state.leader_epoch) == ((1, 2), 1, (1, 2), 0)
            assert state.leader_broker_epoch == broker_1.metadata.broker_epoch
            await broker_1.metadata.add_partitions("orders", [(2, 0)])
            assert broker_1.state("orders", 2).min_insync == 2
            await broker_2.metadata.catch_up()
            await broker_2.metadata.change_settings("orders", {"a": "c"}, 1)
            assert broker_2.state("orders", 2).min_insync == 1
            view = await lab.until_equal()
            assert (view.topics["orders"].settings, view.topics["orders"].partition_count) == ({"a": "c"}, 3)
            await broker_0.metadata.delete_topic("orders", broker_0.view.topics["orders"].id)
            assert "orders" not in broker_0.view.topics
            view = await lab.until_equal()
            assert (view.topics, view.states) == ({}, {})
            assert await lab.admin.children(znodes.PARTITIONS) == []

    asyncio.run(scenario())


def test_concurrent_changes_leave_views_apart(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            brokers = await lab.start(3)
            rng = random.Random(7)

            async def work(number: int) -> None:
                for step in range(40):
                    broker = rng.choice(brokers)
                    name = f"t{rng.randrange(5)}"
                    known = broker.view.topics.get(name)
                    try:
                        if known is None:
                            await broker.metadata.create_topics([topic(name, (0, 1, 2))])
                        elif step % 4 == 0:
                            await broker.metadata.delete_topic(name, known.id)
                        elif step % 4 == 1:
                            await broker.metadata.add_partitions(name, [(1, 2)])
                        elif step % 4 == 2:
                            await broker.metadata.change_settings(name, {"step": str(step)}, 1 + step % 2)
                        else:
                            state = broker.view.state(name, 0)
                            if state is not None:
                                isr = rng.choice([(0,), (0, 1), (0, 1, 2)])
                                changed = state.with_isr(isr)
                                await brokers[0].metadata.change_state(PartitionId(known.id, 0), changed)
                    except (UnknownTopicError, InvalidPartitionsError, ConcurrentSettingsError, BusyMetadataError):
                        pass

            await asyncio.gather(*map(work, range(4)))
            view = await lab.until_equal()
            fresh = await lab.broker(9)
            assert fresh.view.topics == view.topics
            assert fresh.view.states == view.states
            assert set(view.states) == {
                PartitionId(each.id, number) for each in view.topics.values() for number in range(each.partition_count)
            }
            for broker in brokers:
                for (_, new), (old, _) in zip(broker.changes, broker.changes[1:], strict=False):
                    assert new is old, "a listener has missed a view"

    asyncio.run(scenario())


def test_a_topic_is_created_twice(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)
            outcomes = await asyncio.gather(
                *(
                    broker.metadata.create_topics([topic("a", (0, 1)), topic("b", (1, 0))])
                    for broker in (broker_0, broker_1)
                )
            )
            for first, second in zip(*outcomes, strict=True):
                assert {type(first), type(second)} == {type(None), TopicExistsError}
            with pytest.raises(UnknownTopicError):
                await broker_0.metadata.delete_topic("a", uuid.uuid4())
            with pytest.raises(UnknownTopicError):
                await broker_0.metadata.add_partitions("missing", [(0,)])
            await lab.until_equal()
            assert set(broker_0.view.topics) == {"a", "b"}

    asyncio.run(scenario())


def test_two_requests_add_the_same_partitions(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)
            await broker_0.metadata.create_topics([topic("a", (0, 1))])
            await lab.until_equal()
            outcomes = await asyncio.gather(
                broker_0.metadata.add_partitions("a", [(0, 1)]),
                broker_1.metadata.add_partitions("a", [(1, 0)]),
                return_exceptions=True,
            )
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["InvalidPartitionsError", "NoneType"]
            assert (await lab.until_equal()).topics["a"].partition_count == 2

    asyncio.run(scenario())


def test_a_refused_isr_counts(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, _, _ = await lab.start(3)
            await broker_0.metadata.create_topics([topic("a", (0, 1, 2))])
            id, before = broker_0.id("a"), broker_0.state("a")
            small = await broker_0.metadata.change_state(id, before.with_isr((0, 1)))
            assert (small.isr, small.partition_epoch) == ((0, 1), 1)
            assert await broker_0.metadata.change_state(id, before.with_isr((0,))) == small, "made from an old state"
            # the leader goes on from what it has written, before its view has it
            grown = await broker_0.metadata.change_state(id, small.with_isr((0, 1, 2)))
            assert (grown.isr, grown.partition_epoch) == ((0, 1, 2), 2)
            assert (await lab.until_equal()).states[id] == grown
            await broker_0.metadata.delete_topic("a", id.topic_id)
            with pytest.raises(UnknownTopicError):
                await broker_0.metadata.change_state(id, grown.with_isr((0,)))

    asyncio.run(scenario())


def test_a_broker_joins_the_isr_under_an_old_registration(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)
            await broker_0.metadata.create_topics([topic("a", (0, 1))])
            id = broker_0.id("a")
            small = await broker_0.metadata.change_state(id, broker_0.state("a").with_isr((0,)))
            old_epoch = broker_1.metadata.broker_epoch
            refused = await broker_0.metadata.change_state(id, small.with_isr((0, 1)), joining={1: old_epoch - 1})
            assert refused == small
            await halt(broker_0)  # it does not see that broker 1 registers again
            await lab.kill(broker_1)
            back = await lab.broker(1)
            assert back.metadata.broker_epoch > old_epoch
            assert await broker_0.metadata.change_state(id, small.with_isr((0, 1)), joining={1: old_epoch}) == small

    asyncio.run(scenario())


def test_a_broker_joins_the_isr_while_it_shuts_down(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)
            await broker_0.metadata.create_topics([topic("a", (0, 1))])
            id = broker_0.id("a")
            small = await broker_0.metadata.change_state(id, broker_0.state("a").with_isr((0,)))
            await halt(broker_0)
            await broker_1.metadata.begin_leaving()
            assert broker_1.view.brokers[1].is_leaving
            assert broker_1.view.joinable_epoch(1) is None
            assert set(broker_1.view.live_epochs()) == {0}
            assert await broker_0.metadata.change_state(id, small.with_isr((0, 1))) == small

    asyncio.run(scenario())


def test_a_leader_writes_under_an_old_registration(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)
            await broker_0.metadata.create_topics([topic("a", (0, 1))])
            id, state = broker_0.id("a"), broker_0.state("a")
            await lab.kill(broker_0)
            back = await lab.broker(0)
            assert await back.metadata.change_state(id, state.with_isr((0,))) == state
            assert broker_1.state("a") == state

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_response_makes_a_change_fail_or_happen_twice(zookeeper_address: str, lost: int) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, _ = await lab.start(2)
            metadata = broker_0.metadata
            LostResponses(broker_0.session, lost)
            assert await metadata.create_topics([topic("a", (0, 1))]) == [None]
            LostResponses(broker_0.session, lost)
            await metadata.add_partitions("a", [(1, 0)])
            LostResponses(broker_0.session, lost)
            await metadata.change_settings("a", {"x": "y"}, 1)
            LostResponses(broker_0.session, lost)
            await metadata.change_broker_settings("", {"x": "y"})
            LostResponses(broker_0.session, lost)
            first = await metadata.producer_ids(10)
            assert await metadata.producer_ids(10) == first + 10
            view = await lab.until_equal()
            assert (view.topics["a"].partition_count, view.topics["a"].settings) == (2, {"x": "y"})
            assert view.broker_settings == {"": {"x": "y"}}
            LostResponses(broker_0.session, lost)
            await metadata.delete_topic("a", broker_0.id("a").topic_id)
            assert broker_0.view.topics == {}
            await metadata.create_topics([topic("b", (0, 1))])
            LostResponses(broker_0.session)
            with pytest.raises(OutcomeUnknownError):
                await metadata.change_state(broker_0.id("b"), broker_0.state("b").with_isr((0,)))
            await metadata.catch_up()
            assert broker_0.state("b").isr == (0,)

    asyncio.run(scenario())


def test_producer_ids_are_given_twice(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            brokers = await lab.start(3)
            firsts = await asyncio.gather(*(broker.metadata.producer_ids(5) for broker in brokers for _ in range(8)))
            assert sorted(firsts) == list(range(0, 120, 5))

    asyncio.run(scenario())


def test_concurrent_settings_are_lost(zookeeper_address: str) -> None:
    async def change_topic(broker: LabBroker, value: str) -> None:
        await broker.metadata.change_settings("a", {"x": value}, 1)

    async def change_broker(broker: LabBroker, value: str) -> None:
        await broker.metadata.change_broker_settings("1", {"x": value})

    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)
            await broker_0.metadata.create_topics([topic("a", (0, 1))])
            await lab.until_equal()
            for change in (change_topic, change_broker):
                outcomes = await asyncio.gather(change(broker_0, "1"), change(broker_1, "2"), return_exceptions=True)
                assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ConcurrentSettingsError", "NoneType"]
                await lab.until_equal()

    asyncio.run(scenario())


def test_a_broker_that_was_away_misses_trimmed_changes(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)
            await broker_0.metadata.create_topics([topic("a", (0, 1)), topic("b", (0, 1)), topic("gone", (0, 1))])
            await lab.until_equal()
            await halt(broker_1)
            await broker_0.metadata.delete_topic("gone", broker_0.id("gone").topic_id)
            await broker_0.metadata.create_topics([topic("c", (1, 0))])
            await broker_0.metadata.change_state(broker_0.id("a"), broker_0.state("a").with_isr((0,)))
            numbers = broker_0.metadata.entry_numbers
            await broker_0.metadata.catch_up()
            await lab.admin.commit([Delete(znodes.change_path(number)) for number in numbers])
            await broker_0.metadata.change_broker_settings("", {"x": "y"})
            follower = broker_1.metadata._follower
            follower._task = asyncio.create_task(follower._follow())
            view = await lab.until_equal()
            assert set(view.topics) == {"a", "b", "c"}
            assert broker_1.state("a").isr == (0,)
            assert view.broker_settings == {"": {"x": "y"}}

    asyncio.run(scenario())


def test_an_idle_cluster_asks_zookeeper_and_a_change_reads_everything(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)
            await broker_0.metadata.create_topics([topic("a", (0, 1)), topic("b", (0, 1))])
            await lab.until_equal()
            reads = ReadPaths(broker_1.session)
            await asyncio.sleep(0.3)
            assert reads.read == []
            number = broker_1.metadata.entry_numbers[-1] + 1
            written = await broker_0.metadata.change_state(broker_0.id("a"), broker_0.state("a").with_isr((0,)))
            await lab.until(lambda: broker_1.state("a") == written)
            await asyncio.sleep(0.05)
            assert reads.read == [f"children of {znodes.CHANGES}", znodes.change_path(number)]

    asyncio.run(scenario())


def test_a_large_topic_exceeds_zookeepers_limit(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, _, _ = await lab.start(3)
            sizes = []
            commit = broker_0.session.commit

            async def measured(operations: list[object]) -> list[str | None]:
                sizes.append(sum(len(str(operation)) for operation in operations))
                return await commit(operations)  # type: ignore[arg-type]

            broker_0.session.commit = measured  # type: ignore[method-assign, assignment]
            began = time.monotonic()
            assignment = [(number % 3, (number + 1) % 3, (number + 2) % 3) for number in range(3000)]
            assert await broker_0.metadata.create_topics([topic("large", *assignment)]) == [None]
            created = time.monotonic()
            assert await broker_0.metadata.create_topics([topic("large", *assignment)]) != [None]
            await lab.until_equal()
            loading = time.monotonic()
            late = await lab.broker(3)
            loaded = time.monotonic()
            assert late.view.states == broker_0.view.states
            assert len(late.view.states) == 3000
            await broker_0.metadata.change_settings("large", {}, 2)
            changed = time.monotonic()
            await broker_0.metadata.add_partitions("large", assignment)
            assert (await lab.until_equal()).topics["large"].partition_count == 6000
            await broker_0.metadata.delete_topic("large", broker_0.id("large").topic_id)
            assert (await lab.until_equal()).states == {}
            assert max(sizes) < 2 * LARGEST_TRANSACTION
            assert await lab.admin.children(znodes.PARTITIONS) == []
            print(
                f"3,000 partitions: created in {created - began:.1f} s, loaded in {loaded - loading:.1f} s, "
                f"all states changed in {changed - loaded:.1f} s"
            )

    asyncio.run(scenario())


RUBBISH = [b"", b"rubbish", b"{}", b'{"version":99}', b'{"version":1,"id":7,"partitions":"x","replicas":[-1]}', b"\xff"]


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_rubbish_in_znodes_stops_a_broker(
    zookeeper_address: str, rubbish: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, _ = await lab.start(2)
            await broker_0.metadata.create_topics([topic("good", (0, 1)), topic("bad", (0, 1)), topic("worse", (0, 1))])
            await broker_0.metadata.change_broker_settings("", {"x": "y"})
            before = await lab.until_equal()
            admin = lab.admin
            await admin.commit(
                [
                    SetData(znodes.topic_path("bad"), rubbish, -1),
                    SetData(znodes.partition_path(broker_0.id("worse")), rubbish, -1),
                    SetData(znodes.settings_path(""), rubbish, -1),
                    SetData(znodes.registration_path(1), rubbish, -1),
                    Create(f"{znodes.TOPICS}/new", rubbish),
                    Create(f"{znodes.TOPICS}/not a name", znodes.format_topic(before.topics["good"])),
                    Create(f"{znodes.PARTITIONS}/rubbish", rubbish),
                    Create(f"{znodes.BROKER_IDS}/5", rubbish),
                    Create(f"{znodes.REGISTRATIONS}/5", rubbish),
                    Create(f"{znodes.BROKER_IDS}/rubbish", rubbish),
                    Create(f"{znodes.BROKER_SETTINGS}/7", rubbish),
                    Create(znodes.CONTROLLER, rubbish),
                    Create(f"{znodes.CHANGES}/rubbish", rubbish),
                    Create(znodes.CHANGE_PREFIX, rubbish, sequential=True),
                ]
            )
            await broker_0.metadata.catch_up()
            await broker_0.metadata.create_topics([topic("after", (0,))])
            assert set(broker_0.view.topics) == {"good", "bad", "worse", "after"}, "what was known stays"
            assert broker_0.view.states.items() >= before.states.items()
            assert broker_0.view.unreadable_topics == {"bad", "new", "not a name"}
            assert broker_0.view.broker_settings == {"": {"x": "y"}}
            await lab.until(lambda: set(broker_0.view.brokers) == {0, 1})
            assert broker_0.view.brokers[1].lost_tail, "rubbish may have hidden a loss"
            assert broker_0.view.brokers[1].epoch > before.brokers[1].epoch, "it has registered again"
            fresh = await lab.broker(3)
            assert set(fresh.view.topics) == {"good", "worse", "after"}
            assert fresh.view.unreadable_topics == {"bad", "new", "not a name"}
            assert fresh.view.state("worse", 0) is None
            [exists] = await fresh.metadata.create_topics([topic("new", (0,))])
            assert exists is not None
            messages = [record.message for record in caplog.records if "znode /topics/bad:" in record.message]
            assert len(messages) <= 3, "a broker reports it more than once"

    asyncio.run(scenario())


def test_a_state_is_replaced_by_an_old_one_after_a_topic_is_recreated(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)
            await broker_0.metadata.create_topics([topic("a", (0, 1))])
            await lab.until_equal()
            id, state = broker_0.id("a"), broker_0.state("a")
            await halt(broker_0)
            await broker_1.metadata.delete_topic("a", id.topic_id)
            await broker_1.metadata.create_topics([topic("a", (0, 1))])
            with pytest.raises(UnknownTopicError):
                await broker_0.metadata.change_state(id, state.with_isr((0,)))
            await broker_1.metadata.catch_up()
            assert broker_1.state("a") == replace(state, partition_epoch=0)

    asyncio.run(scenario())


def test_states_of_a_crashed_creation_stay_or_a_slow_creation_loses_its_states(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, _ = await lab.start(2)
            await broker_0.metadata.create_topics([topic("a", (0, 1))])
            crashed = uuid.uuid4()
            await lab.admin.ensure(f"{znodes.partitions_path(crashed)}/0")
            await broker_0.metadata.remove_abandoned()
            assert await lab.admin.children(znodes.PARTITIONS) == [str(broker_0.id("a").topic_id)]
            # a controller removes the states of a creation that is in progress: the creation begins again
            slow = topic("slow", *[(0, 1)] * 3000)
            creation = asyncio.create_task(broker_0.metadata.create_topics([slow]))
            while not await lab.admin.get(f"{znodes.partitions_path(slow.id)}/0"):
                await asyncio.sleep(0.001)
            if await lab.admin.get(znodes.topic_path("slow")) is None:
                await lab.admin.commit([SetData(znodes.partitions_path(slow.id), b"abandoned", 0)])
                for number in await lab.admin.children(znodes.partitions_path(slow.id)):
                    await lab.admin.commit([Delete(f"{znodes.partitions_path(slow.id)}/{number}")])
                outcome = await creation
                assert outcome[0] is not None
                assert "slow" not in broker_0.view.topics
            await creation

    asyncio.run(scenario())
