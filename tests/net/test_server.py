"""The listener's limits: idle connections, their number, file descriptors that run out, and an orderly stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable

import pytest

from stratalog.net import server as server_module
from stratalog.net.response_queue import Part, Response
from stratalog.net.server import Server
from tests.net.harness import Client, frame, limits, run, serving, settle, until

PAYLOAD = b"some bytes"


def test_silent_connection_is_closed() -> None:
    async def scenario() -> None:
        async with serving(limited_by=limits(idle_seconds=0.1)) as (server, port):
            silent, halfway = await Client.connect(port), await Client.connect(port)
            await halfway.send(frame(PAYLOAD)[:-1])
            assert await silent.is_closed()
            assert await halfway.is_closed()
            assert not server.connections
            silent.close()
            halfway.close()

    run(scenario)


def test_client_that_never_reads_is_closed_after_the_idle_time() -> None:
    async def scenario() -> None:
        answer: list[Part] = [frame(b"x" * 5_000_000)]
        async with serving(lambda *_: answer, limits(idle_seconds=0.2, send_buffer=20_000)) as (server, port):
            client = await Client.connect(port, receive_buffer=5_000)
            await client.send(frame(PAYLOAD))
            await until(lambda: len(server.connections) == 1)
            await until(lambda: not server.connections)
            assert server.memory.held == 0
            client.close()

    run(scenario)


def sweep_after(server: Server, seconds: float) -> None:
    """Look for idle connections as if `seconds` had passed."""
    for connection in server.connections:
        connection.last_active -= seconds
    assert server._sweep is not None
    server._sweep.cancel()
    server._sweep_idle()


def test_connection_in_use_is_not_idle() -> None:
    async def scenario() -> None:
        async with serving(limited_by=limits(idle_seconds=1000)) as (server, port):
            client = await Client.connect(port)
            for _ in range(3):
                assert await client.ask(PAYLOAD) == PAYLOAD
                sweep_after(server, 700)
            assert await client.ask(PAYLOAD) == PAYLOAD
            sweep_after(server, 1001)
            assert await client.is_closed()
            client.close()

    run(scenario)


def test_connection_that_waits_for_the_broker_is_not_idle() -> None:
    waiting: list[asyncio.Future[Response]] = []

    def serve(payload: memoryview, host: str) -> Awaitable[Response]:
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    async def scenario() -> None:
        async with serving(serve, limits(idle_seconds=1000)) as (server, port):
            client = await Client.connect(port)
            await client.send(frame(PAYLOAD))
            await until(lambda: len(waiting) == 1)
            sweep_after(server, 1001)
            waiting[0].set_result([frame(b"at last!")])
            assert await client.receive() == b"at last!"
            client.close()

    run(scenario)


@pytest.mark.parametrize("limit", ["connections", "connections_per_host"])
def test_connection_over_the_limit_is_refused_until_another_is_closed(limit: str) -> None:
    async def scenario() -> None:
        async with serving(limited_by=limits(**{limit: 2})) as (server, port):
            first, second = await Client.connect(port), await Client.connect(port)
            assert await first.ask(PAYLOAD) == await second.ask(PAYLOAD)
            third = await Client.connect(port)
            assert await third.is_closed()
            assert server.refused == 1
            first.close()
            await until(lambda: len(server.connections) == 1)
            fourth = await Client.connect(port)
            assert await fourth.ask(PAYLOAD) == PAYLOAD
            for client in (second, third, fourth):
                client.close()

    run(scenario)


def test_the_last_descriptors_are_not_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving() as (server, port):
            first = await Client.connect(port)
            assert await first.ask(PAYLOAD) == PAYLOAD
            monkeypatch.setattr(server_module, "_descriptors_for_clients", lambda: 3)
            second = await Client.connect(port)
            assert await second.is_closed()
            assert server.refused == 1
            assert await first.ask(PAYLOAD) == PAYLOAD
            first.close()
            second.close()

    run(scenario)


def test_server_without_a_free_descriptor_waits_and_continues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_PAUSE_WITHOUT_DESCRIPTORS", 0.05)
    failures = [OSError(errno.EMFILE, "Too many open files")] * 2

    class Listener(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            if failures:
                raise failures.pop()
            return super().accept()

    async def scenario() -> None:
        monkeypatch.setattr(socket, "socket", Listener)
        async with serving() as (_, port):
            monkeypatch.undo()
            client = await Client.connect(port)
            assert await client.ask(PAYLOAD) == PAYLOAD
            client.close()

    run(scenario)
    assert not failures
    assert caplog.text.count("can't accept connections: [Errno 24] Too many open files") == 2


def test_stopping_server_responds_to_requests_in_flight() -> None:
    answers: list[asyncio.Future[Response]] = []

    def serve(payload: memoryview, host: str) -> Awaitable[Response]:
        answers.append(asyncio.get_running_loop().create_future())
        return answers[-1]

    async def scenario() -> None:
        async with serving(serve) as (server, port):
            idle, asking = await Client.connect(port), await Client.connect(port)
            await asking.send(frame(PAYLOAD))
            await until(lambda: len(answers) == 1)
            closing = asyncio.create_task(server.close(10))
            await until(lambda: not server._listeners)
            await settle(server)
            assert not closing.done()
            with pytest.raises(ConnectionRefusedError):
                await Client.connect(port)
            answers[0].set_result([frame(b"answered")])
            assert await asking.receive() == b"answered"
            await closing
            assert await idle.is_closed()
            assert not server.connections
            idle.close()
            asking.close()

    run(scenario)


def test_stopping_server_cancels_a_request_after_the_grace_time() -> None:
    answers: list[asyncio.Future[Response]] = []

    def serve(payload: memoryview, host: str) -> Awaitable[Response]:
        answers.append(asyncio.get_running_loop().create_future())
        return answers[-1]

    async def scenario() -> None:
        async with serving(serve) as (server, port):
            client = await Client.connect(port)
            await client.send(frame(PAYLOAD))
            await until(lambda: len(answers) == 1)
            await server.close(0.05)
            assert answers[0].cancelled()
            assert await client.is_closed()
            client.close()

    run(scenario)


def test_thousand_closed_connections_leave_no_state() -> None:
    async def scenario() -> None:
        async with serving() as (server, port):
            for _ in range(5):
                clients = [await Client.connect(port) for _ in range(200)]
                for client in clients:
                    await client.send(frame(PAYLOAD) + b"\0\0\0\x10half")
                for client in clients:
                    assert await client.receive() == PAYLOAD
                for client in clients:
                    client.close()
                await until(lambda: not server.connections)
            await settle(server)
            assert server.accepted == 1000
            assert server.memory.held == 0
            assert not server._per_host
            assert not server.memory._holders and not server.memory._waiting and not server.memory._senders

    run(scenario)


def test_connection_that_ends_within_a_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with serving() as (server, port):
            client = await Client.connect(port)
            await client.send(frame(b"x" * 10_000)[:6000])
            await settle(server)
            client.close()
            await until(lambda: not server.connections)
            quiet = await Client.connect(port)
            assert await quiet.ask(PAYLOAD) == PAYLOAD
            quiet.close()
            await until(lambda: not server.connections)

    run(scenario)
    assert [record.message for record in caplog.records] == [
        "connection from 127.0.0.1 closed: in the middle of a request"
    ]


def test_many_misbehaving_clients_do_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(server_module, "_LOGGED_PER_SECOND", 0)

    async def scenario() -> None:
        async with serving() as (server, port):
            for _ in range(300):
                client = await Client.connect(port)
                await client.send(b"\0\0\0\0")
                assert await client.is_closed()
                client.close()
            assert len(caplog.messages) == 100
            monkeypatch.undo()
            server._logged_at = 0.0
            client = await Client.connect(port)
            await client.send(b"\0\0\0\0")
            assert await client.is_closed()
            client.close()

    run(scenario)
    assert caplog.messages[100:] == [
        "200 lines about connections were left out of the log",
        "connection from 127.0.0.1 closed: its frame of 0 bytes is outside the allowed range "
        "(socket.request.max.bytes and other limits)",
    ]
