"""Campaigns: sessions over links with random faults. No transaction is lost or happens twice, and a lease ends before
its session does."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from stratalog.broker.metadata.session import SessionEvent, ZooKeeperSession
from stratalog.broker.metadata.zookeeper_errors import (
    ConflictError,
    OutcomeUnknownError,
    SessionEndedError,
    ZooKeeperUnreachableError,
)
from stratalog.broker.metadata.zookeeper_requests import Create, SetData
from stratalog.clock import BootClock
from stratalog.lab.link import Link
from stratalog.lab.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

FAULTS = 25


class CountingBroker:
    """Counts in a znode of its own, and has an ephemeral znode while it has a session."""

    def __init__(self, name: str, session: ZooKeeperSession) -> None:
        self.name = name
        self.session = session
        self.acknowledged = 0
        self.unknown = 0
        self.is_registered = False
        session.on_session(self._on_session)

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            assert not self.session.is_leased()
            self.is_registered = False

    async def count(self) -> None:
        """Count until the task is cancelled."""
        while True:
            with contextlib.suppress(SessionEndedError, ZooKeeperUnreachableError, ConflictError):
                session_id = self.session.session_id
                if not self.is_registered:
                    await self._register()
                znode = await self.session.get(f"/counters/{self.name}")
                assert znode is not None
                try:
                    next_value = str(int(znode.data) + 1).encode()
                    await self.session.commit([SetData(f"/counters/{self.name}", next_value, znode.version)])
                except OutcomeUnknownError:
                    self.unknown += 1
                else:
                    assert self.session.session_id in (0, session_id)
                    self.acknowledged += 1
            await asyncio.sleep(0)

    async def _register(self) -> None:
        with contextlib.suppress(OutcomeUnknownError):
            await self.session.commit([Create(f"/live/{self.name}", ephemeral=True)])
        znode = await self.session.get(f"/live/{self.name}")
        self.is_registered = znode is not None and znode.owner == self.session.session_id

    async def check_lease(self, observer: ZooKeeperSession) -> None:
        """Compare the lease with ZooKeeper's opinion until the task is cancelled."""
        while True:
            with contextlib.suppress(OutcomeUnknownError, ZooKeeperUnreachableError, SessionEndedError):
                session_id, was_registered = self.session.session_id, self.is_registered
                await observer.sync()
                znode = await observer.get(f"/live/{self.name}")
                if was_registered and (znode is None or znode.owner != session_id):
                    # The session may have been replaced since, and the new one may be leased.
                    assert not self.session.is_leased() or self.session.session_id != session_id
            await asyncio.sleep(0.001)


async def run_campaign(
    servers: list[ZooKeeperServer], connect: str, observed: str, links: list[Link], seed: int
) -> None:
    choice = random.Random(seed)

    def session(hosts: str, timeout_ms: int) -> ZooKeeperSession:
        return ZooKeeperSession(hosts, session_timeout_ms=timeout_ms, connection_timeout_ms=60_000, clock=BootClock())

    observer = session(observed, 60_000)
    brokers = [CountingBroker(str(number), session(connect, 1000 + 500 * number)) for number in range(3)]
    await observer.start()
    await observer.ensure("/live")
    await observer.ensure("/counters")
    await observer.commit([Create(f"/counters/{broker.name}", b"0") for broker in brokers])
    for broker in brokers:
        await broker.session.start()
    tasks = [asyncio.ensure_future(broker.count()) for broker in brokers]
    tasks += [asyncio.ensure_future(broker.check_lease(observer)) for broker in brokers]
    try:
        for _ in range(FAULTS):
            link, server = choice.choice(links), choice.choice(servers)
            match choice.randrange(6):
                case 0:
                    link.reset()
                case 1:
                    link.cut()
                case 2:
                    link.cut(requests=False)
                case 3:
                    link.cut(responses=False)
                case 4:
                    server.pause()
                case 5:
                    server.kill()
            done, _ = await asyncio.wait(tasks, timeout=choice.choice([0.05, 0.3, 1.0, 2.5]))
            link.reset() if choice.random() < 0.5 else None
            link.restore()
            if server.is_paused:
                server.resume()
            elif not server.is_running:
                server.launch()
            done, _ = await asyncio.wait(tasks, timeout=choice.choice([0.0, 0.2, 1.0]))
            assert not done, [task.exception() for task in done]
        for server in servers:
            await asyncio.to_thread(server.wait_until_serving)
        before = [broker.acknowledged for broker in brokers]
        while any(broker.acknowledged == count for broker, count in zip(brokers, before, strict=True)):
            done, _ = await asyncio.wait(tasks, timeout=0.05)
            assert not done, [task.exception() for task in done]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for broker in brokers:
            await broker.session.close()
    for broker in brokers:
        znode = await observer.get(f"/counters/{broker.name}")
        assert znode is not None
        # A cancelled transaction at the end may have happened too.
        assert broker.acknowledged <= int(znode.data) <= broker.acknowledged + broker.unknown + 1
    await observer.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_faults_lose_no_transaction_with_one_server(zookeeper: ZooKeeperServer, zookeeper_root: str, seed: int) -> None:
    with Link(zookeeper.address) as link:
        connect = link.address + zookeeper_root
        asyncio.run(run_campaign([zookeeper], connect, zookeeper.address + zookeeper_root, [link], seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_faults_lose_no_transaction_with_an_ensemble(tmp_path: Path, seed: int) -> None:
    with ZooKeeperEnsemble(tmp_path) as ensemble, contextlib.ExitStack() as stack:
        links = [stack.enter_context(Link(server.address)) for server in ensemble.servers]
        connect = ",".join(link.address for link in links)
        asyncio.run(run_campaign(ensemble.servers, connect, ensemble.address, links, seed))
