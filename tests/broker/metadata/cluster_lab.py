"""Several brokers' metadata in one event loop, on a real ZooKeeper. Each lab has a chroot of its own."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

import pytest
from kazoo.client import KazooClient

from stratalog.broker.controller.controller import Controller
from stratalog.broker.metadata.cluster_metadata import ClusterMetadata, PlannedTopic, Registration
from stratalog.broker.metadata.cluster_view import ClusterView, PartitionId
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.session import ZooKeeperSession
from stratalog.broker.metadata.zookeeper_errors import OutcomeUnknownError
from stratalog.broker.metadata.zookeeper_requests import Operation, Znode
from stratalog.clock import BootClock
from stratalog.lab.zookeeper import ZooKeeperServer

_chroots = itertools.count()
_WAIT_SECONDS = 20.0


@pytest.fixture(scope="session")
def zookeeper_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server.address


class LabBroker:
    """A broker's session, metadata and controller."""

    def __init__(self, session: ZooKeeperSession, metadata: ClusterMetadata, controller: Controller) -> None:
        self.session = session
        self.metadata = metadata
        self.controller = controller
        self.changes: list[tuple[ClusterView, ClusterView]] = []
        metadata.on_change(lambda old, new: self.changes.append((old, new)))

    @property
    def view(self) -> ClusterView:
        return self.metadata.view

    def state(self, topic: str, partition: int = 0) -> PartitionState:
        state = self.view.state(topic, partition)
        assert state is not None
        return state

    def id(self, topic: str, partition: int = 0) -> PartitionId:
        return PartitionId(self.view.topics[topic].id, partition)


class ClusterLab:
    """Use it as an async context manager."""

    def __init__(self, zookeeper: str) -> None:
        self.connect = f"{zookeeper}/lab-{next(_chroots)}"
        self.brokers: list[LabBroker] = []
        self._sessions: list[ZooKeeperSession] = []
        self.admin: ZooKeeperSession

    async def __aenter__(self) -> Self:
        self.admin = await self.session()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for broker in self.brokers:
            await broker.controller.stop()
            await broker.metadata.leave()
        await asyncio.gather(*(session.close() for session in self._sessions))

    async def session(self, connect: str | None = None, timeout_ms: int = 10_000) -> ZooKeeperSession:
        session = ZooKeeperSession(
            connect or self.connect, session_timeout_ms=timeout_ms, connection_timeout_ms=20_000, clock=BootClock()
        )
        await session.start()
        self._sessions.append(session)
        return session

    async def broker(
        self,
        node_id: int,
        *,
        lost_tail: bool = False,
        cluster_id: str | None = None,
        controls: bool = False,
        session: ZooKeeperSession | None = None,
        unclean: Callable[[str], bool] = lambda _: False,
    ) -> LabBroker:
        session = session or await self.session()
        registration = Registration(node_id, "127.0.0.1", 9000 + node_id, None, lost_tail)
        metadata = await ClusterMetadata.join(session, registration, cluster_id=cluster_id)
        broker = LabBroker(session, metadata, Controller(metadata, session, unclean=unclean))
        self.brokers.append(broker)
        if controls:
            broker.controller.start()
        return broker

    async def start(self, count: int, *, controls: bool = False) -> list[LabBroker]:
        """Start brokers 0 to `count` - 1, and wait until each sees all others."""
        brokers = [await self.broker(node_id, controls=controls) for node_id in range(count)]
        await self.until(lambda: all(len(broker.view.brokers) == count for broker in brokers))
        return brokers

    async def kill(self, broker: LabBroker) -> None:
        """End a broker without a word; its session ends at once."""
        self.brokers.remove(broker)
        await halt(broker)
        await broker.session.close()
        self._sessions.remove(broker.session)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds in the views."""
        async with asyncio.timeout(_WAIT_SECONDS):
            while not holds():
                await asyncio.sleep(0.005)

    async def until_equal(self) -> ClusterView:
        """Wait until all views are the same, and return it."""
        for broker in self.brokers:
            await broker.metadata.catch_up()
        first, *others = self.brokers
        await self.until(lambda: all(other.view == first.view for other in others))
        return first.view


async def halt(broker: LabBroker) -> None:
    """Stop a broker's tasks, as SIGSTOP does: its session stays, and it learns nothing any more."""
    for task in (broker.controller._task, broker.metadata._follower._task):
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def resume(broker: LabBroker) -> None:
    """Let a broker's metadata go on after halt()."""
    follower = broker.metadata._follower
    follower._task = asyncio.create_task(follower._follow())


async def expire(session: ZooKeeperSession) -> None:
    """End a session as ZooKeeper does when it has not heard of it: another client takes it over, and closes it."""
    old = session.session_id
    assert session._announced is not None
    client = KazooClient(session.hosts, client_id=session._announced._client.client_id)
    await asyncio.to_thread(client.start)
    await asyncio.to_thread(client.stop)
    await asyncio.to_thread(client.close)
    async with asyncio.timeout(_WAIT_SECONDS):
        while session.session_id in (0, old):
            await asyncio.sleep(0.01)


def topic(name: str, *assignment: Sequence[int], min_insync: int = 1, **settings: str) -> PlannedTopic:
    return PlannedTopic(name, uuid.uuid4(), settings, assignment, min_insync)


class LostResponses:
    """Makes the responses to the next `count` transactions of a session get lost, though the transactions happen."""

    def __init__(self, session: ZooKeeperSession, count: int = 1) -> None:
        self._commit = session.commit
        self._left = count
        self.lost = 0
        session.commit = self  # type: ignore[method-assign]

    async def __call__(self, operations: Sequence[Operation]) -> list[str | None]:
        created = await self._commit(operations)
        if self.lost < self._left:
            self.lost += 1
            raise OutcomeUnknownError("the connection was lost")
        return created


class ReadPaths:
    """Records what a session reads."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.read: list[str] = []
        children, get, get_all, watch = session.children, session.get, session.get_all, session.watch

        async def recorded_children(path: str, on_change: Callable[[], None] | None = None) -> list[str]:
            self.read.append(f"children of {path}")
            return await children(path, on_change)

        async def recorded_get(path: str) -> Znode | None:
            self.read.append(path)
            return await get(path)

        async def recorded_get_all(paths: Sequence[str]) -> list[Znode | None]:
            session.get = get  # type: ignore[method-assign]
            self.read += paths
            return await get_all(paths)

        async def recorded_watch(path: str, on_change: Callable[[], None]) -> Znode | None:
            self.read.append(path)
            return await watch(path, on_change)

        session.children = recorded_children  # type: ignore[method-assign]
        session.get = recorded_get  # type: ignore[method-assign]
        session.get_all = recorded_get_all  # type: ignore[method-assign]
        session.watch = recorded_watch  # type: ignore[method-assign]
