"""The bytes that clients make a server hold are limited: connections wait for room, and stalled ones are closed."""

from __future__ import annotations

import asyncio
import logging

import pytest

from stratalog.net import held_memory
from stratalog.net.buffers import LARGEST_KEPT, NORMAL
from stratalog.net.response_queue import Response
from tests.net.harness import SIZE, Client, frame, limits, run, serving, settle, until

MB = 1024 * 1024
PAYLOAD = b"some bytes"


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_memory, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(held_memory, "_CHECK_SECONDS", 0.05)


def test_announced_bytes_take_no_memory_before_they_arrive() -> None:
    async def scenario() -> None:
        async with serving(limited_by=limits(held_bytes=10 * MB)) as (server, port):
            stalled = [await Client.connect(port) for _ in range(50)]
            for client in stalled:
                await client.send(SIZE.pack(50 * MB) + b"x" * 100)
            healthy = await Client.connect(port)
            assert await healthy.ask(b"y" * 8 * MB) == b"y" * 8 * MB
            assert server.memory.held < MB
            for client in [*stalled, healthy]:
                client.close()

    run(scenario)


def test_request_that_does_not_fit_waits_until_others_are_done() -> None:
    limit, size = 12 * MB, 5 * MB
    most_held = 0

    def serve(payload: memoryview, host: str) -> Response:
        return [frame(bytes(payload[:8]))]

    async def scenario() -> None:
        nonlocal most_held
        async with serving(serve, limits(held_bytes=limit)) as (server, port):
            clients = [await Client.connect(port) for _ in range(8)]
            pieces = [frame(b"%8d" % number + b"x" * size) for number in range(len(clients))]
            sending = [
                asyncio.create_task(client.send(piece[:-1])) for client, piece in zip(clients, pieces, strict=True)
            ]
            await until(lambda: server.memory.held >= limit)
            await settle(server)
            most_held = server.memory.held
            assert sum(each.done() for each in sending) < len(clients)

            async def finish(client: Client, task: asyncio.Task[None]) -> bytes:
                await task
                await client.send(b"x")
                return await client.receive()

            answers = [finish(client, task) for client, task in zip(clients, sending, strict=True)]
            assert await asyncio.gather(*answers) == [b"%8d" % number for number in range(len(clients))]
            assert server.memory.held == 0
            for client in clients:
                client.close()

    run(scenario)
    assert limit <= most_held <= limit + 2 * size


def test_small_requests_are_served_while_large_ones_take_all_the_room() -> None:
    async def scenario() -> None:
        async with serving(limited_by=limits(held_bytes=40 * MB, receive_buffer=MB)) as (server, port):
            stalled = [await Client.connect(port) for _ in range(5)]
            piece = frame(b"x" * 10 * MB)[:-1]
            tasks = [asyncio.create_task(client.send(piece)) for client in stalled]
            await until(lambda: server.memory.held >= 40 * MB)
            healthy = await Client.connect(port)
            for _ in range(20):
                assert await healthy.ask(PAYLOAD) == PAYLOAD
            assert len(server.connections) == 6  # none was closed for that
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in [*stalled, healthy]:
                client.close()

    run(scenario)


def test_senders_that_stall_are_closed_when_others_wait_for_room(
    short_patience: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with serving(limited_by=limits(held_bytes=10 * MB)) as (server, port):
            stalled = [await Client.connect(port) for _ in range(3)]
            tasks = [asyncio.create_task(client.send(frame(b"x" * 6 * MB)[:-1])) for client in stalled]
            await until(lambda: server.memory.held >= 10 * MB)
            healthy = await Client.connect(port)
            assert await healthy.ask(b"y" * MB) == b"y" * MB
            assert len(server.connections) < 4
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in [*stalled, healthy]:
                client.close()

    run(scenario)
    assert "while others waited for memory" in caplog.text


def test_responses_that_are_not_read_count_and_their_readers_make_room(short_patience: None) -> None:
    async def scenario() -> None:
        def serve(payload: memoryview, host: str) -> Response:
            return [frame(b"z" * (MB if bytes(payload[:5]) == b"large" else 10))]

        async with serving(serve, limits(held_bytes=10 * MB, send_buffer=20_000)) as (server, port):
            never_reading = [await Client.connect(port, receive_buffer=5_000) for _ in range(40)]
            for client in never_reading:
                await client.send(frame(b"large one, please"))
            await until(lambda: server.memory.held >= 8 * MB)
            healthy = await Client.connect(port)
            for _ in range(5):
                assert await healthy.ask(b"small one, please") == b"z" * 10
                assert server.memory.held <= 14 * MB
            for client in [*never_reading, healthy]:
                client.close()
            await until(lambda: not server.connections)
            assert server.memory.held == 0

    run(scenario)


def test_pieces_of_small_requests_hold_what_was_sent_of_them() -> None:
    async def scenario() -> None:
        async with serving(limited_by=limits(held_bytes=4 * MB)) as (server, port):
            clients = [await Client.connect(port) for _ in range(100)]
            payload = b"p" * 20_000
            for client in clients:
                await client.send(frame(payload)[:10_000])
            await settle(server)
            assert server.received == 100 * 10_000
            assert server.memory.held <= 2 * MB + NORMAL + 100 * 10_000
            assert (
                sum(connection._frames.buffer is not None for connection in server.connections) <= 2 * MB // NORMAL + 1
            )
            for client in clients:
                await client.send(frame(payload)[10_000:])
            for client in clients:
                assert await client.receive() == payload
            assert server.memory.held == 0
            for client in clients:
                client.close()

    run(scenario)


def test_sender_that_pauses_frees_its_buffer() -> None:
    async def scenario() -> None:
        async with serving(limited_by=limits(idle_seconds=5)) as (server, port):
            client = await Client.connect(port)
            await client.send(frame(b"q" * 50_000)[:20_000])
            await settle(server)
            assert server.memory.held == NORMAL
            connection = next(iter(server.connections))
            await until(lambda: connection._frames.buffer is None)
            assert server.memory.held == 20_000
            await client.send(frame(b"q" * 50_000)[20_000:])
            assert await client.receive() == b"q" * 50_000
            client.close()

    run(scenario)


def test_requests_that_were_set_aside_behind_one_that_waits_are_answered_in_order() -> None:
    gate: asyncio.Future[Response]

    def serve(payload: memoryview, host: str) -> Response | asyncio.Future[Response]:
        return gate if bytes(payload[:4]) == b"wait" else [frame(bytes(payload))]

    async def scenario() -> None:
        nonlocal gate
        gate = asyncio.get_running_loop().create_future()
        async with serving(serve) as (server, port):
            client = await Client.connect(port)
            await client.send(frame(b"wait for") + frame(b"number 1") + frame(b"number 2") + frame(b"number 3")[:7])
            await settle(server)
            next(iter(server.connections)).free_buffer()
            assert next(iter(server.connections))._frames.buffer is None
            gate.set_result([frame(b"waited!!")])
            assert [await client.receive() for _ in range(3)] == [b"waited!!", b"number 1", b"number 2"]
            await client.send(frame(b"number 3")[7:])
            assert await client.receive() == b"number 3"
            client.close()

    run(scenario)


def test_no_connection_waits_without_a_limit() -> None:
    async def scenario() -> None:
        async with serving(limited_by=limits(held_bytes=-1)) as (server, port):
            clients = [await Client.connect(port) for _ in range(4)]
            for client in clients:
                await client.send(frame(b"x" * (LARGEST_KEPT + 1))[:-1])
            await until(lambda: server.memory.held >= 4 * LARGEST_KEPT)
            for client in clients:
                await client.send(b"x")
                assert len(await client.receive()) == LARGEST_KEPT + 1
                client.close()

    run(scenario)
