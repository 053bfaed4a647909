"""The controller's work, with several brokers in one event loop and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from stratalog.broker.controller import administration
from stratalog.broker.controller import controller as controller_module
from stratalog.broker.metadata import znodes
from stratalog.broker.metadata.change_entries import PartitionChanged, format_entry
from stratalog.broker.metadata.cluster_view import NO_BROKER
from stratalog.broker.metadata.partition_state import NO_LEADER, PartitionState
from stratalog.broker.metadata.zookeeper_errors import ConflictError
from stratalog.broker.metadata.zookeeper_requests import Check, Create, Delete, SetData
from stratalog.errors import InvalidReplicaAssignmentError, StratalogError
from tests.broker.metadata.cluster_lab import ClusterLab, LabBroker, LostResponses, expire, halt, resume, topic


def controller_of(brokers: list[LabBroker]) -> LabBroker:
    [controller] = [broker for broker in brokers if broker.controller.is_controller]
    return controller


async def start(lab: ClusterLab, count: int) -> list[LabBroker]:
    """Start brokers; broker 0 is the controller."""
    brokers = await lab.start(count, controls=True)
    await lab.until(lambda: all(broker.view.controller == 0 for broker in brokers))
    return brokers


def test_partitions_of_a_dead_broker_stay_without_a_leader(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1, broker_2 = await start(lab, 3)
            await broker_1.metadata.create_topics([topic("a", (2, 1, 0), (1, 2, 0), (0, 1, 2), (2,), min_insync=3)])
            await lab.until_equal()
            await lab.kill(broker_2)
            await lab.until(lambda: not any(2 in broker_1.state("a", number).isr for number in range(4)))
            led = broker_1.state("a", 0)
            assert (led.leader, led.isr, led.leader_epoch, led.elr) == (1, (1, 0), 1, (2,)), "in assignment order"
            assert led.leader_broker_epoch == broker_1.metadata.broker_epoch
            follows = broker_1.state("a", 1)
            assert (follows.leader, follows.isr, follows.leader_epoch, follows.elr) == (1, (1, 0), 0, (2,))
            alone = broker_1.state("a", 3)
            assert (alone.leader, alone.isr, alone.elr) == (NO_LEADER, (), (2,))
            back = await lab.broker(2, controls=True)
            await lab.until(lambda: broker_1.state("a", 3).has_leader)
            assert broker_1.state("a", 3).leader_broker_epoch == back.metadata.broker_epoch
            assert broker_1.state("a", 0).leader == 1, "nothing else happens on its return"
            assert broker_0.controller.is_controller

    asyncio.run(scenario())


def test_a_dead_controller_has_no_successor(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1, broker_2 = await start(lab, 3)
            await broker_1.metadata.create_topics([topic("a", (0, 1, 2))])
            await lab.until_equal()
            await lab.kill(broker_0)
            await lab.until(lambda: broker_1.state("a").leader == 1 and broker_2.view.controller in (1, 2))
            assert controller_of([broker_1, broker_2]).metadata.node_id == broker_2.view.controller
            epoch = await lab.admin.get(znodes.CONTROLLER_EPOCH)
            assert epoch is not None
            assert znodes.parse_controller_epoch(epoch.data) == 2

    asyncio.run(scenario())


def test_a_controller_whose_session_expired_goes_on(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await start(lab, 2)
            await broker_1.metadata.create_topics([topic("a", (0, 1))])
            await lab.until_equal()
            await expire(broker_0.session)
            await lab.until(lambda: broker_1.state("a").leader == 1 and broker_1.state("a").isr == (1,))
            await lab.until(lambda: broker_0.metadata.can_lead() and broker_0.view.controller != NO_BROKER)
            await lab.until(
                lambda: [broker_0.controller.is_controller, broker_1.controller.is_controller].count(True) == 1
            )

    asyncio.run(scenario())


def test_two_controllers_write_at_once(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1, broker_2 = await start(lab, 3)
            await broker_1.metadata.create_topics([topic("a", (0, 1, 2))])
            await lab.until_equal()
            old = broker_0.controller._reign
            assert old is not None
            await halt(broker_0)  # as if it was stopped; another broker takes over
            await lab.admin.commit([Delete(znodes.CONTROLLER)])
            await lab.until(lambda: broker_1.view.controller in (1, 2))
            await lab.kill(broker_2)
            await lab.until(lambda: broker_1.view.controller == 1 and broker_1.state("a").isr == (0, 1))
            # the old controller goes on where it was: for it, broker 2 is alive and it reigns
            broker_0.controller._reign = old
            with pytest.raises(ConflictError, match="has another version") as refusal:
                await broker_0.metadata.change_states(
                    list(broker_0.view.states), lambda _, state: state.with_isr((0,)), [old.check]
                )
            assert refusal.value.path == znodes.CONTROLLER_EPOCH
            assert broker_1.state("a").isr == (0, 1)
            broker_0.controller._task = asyncio.create_task(broker_0.controller._run())
            broker_0.controller.look_at_all()
            resume(broker_0)
            await lab.until(lambda: not broker_0.controller.is_controller)
            assert broker_1.controller.is_controller

    asyncio.run(scenario())


def test_a_controller_that_lost_the_response_to_its_claim_waits_for_itself(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            session = await lab.session()
            broker_0 = await lab.broker(0, session=session)
            LostResponses(session)
            broker_0.controller.start()
            await lab.until(lambda: broker_0.controller.is_controller)
            assert await broker_0.metadata.create_topics([topic("a", (1,))]) == [None]
            broker_1 = await lab.broker(1)
            await lab.until(lambda: broker_1.state("a").leader == 1)

    asyncio.run(scenario())


def test_a_broker_that_shuts_down_keeps_its_leaderships(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            _, broker_1, broker_2 = await start(lab, 3)
            await broker_1.metadata.create_topics([topic("a", (1, 2, 0), (2, 1, 0), (1,))])
            await broker_1.metadata.begin_leaving()
            await lab.until(lambda: not any(broker_1.state("a", number).leader == 1 for number in range(3)))
            assert (broker_1.state("a", 0).leader, broker_1.state("a", 0).isr) == (2, (2, 0))
            await lab.until(lambda: broker_1.state("a", 1).isr == (2, 0))
            await expire(broker_1.session)
            await lab.until(lambda: broker_1.metadata.can_lead() and 1 in broker_2.view.brokers)
            assert broker_2.view.brokers[1].is_leaving, "it still shuts down"
            lab.brokers.remove(broker_1)
            await broker_1.controller.stop()
            await broker_1.metadata.leave()
            await lab.until(lambda: 1 not in broker_2.view.brokers)

    asyncio.run(scenario())


def test_a_broker_that_lost_its_tail_is_elected(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1, broker_2 = await start(lab, 3)
            await broker_1.metadata.create_topics([topic("a", (1, 2), (2, 1), (1,), min_insync=2)])
            await lab.until_equal()
            seen: list[PartitionState] = []
            broker_0.metadata.on_change(lambda _, new: seen.append(new.states[broker_0.id("a")]))
            admitted: list[bool] = []
            broker_0.metadata.on_change(
                lambda _, new: admitted.append(1 in new.brokers and not new.brokers[1].lost_tail)
            )
            await halt(broker_0)  # the broker is back before the controller acts
            await lab.kill(broker_1)
            broker_1 = await lab.broker(1, lost_tail=True, controls=True)
            assert broker_1.view.joinable_epoch(1) is None
            resume(broker_0)
            broker_0.controller._task = asyncio.create_task(broker_0.controller._run())
            broker_0.controller.look_at_all()
            await lab.until(lambda: broker_1.view.joinable_epoch(1) == broker_1.metadata.broker_epoch)
            led = broker_1.state("a", 0)
            assert (led.leader, led.isr, led.elr) == (2, (2,), ())
            assert (broker_1.state("a", 1).isr, broker_1.state("a", 1).elr) == ((2,), ())
            alone = broker_1.state("a", 2)
            assert (alone.leader, alone.isr, alone.leader_epoch) == (1, (1,), 1), "there is no other replica"
            epoch = broker_1.metadata.broker_epoch
            assert not any(state.leader == 1 and state.leader_broker_epoch == epoch for state in seen)
            await broker_2.metadata.catch_up()
            joined = await broker_2.metadata.change_state(
                broker_2.id("a"), broker_2.state("a").with_isr((2, 1)), joining={1: broker_1.metadata.broker_epoch}
            )
            assert joined.isr == (2, 1)

    asyncio.run(scenario())


def test_a_broker_that_lost_its_tail_joins_an_isr_before_it_is_admitted(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)  # without a controller
            await broker_0.metadata.create_topics([topic("a", (0, 1))])
            small = await broker_0.metadata.change_state(broker_0.id("a"), broker_0.state("a").with_isr((0,)))
            await lab.kill(broker_1)
            broker_1 = await lab.broker(1, lost_tail=True)
            await broker_0.metadata.catch_up()
            grown = small.with_isr((0, 1))
            joining = {1: broker_1.metadata.broker_epoch}
            assert await broker_0.metadata.change_state(broker_0.id("a"), grown, joining=joining) == small
            broker_0.controller.start()
            await lab.until(lambda: broker_0.view.joinable_epoch(1) is not None)
            assert (await broker_0.metadata.change_state(broker_0.id("a"), grown, joining=joining)).isr == (0, 1)

    asyncio.run(scenario())


def test_a_topic_whose_planned_leader_died_never_gets_a_leader(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1, broker_2 = await start(lab, 3)
            await halt(broker_1)  # it plans from an old view
            await lab.kill(broker_2)
            await lab.until(lambda: 2 not in broker_0.view.brokers)
            creation = asyncio.create_task(broker_1.metadata.create_topics([topic("a", (2, 0)), topic("b", (2,))]))
            await lab.until(lambda: "a" in broker_0.view.topics and broker_0.state("a").leader == 0)
            assert broker_0.state("a").isr == (0,)
            await lab.until(lambda: "b" in broker_0.view.topics and not broker_0.state("b").has_leader)
            resume(broker_1)
            assert await creation == [None, None]
            await broker_1.metadata.create_topics([topic("c", (2,))])
            assert (broker_1.state("c").leader, broker_1.state("c").leader_epoch) == (NO_LEADER, -1)
            await lab.broker(2)
            await lab.until(lambda: broker_1.state("b").leader == broker_1.state("c").leader == 2)

    asyncio.run(scenario())


def test_an_election_is_decided_from_an_old_state(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1, broker_2 = await start(lab, 3)
            await broker_1.metadata.create_topics([topic("a", (2, 1, 0)), topic("b", (2, 1, 0))])
            await lab.until_equal()
            id = broker_1.id("a")
            changes = asyncio.Event()
            commit = broker_0.session.commit

            async def slow_commit(operations: list[object]) -> list[str | None]:
                if not changes.is_set():  # the leader shrinks the ISR between the decision and the write
                    changes.set()
                    state = replace(state_before.with_isr((2, 0)), partition_epoch=state_before.partition_epoch + 1)
                    path = znodes.partition_path(id)
                    entry = format_entry([PartitionChanged(id, state)])
                    await lab.admin.commit(
                        [
                            SetData(path, znodes.format_state(state), state_before.partition_epoch),
                            Create(znodes.CHANGE_PREFIX, entry, sequential=True),
                        ]
                    )
                return await commit(operations)  # type: ignore[arg-type]

            state_before = broker_2.state("a")
            broker_0.session.commit = slow_commit  # type: ignore[method-assign, assignment]
            await lab.kill(broker_2)
            await lab.until(lambda: broker_1.state("a").isr == (0,) and broker_1.state("b").isr == (1, 0))
            assert (broker_1.state("a").leader, broker_1.state("b").leader) == (0, 1)

    asyncio.run(scenario())


def test_a_changed_min_insync_is_left_half_written(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            _, broker_1 = await start(lab, 2)
            await broker_1.metadata.create_topics([topic("a", (0, 1))])
            changed = replace(broker_1.view.topics["a"], min_insync=2)
            await lab.admin.commit([SetData(znodes.topic_path("a"), znodes.format_topic(changed), 0)])
            await lab.admin.commit([Create(znodes.CHANGE_PREFIX, b"rubbish", sequential=True)])
            await lab.until(lambda: broker_1.state("a").min_insync == 2)

    asyncio.run(scenario())


def test_preferred_leaders_do_not_get_their_leaderships_back(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1, broker_2 = await start(lab, 3)
            await broker_1.metadata.create_topics([topic("a", (2, 1), (1, 2), (0, 1))])
            await lab.until_equal()
            await lab.kill(broker_2)
            await lab.until(lambda: broker_1.state("a", 1).isr == (1,) and broker_1.state("a", 0).leader == 1)
            broker_2 = await lab.broker(2)
            ids = [broker_1.id("a", number) for number in range(3)]
            outcomes = await administration.elect_preferred(broker_1.metadata, ids)
            assert [getattr(outcomes[id], "code", None) for id in ids] == [80, 84, 84]
            joined = await broker_1.metadata.change_state(ids[0], broker_1.state("a", 0).with_isr((1, 2)))
            assert joined.isr == (1, 2)
            await broker_0.metadata.catch_up()
            await broker_0.controller.restore_preferred(10)
            await lab.until(lambda: broker_1.state("a", 0).leader == 2)
            assert broker_1.state("a", 0).leader_epoch == joined.leader_epoch + 1

    asyncio.run(scenario())


def test_an_unclean_election_is_not_possible(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            _, broker_1, broker_2 = await start(lab, 3)
            await broker_1.metadata.create_topics([topic("a", (2, 1))])
            await lab.until_equal()
            await broker_2.metadata.change_state(broker_2.id("a"), broker_2.state("a").with_isr((2,)))
            await lab.kill(broker_2)
            await lab.until(lambda: not broker_1.state("a").has_leader)
            id = broker_1.id("a")
            assert isinstance((await administration.elect_preferred(broker_1.metadata, [id]))[id], StratalogError)
            state = (await administration.elect_unclean(broker_1.metadata, [id]))[id]
            assert isinstance(state, PartitionState)
            assert (state.leader, state.isr) == (1, (1,))

    asyncio.run(scenario())


def test_a_topic_that_allows_unclean_leaders_stays_offline(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0 = await lab.broker(0, controls=True, unclean=lambda name: name == "loose")
            broker_2 = await lab.broker(2)
            await broker_0.metadata.create_topics([topic("loose", (2, 0)), topic("strict", (2, 0))])
            await broker_2.metadata.catch_up()
            for name in ("loose", "strict"):
                await broker_2.metadata.change_state(broker_2.id(name), broker_2.state(name).with_isr((2,)))
            await lab.kill(broker_2)
            await lab.until(lambda: broker_0.state("loose").leader == 0 and not broker_0.state("strict").has_leader)

    asyncio.run(scenario())


def test_a_reassignment_never_ends(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            _, broker_1, _, broker_3 = await start(lab, 4)
            await broker_1.metadata.create_topics([topic("a", (0, 1), (0, 1))])
            await lab.until_equal()
            id, second = broker_1.id("a", 0), broker_1.id("a", 1)
            outcomes = await administration.reassign(broker_3.metadata, {id: (2, 3), second: (2, 1)})
            assert all(isinstance(outcome, PartitionState) for outcome in outcomes.values())
            await lab.until_equal()
            state = broker_1.state("a")
            assert (state.replicas, state.adding, state.removing) == ((2, 3, 0, 1), (2, 3), (0, 1))
            # the new replicas catch up, one after the other
            state = await broker_1.metadata.change_state(id, state.with_isr((0, 1, 2)))
            state = await broker_1.metadata.change_state(id, state.with_isr((0, 1, 2, 3)))
            await lab.until(lambda: not broker_1.state("a").is_reassigning)
            state = broker_1.state("a")
            assert (state.replicas, state.isr, state.leader) == ((2, 3), (2, 3), 2)
            assert isinstance(
                (await administration.reassign(broker_1.metadata, {second: None}))[second], PartitionState
            )
            await broker_1.metadata.catch_up()
            assert set(broker_1.state("a", 1).replicas) == {0, 1}
            refused = (await administration.reassign(broker_1.metadata, {second: None}))[second]
            assert getattr(refused, "code", None) == 85
            unknown = (await administration.reassign(broker_1.metadata, {second: (9,)}))[second]
            assert isinstance(unknown, InvalidReplicaAssignmentError)

    asyncio.run(scenario())


def test_change_entries_fill_zookeeper(zookeeper_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "_MOST_ENTRIES", 20)
    monkeypatch.setattr(controller_module, "_KEPT_ENTRIES", 10)

    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            _, broker_1 = await start(lab, 2)
            await broker_1.metadata.create_topics([topic("a", (1, 0))])
            for _ in range(60):
                isr = (1,) if broker_1.state("a").isr == (1, 0) else (1, 0)
                await broker_1.metadata.change_state(broker_1.id("a"), broker_1.state("a").with_isr(isr))
                await broker_1.metadata.catch_up()
            await lab.until_equal()
            assert len(await lab.admin.children(znodes.CHANGES)) <= 22
            fresh = await lab.broker(5)
            assert fresh.view.states == broker_1.view.states

    asyncio.run(scenario())


def test_a_failover_of_3000_partitions(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, _, broker_2 = await start(lab, 3)
            await broker_0.metadata.create_topics([topic("a", *[(2, 1, 0), (1, 2, 0), (0, 1, 2)] * 1000)])
            await lab.until_equal()
            died = time.monotonic()
            await lab.kill(broker_2)
            await lab.until(lambda: not any(2 in state.isr for state in broker_0.view.states.values()))
            print(f"3,000 partitions have left a dead broker after {time.monotonic() - died:.2f} s")
            assert all(state.has_leader for state in broker_0.view.states.values())

    asyncio.run(scenario())


def test_rubbish_in_the_controllers_znodes_stops_it(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await start(lab, 2)
            await lab.admin.commit([SetData(znodes.CONTROLLER, b"rubbish", -1)])
            await lab.admin.commit([SetData(znodes.CONTROLLER_EPOCH, b"rubbish", -1), Check(znodes.CONTROLLER, -1)])
            await lab.admin.commit([Delete(znodes.CONTROLLER)])
            await lab.until(lambda: broker_1.view.controller in (0, 1))
            await broker_1.metadata.create_topics([topic("a", (1, 0))])
            await lab.until_equal()
            await lab.kill(broker_1)
            await lab.until(lambda: broker_0.state("a").leader == 0)

    asyncio.run(scenario())
