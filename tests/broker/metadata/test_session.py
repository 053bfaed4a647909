"""A session with a real ZooKeeper, over a link that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from stratalog.broker.metadata.session import SessionEvent, ZooKeeperSession, parse_connect
from stratalog.broker.metadata.zookeeper_errors import (
    ConflictError,
    MissingZnodeError,
    OutcomeUnknownError,
    SessionEndedError,
    TooLargeError,
    ZooKeeperError,
    ZooKeeperUnreachableError,
)
from stratalog.broker.metadata.zookeeper_requests import (
    MAX_TRANSACTION_BYTES,
    OPERATION_OVERHEAD,
    Check,
    Create,
    Delete,
    Operation,
    SetData,
    transaction_size,
)
from stratalog.clock import BootClock, Clock, ManualClock
from stratalog.errors import ConfigError
from stratalog.lab.link import Link
from stratalog.lab.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

SHORT_MS = 1000  # for sessions that must expire
LONG_MS = 60_000  # for sessions that must not


@pytest.fixture
def link(zookeeper: ZooKeeperServer) -> Iterator[Link]:
    with Link(zookeeper.address) as link:
        yield link


class EventLog:
    """The events of a session, for tests that wait for them."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        session.on_session(self._events.put_nowait)

    async def next(self) -> SessionEvent:
        return await self._events.get()

    @property
    def is_empty(self) -> bool:
        return self._events.empty()


def unstarted(connect: str, timeout_ms: int = LONG_MS, clock: Clock | None = None) -> ZooKeeperSession:
    return ZooKeeperSession(
        connect, session_timeout_ms=timeout_ms, connection_timeout_ms=30_000, clock=clock or BootClock()
    )


@contextlib.asynccontextmanager
async def started(
    connect: str, timeout_ms: int = LONG_MS, clock: Clock | None = None
) -> AsyncIterator[ZooKeeperSession]:
    session = unstarted(connect, timeout_ms, clock)
    await session.start()
    try:
        yield session
    finally:
        await session.close()


async def is_gone(observer: ZooKeeperSession, path: str) -> None:
    """Wait until a znode does not exist."""
    while True:
        changed = asyncio.Event()
        if await observer.watch(path, changed.set) is None:
            return
        await changed.wait()


async def exists(observer: ZooKeeperSession, path: str) -> None:
    """Wait until a znode exists."""
    while True:
        changed = asyncio.Event()
        if await observer.watch(path, changed.set) is not None:
            return
        await changed.wait()


def with_session(test: Callable[[ZooKeeperSession], Awaitable[None]], zookeeper: ZooKeeperServer, root: str) -> None:
    async def run() -> None:
        async with started(zookeeper.address + root) as session:
            await test(session)

    asyncio.run(run())


# Reads and transactions


def test_transaction_happens_completely(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test(session: ZooKeeperSession) -> None:
        assert await session.get("/a") is None
        created = await session.commit([Create("/a", b"1"), Create("/a/b", ephemeral=True), Check("/a", 0)])
        assert created == ["/a", "/a/b", None]
        assert await session.commit([SetData("/a", b"2", 0), Delete("/a/b"), SetData("/a", b"3", -1)]) == [None] * 3
        a = await session.get("/a")
        assert a is not None
        assert (a.data, a.version, a.owner) == (b"3", 2, 0)
        assert await session.get("/a/b") is None

    with_session(test, zookeeper, zookeeper_root)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (Create("/there"), "exists"),
        (Create("/missing/child"), "missing"),
        (SetData("/missing", b"", -1), "missing"),
        (SetData("/there", b"", 7), "version"),
        (Check("/there", 1), "version"),
        (Check("/missing", 0), "missing"),
        (Delete("/missing"), "missing"),
        (Delete("/there", 3), "version"),
        (Delete("/there"), "children"),
    ],
)
def test_conflict_names_the_operation_and_nothing_happens(
    zookeeper: ZooKeeperServer, zookeeper_root: str, refused: Operation, reason: str
) -> None:
    async def test(session: ZooKeeperSession) -> None:
        await session.commit([Create("/there"), Create("/there/child")])
        with pytest.raises(
            ConflictError, match=f"operation 2 of a ZooKeeper transaction, on {refused.path}, "
        ) as raised:
            await session.commit([Create("/a"), Create("/b"), refused, Create("/c")])
        assert (raised.value.index, raised.value.reason, raised.value.path) == (2, reason, refused.path)
        assert await session.get_all(["/a", "/b", "/c"]) == [None, None, None]

    with_session(test, zookeeper, zookeeper_root)


def test_ephemeral_znode_names_its_session(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test(session: ZooKeeperSession) -> None:
        await session.commit([Create("/mine", ephemeral=True)])
        first = await session.get("/mine")
        assert first is not None
        assert first.owner == session.session_id != 0
        await session.commit([Delete("/mine"), Create("/mine", ephemeral=True)])
        second = await session.get("/mine")
        assert second is not None
        assert second.created > first.created

    with_session(test, zookeeper, zookeeper_root)


def test_sequential_znodes_are_numbered_in_order(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test(session: ZooKeeperSession) -> None:
        await session.ensure("/changes")
        entry = Create("/changes/c-", b"x", sequential=True)
        assert await session.commit([entry, entry]) == ["/changes/c-0000000000", "/changes/c-0000000001"]
        await session.commit([Delete("/changes/c-0000000000")])
        with pytest.raises(ConflictError):
            await session.commit([entry, Check("/changes", 9)])
        assert await session.commit([entry]) == ["/changes/c-0000000002"]
        assert sorted(await session.children("/changes")) == ["c-0000000001", "c-0000000002"]

    with_session(test, zookeeper, zookeeper_root)


def test_many_requests_are_answered_in_order(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test(session: ZooKeeperSession) -> None:
        paths = [f"/n{number}" for number in range(1500)]
        await session.commit([Create(path, path.encode()) for path in paths])
        znodes = await session.get_all([*paths, "/missing"])
        assert [znode.data.decode() for znode in znodes if znode is not None] == paths
        assert znodes[-1] is None
        assert len(await session.children("/")) == 1500

    with_session(test, zookeeper, zookeeper_root)


def test_ensure_creates_parents_and_accepts_existing_ones(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test(session: ZooKeeperSession) -> None:
        await session.ensure("/a/b/c")
        await session.ensure("/a/b/d")
        assert sorted(await session.children("/a/b")) == ["c", "d"]

    with_session(test, zookeeper, zookeeper_root)


def test_children_of_a_missing_znode_are_an_error(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test(session: ZooKeeperSession) -> None:
        with pytest.raises(MissingZnodeError):
            await session.children("/missing", lambda: None)

    with_session(test, zookeeper, zookeeper_root)


def test_transaction_at_the_limit_is_accepted_and_one_above_is_not_sent(
    zookeeper: ZooKeeperServer, zookeeper_root: str
) -> None:
    async def test(session: ZooKeeperSession) -> None:
        rest = OPERATION_OVERHEAD + len(zookeeper_root) + len("/big")
        await session.commit([Create("/big", b"x" * (MAX_TRANSACTION_BYTES - rest))])
        with pytest.raises(TooLargeError, match="has 1000001 bytes; the limit is 1000000; use several transactions"):
            await session.commit([Create("/big", b"x" * (MAX_TRANSACTION_BYTES - rest + 1))])
        checks: list[Operation] = [Check("/big", 0)]
        checks *= MAX_TRANSACTION_BYTES // transaction_size(checks, zookeeper_root)
        assert await session.commit(checks) == [None] * len(checks)

    with_session(test, zookeeper, zookeeper_root)


# Watches


def test_watch_fires_once_for_creation_change_and_deletion(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test(session: ZooKeeperSession) -> None:
        changes: tuple[list[Operation], ...] = (
            [Create("/w")],
            [SetData("/w", b"1", -1), SetData("/w", b"2", -1)],
            [Delete("/w")],
        )
        for operations in changes:
            fired: asyncio.Queue[None] = asyncio.Queue()
            await session.watch("/w", lambda fired=fired: fired.put_nowait(None))  # type: ignore[misc]
            await session.commit(operations)
            await fired.get()
            await session.sync()
            assert fired.empty()

    with_session(test, zookeeper, zookeeper_root)


def test_watch_of_children_fires_for_a_new_child(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test(session: ZooKeeperSession) -> None:
        changed = asyncio.Event()
        assert await session.children("/", changed.set) == []
        await session.commit([Create("/child")])
        await changed.wait()
        assert await session.children("/") == ["child"]

    with_session(test, zookeeper, zookeeper_root)


def test_failing_callback_does_not_stop_the_session(
    zookeeper: ZooKeeperServer, zookeeper_root: str, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: SessionEvent) -> None:
        raise ValueError("a callback that fails")

    async def test() -> None:
        async with started(link.address + zookeeper_root) as session:
            session.on_session(fail)
            events = EventLog(session)
            link.reset()
            assert await events.next() is SessionEvent.RECONNECTED
            await session.sync()

    asyncio.run(test())
    assert "a callback of the ZooKeeper session failed" in caplog.text


# Lost connections


def test_session_survives_a_lost_connection(zookeeper: ZooKeeperServer, zookeeper_root: str, link: Link) -> None:
    async def test() -> None:
        async with started(link.address + zookeeper_root) as session:
            events = EventLog(session)
            session_id = session.session_id
            await session.commit([Create("/mine", ephemeral=True)])
            order: list[str] = []
            session.on_session(lambda event: order.append(event.value))
            fired = asyncio.Event()

            def on_change() -> None:
                order.append("watch")
                fired.set()

            await session.watch("/mine", on_change)
            link.reset()
            assert await events.next() is SessionEvent.RECONNECTED
            await fired.wait()
            assert order == ["reconnected", "watch"]
            assert session.session_id == session_id
            assert session.is_leased()
            mine = await session.get("/mine")
            assert mine is not None
            assert mine.owner == session_id

    asyncio.run(test())


def test_reads_wait_for_the_next_connection(zookeeper: ZooKeeperServer, zookeeper_root: str, link: Link) -> None:
    async def test() -> None:
        async with started(link.address + zookeeper_root) as session:
            await session.commit([Create("/a", b"1")])
            link.cut()
            read = asyncio.ensure_future(session.get_all(["/a"] * 300))
            await asyncio.sleep(0)
            link.reset()
            link.restore()
            assert [znode.data for znode in await read if znode is not None] == [b"1"] * 300

    asyncio.run(test())


def test_silent_connection_is_left_for_another_server(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    """Requests that are sent all the time keep kazoo from noticing it."""

    async def test(first: Link, second: Link) -> None:
        async with started(f"{first.address},{second.address}{zookeeper_root}", 3000) as session:
            events = EventLog(session)
            session_id = session.session_id
            reads = [asyncio.ensure_future(session.get("/")) for _ in range(10)]
            (first if first.connection_count else second).cut()
            reads += [asyncio.ensure_future(session.get("/")) for _ in range(300)]
            assert await events.next() is SessionEvent.RECONNECTED
            assert session.session_id == session_id
            await asyncio.gather(*reads)

    with Link(zookeeper.address) as first, Link(zookeeper.address) as second:
        asyncio.run(test(first, second))


@pytest.mark.parametrize("is_delivered", [True, False])
def test_transaction_without_response_has_happened_or_not(
    zookeeper: ZooKeeperServer, zookeeper_root: str, link: Link, is_delivered: bool
) -> None:
    async def test() -> None:
        async with (
            started(zookeeper.address + zookeeper_root) as observer,
            started(link.address + zookeeper_root) as session,
        ):
            link.cut(requests=not is_delivered)
            commit = asyncio.ensure_future(session.commit([Create("/perhaps")]))
            if is_delivered:
                await exists(observer, "/perhaps")
            else:
                await asyncio.sleep(0)
            link.reset()
            link.restore()
            with pytest.raises(OutcomeUnknownError, match="the first on /perhaps; read again"):
                await commit
            assert (await session.get("/perhaps") is not None) == is_delivered

    asyncio.run(test())


def test_requests_are_given_up_while_zookeeper_is_unreachable(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test(link: Link) -> None:
        async with started(link.address + zookeeper_root, SHORT_MS) as session:
            lost = asyncio.Event()
            await session.watch("/", lost.set)
            link.cut()
            results = await asyncio.gather(
                *[session.get("/") for _ in range(200)], session.sync(), return_exceptions=True
            )
            assert {type(result) for result in results} == {ZooKeeperUnreachableError}
            with pytest.raises(ZooKeeperUnreachableError, match=f"{link.address} could not be reached for 1000 ms"):
                await session.commit([Create("/a")])
            assert not session.is_leased()
            assert not lost.is_set()

    with Link(zookeeper.address) as link:
        asyncio.run(test(link))


# Sessions that end


def test_expired_session_is_replaced(zookeeper: ZooKeeperServer, zookeeper_root: str, link: Link) -> None:
    async def test() -> None:
        async with (
            started(zookeeper.address + zookeeper_root) as observer,
            started(link.address + zookeeper_root, SHORT_MS) as session,
        ):
            events = EventLog(session)
            in_gap: list[asyncio.Task[object]] = []

            def on_session(event: SessionEvent) -> None:
                if event is SessionEvent.EXPIRED:
                    assert not session.is_leased()
                    assert session.session_id == 0
                    in_gap.append(asyncio.ensure_future(session.commit([Create("/gap")])))
                    in_gap.append(asyncio.ensure_future(session.get("/")))

            session.on_session(on_session)
            first_id = session.session_id
            await session.commit([Create("/mine", ephemeral=True)])
            watched: list[str] = []
            await session.watch("/mine", lambda: watched.append("fired"))
            link.cut()
            await is_gone(observer, "/mine")
            assert not session.is_leased()
            link.restore()
            assert await events.next() is SessionEvent.EXPIRED
            assert await events.next() is SessionEvent.RENEWED
            assert session.is_leased()
            assert session.session_id not in (0, first_id)
            assert [type(error) for error in await asyncio.gather(*in_gap, return_exceptions=True)] == (
                [SessionEndedError] * 2
            )
            await session.commit([Create("/mine", ephemeral=True)])
            mine = await session.get("/mine")
            assert mine is not None
            assert mine.owner == session.session_id
            assert watched == []
            assert events.is_empty

    asyncio.run(test())


def test_transaction_of_an_expired_session_never_happens_in_the_next_one(
    zookeeper: ZooKeeperServer, zookeeper_root: str, link: Link
) -> None:
    async def test() -> None:
        async with (
            started(zookeeper.address + zookeeper_root) as observer,
            started(link.address + zookeeper_root, SHORT_MS) as session,
        ):
            events = EventLog(session)
            await session.commit([Create("/mine", ephemeral=True)])
            link.cut()
            await is_gone(observer, "/mine")
            commit = asyncio.ensure_future(session.commit([Create("/late")]))
            link.restore()
            with pytest.raises((SessionEndedError, OutcomeUnknownError)):
                await commit
            assert await events.next() is SessionEvent.EXPIRED
            assert await events.next() is SessionEvent.RENEWED
            await session.sync()
            assert await session.get("/late") is None

    asyncio.run(test())


def test_unexpected_error_makes_a_new_session(
    zookeeper: ZooKeeperServer, zookeeper_root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> bool:
        monkeypatch.undo()
        raise ValueError("an error of ours")

    async def test() -> None:
        async with started(zookeeper.address + zookeeper_root, SHORT_MS) as session:
            events = EventLog(session)
            monkeypatch.setattr(ZooKeeperSession, "_has_succeeded", fail)
            assert await events.next() is SessionEvent.EXPIRED
            assert await events.next() is SessionEvent.RENEWED
            assert await session.get("/") is not None

    asyncio.run(test())
    assert "an error of ours" in caplog.text


def test_closed_session_loses_its_ephemeral_znodes_at_once(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test() -> None:
        threads = set(threading.enumerate())
        files = len(os.listdir("/proc/self/fd"))
        async with started(zookeeper.address + zookeeper_root) as observer:
            session = unstarted(zookeeper.address + zookeeper_root)
            await session.start()
            await session.commit([Create("/mine", ephemeral=True)])
            await session.close()
            await is_gone(observer, "/mine")
            assert not session.is_leased()
            with pytest.raises(SessionEndedError):
                await session.get("/mine")
            await session.close()
        assert set(threading.enumerate()) == threads
        assert len(os.listdir("/proc/self/fd")) == files

    asyncio.run(test())


def test_cancelled_start_leaves_no_thread(zookeeper: ZooKeeperServer, zookeeper_root: str, link: Link) -> None:
    async def test() -> None:
        threads = set(threading.enumerate())
        link.cut()
        session = unstarted(link.address + zookeeper_root, SHORT_MS)
        start = asyncio.ensure_future(session.start())
        while len(threading.enumerate()) == len(threads):
            await asyncio.sleep(0)
        start.cancel()
        await asyncio.wait([start])
        assert start.cancelled()
        assert set(threading.enumerate()) == threads

    asyncio.run(test())


def test_close_does_not_wait_for_a_zookeeper_that_is_stuck(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test() -> None:
        threads = set(threading.enumerate())
        session = unstarted(zookeeper.address + zookeeper_root, SHORT_MS)
        await session.start()
        read = asyncio.ensure_future(session.get("/"))
        zookeeper.pause()
        try:
            read = asyncio.ensure_future(session.get("/"))
            await asyncio.sleep(0)
            await session.close()
            with pytest.raises(SessionEndedError):
                await read
        finally:
            zookeeper.resume()
        assert set(threading.enumerate()) == threads

    asyncio.run(test())


def test_session_survives_a_kill_of_zookeeper(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test() -> None:
        async with started(zookeeper.address + zookeeper_root) as session:
            events = EventLog(session)
            session_id = session.session_id
            await session.commit([Create("/kept", b"1"), Create("/mine", ephemeral=True)])
            await asyncio.to_thread(zookeeper.kill)
            # Not in a thread: the server dies with the thread that starts it.
            zookeeper.start()
            assert await events.next() is SessionEvent.RECONNECTED
            assert session.session_id == session_id
            assert None not in await session.get_all(["/kept", "/mine"])

    asyncio.run(test())


# The lease


def test_lease_ends_by_the_clock_and_only_a_sync_renews_it(
    zookeeper: ZooKeeperServer, zookeeper_root: str, link: Link
) -> None:
    async def test() -> None:
        clock = ManualClock()
        async with started(link.address + zookeeper_root, 6000, clock) as session:
            assert session.timeout_ms == 6000
            link.cut()
            assert session.is_leased()
            clock.advance(3999)
            assert session.is_leased()
            clock.advance(1)
            assert not session.is_leased()
            link.restore()
            while not session.is_leased():
                await session.get("/")

    asyncio.run(test())


def test_boot_clock_goes_on_while_the_machine_is_suspended() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= BootClock().monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)


PAUSED_BROKER = """
import asyncio, sys
from stratalog.broker.metadata.session import ZooKeeperSession
from stratalog.broker.metadata.zookeeper_requests import Create
from stratalog.clock import BootClock

async def main():
    session = ZooKeeperSession(sys.argv[1], session_timeout_ms=1000, connection_timeout_ms=30000, clock=BootClock())
    await session.start()
    await session.commit([Create("/mine", ephemeral=True)])
    print(session.is_leased(), flush=True)
    sys.stdin.readline()  # the event loop waits here
    print(session.is_leased(), flush=True)

asyncio.run(main())
"""


def test_process_that_was_stopped_has_no_lease_when_it_goes_on(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test() -> None:
        async with started(zookeeper.address + zookeeper_root) as observer:
            child = subprocess.Popen(
                [sys.executable, "-c", PAUSED_BROKER, zookeeper.address + zookeeper_root],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            with child:
                assert child.stdin is not None
                assert child.stdout is not None
                try:
                    assert child.stdout.readline() == b"True\n"
                    child.send_signal(signal.SIGSTOP)
                    await is_gone(observer, "/mine")
                    child.stdin.write(b"\n")
                    child.stdin.flush()
                    child.send_signal(signal.SIGCONT)
                    assert child.stdout.readline() == b"False\n"
                finally:
                    child.kill()

    asyncio.run(test())


# Starting


def test_address_without_zookeeper_is_named() -> None:
    async def test() -> None:
        threads = set(threading.enumerate())
        session = ZooKeeperSession(
            "127.0.0.1:1,127.0.0.1:2/root", session_timeout_ms=LONG_MS, connection_timeout_ms=50, clock=BootClock()
        )
        with pytest.raises(
            ZooKeeperUnreachableError, match=r"ZooKeeper at 127\.0\.0\.1:1,127\.0\.0\.1:2 did not respond"
        ):
            await session.start()
        assert not session.is_leased()
        assert set(threading.enumerate()) == threads

    asyncio.run(test())


def test_server_of_another_protocol_is_refused() -> None:
    async def test() -> None:
        async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\0\0\0\4junk")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        session = ZooKeeperSession(
            f"127.0.0.1:{port}", session_timeout_ms=SHORT_MS, connection_timeout_ms=200, clock=BootClock()
        )
        with pytest.raises(ZooKeeperUnreachableError):
            await session.start()
        server.close()

    asyncio.run(test())


def test_root_is_created_with_its_parents(zookeeper: ZooKeeperServer, zookeeper_root: str) -> None:
    async def test(session: ZooKeeperSession) -> None:
        async with started(f"{zookeeper.address}{zookeeper_root}/a/b/") as deeper:
            await deeper.commit([Create("/c", b"deep")])
        znode = await session.get("/a/b/c")
        assert znode is not None
        assert znode.data == b"deep"

    with_session(test, zookeeper, zookeeper_root)


@pytest.mark.parametrize(
    ("connect", "parsed"),
    [
        ("h:1", ("h:1", "")),
        ("h:1/", ("h:1", "")),
        (" h:1, i:2/a/b ", ("h:1,i:2", "/a/b")),
    ],
)
def test_connect_string_is_parsed(connect: str, parsed: tuple[str, str]) -> None:
    assert parse_connect(connect) == parsed


@pytest.mark.parametrize("connect", ["", "/a", "h:1,,i:2", "h:1/a//b", "h:1/../a"])
def test_connect_string_that_is_not_valid_is_refused(connect: str) -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.connect="):
        parse_connect(connect)


def test_missing_kazoo_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "stratalog.broker.metadata.kazoo_session", raising=False)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(ZooKeeperError, match=r"pip install 'stratalog\[cluster\]'"):
        asyncio.run(unstarted("127.0.0.1:1").start())


def test_kazoo_is_not_loaded_before_a_session_starts() -> None:
    code = (
        "import sys, stratalog.broker.broker, stratalog.broker.metadata.session; "
        "sys.exit(any(name.partition('.')[0] == 'kazoo' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_kazoo_reports_nothing_that_is_expected(
    zookeeper: ZooKeeperServer, zookeeper_root: str, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with started(link.address + zookeeper_root) as session:
            events = EventLog(session)
            link.reset()
            await events.next()

    asyncio.run(test())
    assert not [record for record in caplog.records if record.name.startswith("kazoo")]
    lost = [record for record in caplog.records if "lost the connection to ZooKeeper" in record.message]
    assert len(lost) == 1


# An ensemble


@pytest.mark.slow
def test_session_moves_to_another_server_when_the_leader_is_killed_or_paused(tmp_path: Path) -> None:
    async def test(ensemble: ZooKeeperEnsemble) -> None:
        async with started(ensemble.address, 10_000) as session:
            session_id = session.session_id
            await session.commit([Create("/mine", ephemeral=True)])
            for fault in (ZooKeeperServer.kill, ZooKeeperServer.pause):
                leader = ensemble.leader()
                fault(leader)
                number = 0
                while number < 200:
                    try:
                        await session.commit([Create(f"/{fault.__name__}-{number}")])
                    except (OutcomeUnknownError, ZooKeeperUnreachableError):
                        pass
                    except ConflictError as error:
                        assert error.reason == "exists"  # it had happened
                    number = len([name for name in await session.children("/") if name.startswith(fault.__name__)])
                if leader.is_paused:
                    leader.resume()
                else:
                    leader.start()
                leader.wait_until_serving()
            assert session.session_id == session_id
            assert await session.get("/mine") is not None

    with ZooKeeperEnsemble(tmp_path) as ensemble:
        asyncio.run(test(ensemble))
