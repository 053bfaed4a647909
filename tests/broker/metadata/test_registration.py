"""A broker registers in its cluster, and again after its session has ended, in a real ZooKeeper."""

from __future__ import annotations

import asyncio

import pytest

from stratalog.broker.metadata import znodes
from stratalog.broker.metadata.registration import NodeIdInUseError, WrongClusterError
from stratalog.broker.metadata.znodes import BrokerCondition, UnreadableZnodeError
from stratalog.broker.metadata.zookeeper_errors import SessionEndedError
from stratalog.broker.metadata.zookeeper_requests import Create, Delete, SetData
from tests.broker.metadata.cluster_lab import ClusterLab, LostResponses, expire, halt, resume, topic


def test_a_data_directory_of_another_cluster_joins(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            first = await lab.broker(0, cluster_id="from-the-disk")
            assert first.view.cluster_id == "from-the-disk"
            assert (await lab.broker(1)).view.cluster_id == "from-the-disk"
            assert (await lab.broker(2, cluster_id="from-the-disk")).view.cluster_id == "from-the-disk"
            with pytest.raises(WrongClusterError, match=r"belongs to cluster other.*has cluster from-the-disk"):
                await lab.broker(3, cluster_id="other")
        async with ClusterLab(zookeeper_address) as lab:
            assert len((await lab.broker(0)).view.cluster_id) == 22

    asyncio.run(scenario())


def test_an_old_broker_joins_a_newer_cluster(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            await lab.broker(0)
            await lab.admin.commit([SetData(znodes.CLUSTER_ID, b'{"version":3,"id":"x"}', -1)])
            with pytest.raises(UnreadableZnodeError, match=r"version 3, and this broker knows versions up to 1"):
                await lab.broker(1)

    asyncio.run(scenario())


def test_two_brokers_have_the_same_node_id(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            first = await lab.broker(0, session=await lab.session(timeout_ms=1000))
            with pytest.raises(NodeIdInUseError, match=r"node.id 0 is in use"):
                await lab.broker(0, session=await lab.session(timeout_ms=1000))
            assert first.metadata.can_lead()

    asyncio.run(scenario())


def test_a_broker_that_restarts_after_a_crash_is_refused(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            crashed = await lab.broker(0, session=await lab.session(timeout_ms=1000))
            epoch = crashed.metadata.broker_epoch
            lab.brokers.remove(crashed)
            await halt(crashed)
            waiting = asyncio.create_task(lab.broker(0))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            await crashed.session.close()  # as ZooKeeper ends it after the timeout
            lab._sessions.remove(crashed.session)
            assert (await waiting).metadata.broker_epoch > epoch

    asyncio.run(scenario())


def test_a_broker_whose_registration_was_lost_on_the_way_is_refused(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            await lab.broker(1)
            session = await lab.session()
            LostResponses(session)
            broker = await lab.broker(0, session=session)
            assert broker.metadata.can_lead()
            assert broker.view.brokers[0].epoch == broker.metadata.broker_epoch

    asyncio.run(scenario())


def test_a_broker_whose_znode_was_deleted_stays_away(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)
            epoch = broker_0.metadata.broker_epoch
            await lab.admin.commit([Delete(znodes.broker_id_path(0))])
            await lab.until(lambda: broker_0.metadata.broker_epoch > epoch)
            await lab.until(lambda: broker_1.view.brokers.get(0) == broker_0.view.brokers[0])

    asyncio.run(scenario())


def test_a_loss_is_forgotten_before_the_controller_has_seen_it(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0 = await lab.broker(0)
            broker_1 = await lab.broker(1, lost_tail=True)
            await broker_0.metadata.catch_up()
            assert broker_0.view.brokers[1].lost_tail
            assert broker_0.view.joinable_epoch(1) is None
            await lab.kill(broker_1)
            back = await lab.broker(1)
            assert back.view.brokers[1].lost_tail
            await back.metadata.begin_leaving()
            assert (back.view.brokers[1].lost_tail, back.view.brokers[1].is_leaving) == (True, True)
            condition = znodes.format_condition(BrokerCondition(lost_tail=False, is_leaving=False))
            await lab.admin.commit([SetData(znodes.registration_path(1), condition, -1)])
            await lab.kill(back)
            assert not (await lab.broker(1)).view.brokers[1].lost_tail

    asyncio.run(scenario())


def test_a_broker_does_not_come_back_after_its_session_has_expired(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)
            await broker_0.metadata.create_topics([topic("a", (1, 0)), topic("gone", (0, 1))])
            await broker_1.metadata.catch_up()
            epoch = broker_1.metadata.broker_epoch
            await halt(broker_1)
            await broker_0.metadata.delete_topic("gone", broker_0.id("gone").topic_id)
            await broker_0.metadata.create_topics([topic("b", (0, 1))])
            await lab.admin.commit([Delete(znodes.change_path(number)) for number in broker_0.metadata.entry_numbers])
            await expire(broker_1.session)
            assert not broker_1.metadata.can_lead()
            assert broker_1.metadata.broker_epoch == -1
            with pytest.raises(SessionEndedError):
                await broker_1.metadata.change_state(broker_1.id("a"), broker_1.state("a").with_isr((1,)))
            await lab.until(lambda: 1 not in broker_0.view.brokers)
            resume(broker_1)
            await lab.until(lambda: broker_1.metadata.can_lead() and set(broker_1.view.topics) == {"a", "b"})
            assert broker_1.metadata.broker_epoch > epoch
            await lab.until(lambda: broker_0.view.brokers.get(1) == broker_1.view.brokers[1])
            assert [old.topics.keys() - new.topics.keys() for old, new in broker_1.changes].count({"gone"}) == 1

    asyncio.run(scenario())


def test_a_change_fails_because_the_session_has_just_expired(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, _ = await lab.start(2)
            expiry = asyncio.create_task(expire(broker_0.session))
            for number in range(20):
                assert await broker_0.metadata.create_topics([topic(f"t{number}", (0, 1))]) == [None]
            await expiry
            await lab.until(broker_0.metadata.can_lead)
            assert await broker_0.metadata.create_topics([topic("last", (0, 1))]) == [None]
            assert len((await lab.until_equal()).topics) == 21

    asyncio.run(scenario())


def test_a_lost_connection_costs_the_registration(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker_0, broker_1 = await lab.start(2)
            epoch = broker_1.metadata.broker_epoch
            for number in range(5):
                assert broker_1.session._announced is not None
                broker_1.session._announced.drop_connection("a test")
                await broker_0.metadata.create_topics([topic(f"t{number}", (1, 0))])
                await lab.until(lambda number=number: f"t{number}" in broker_1.view.topics)  # type: ignore[misc]
            assert broker_1.metadata.broker_epoch == epoch

    asyncio.run(scenario())


def test_an_emptied_zookeeper_deletes_all_topics(zookeeper_address: str) -> None:
    async def scenario() -> None:
        async with ClusterLab(zookeeper_address) as lab:
            broker = await lab.broker(0)
            await broker.metadata.create_topics([topic("a", (0,))])
            await lab.admin.commit([Delete(znodes.CLUSTER_ID), Delete(znodes.topic_path("a"))])
            await expire(broker.session)
            await asyncio.sleep(0.5)
            assert set(broker.view.topics) == {"a"}
            assert not broker.metadata.can_lead()
            content = znodes.format_cluster_id(broker.view.cluster_id)
            await lab.admin.commit([Create(znodes.CLUSTER_ID, content)])
            await lab.until(broker.metadata.can_lead)

    asyncio.run(scenario())
