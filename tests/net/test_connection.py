"""Connections over real sockets: frames in any pieces, responses in order, and everything that ends a connection."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Awaitable
from pathlib import Path

import pytest

from stratalog.net.buffers import NORMAL
from stratalog.net.connection import RefusedConnectionError
from stratalog.net.response_queue import Part, Response
from stratalog.storage.disk import Disk
from stratalog.storage.file_slice import FileSlice, LogFile
from tests.net.harness import LARGEST, SIZE, Client, frame, limits, run, serving, settle, until

PAYLOAD = b"a request of some bytes"
_ODD_SIZES = (8, 9, 100, 4095, 4096, 4097, 70_000, NORMAL - 5, NORMAL - 4, NORMAL - 3, NORMAL, NORMAL + 1, 3 * NORMAL)


def test_frame_in_two_pieces_is_served_complete() -> None:
    async def scenario() -> None:
        async with serving() as (server, port):
            client = await Client.connect(port)
            data = frame(PAYLOAD) + frame(PAYLOAD[::-1])
            for cut in range(1, len(data)):
                await client.send(data[:cut])
                await until(lambda: server.received % len(data) == cut)  # noqa: B023
                await client.send(data[cut:])
                assert await client.receive() == PAYLOAD
                assert await client.receive() == PAYLOAD[::-1]
            client.close()

    run(scenario)


def test_many_frames_in_one_segment_are_served_in_order() -> None:
    async def scenario() -> None:
        async with serving() as (_, port):
            client = await Client.connect(port)
            payloads = [b"request %6d" % number for number in range(5000)]
            await client.send(b"".join(map(frame, payloads)))
            assert [await client.receive() for _ in payloads] == payloads
            client.close()

    run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_frames_of_any_size_in_pieces_of_any_size_come_back(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice(_ODD_SIZES) for _ in range(30)] + [chance.choice((2, 7)) * 1024 * 1024, 8]
    payloads = [chance.randbytes(min(size, 1000)) * (size // 1000) + b"x" * (size % 1000) for size in sizes]
    payloads = [payload or b"nothing!" for payload in payloads]

    async def scenario() -> None:
        async with serving() as (_, port):
            client = await Client.connect(port)

            async def send() -> None:
                data = b"".join(map(frame, payloads))
                position = 0
                while position < len(data):
                    size = chance.choice((1, 3, 4, 100, 5000, NORMAL, NORMAL + 3, 1_000_000))
                    await client.send(data[position : position + size])
                    position += size
                    await asyncio.sleep(0)

            sending = asyncio.create_task(send())
            for payload in payloads:
                assert await client.receive() == payload
            await sending
            client.close()

    run(scenario)


def test_large_frames_back_to_back_arrive_complete() -> None:
    payloads = [bytes([65 + number]) * (1024 * 1024 + number) for number in range(12)]

    async def scenario() -> None:
        async with serving() as (_, port):
            client = await Client.connect(port)
            sending = asyncio.create_task(client.send(b"".join(map(frame, payloads))))
            for payload in payloads:
                assert await client.receive() == payload
            await sending
            client.close()

    run(scenario)


def test_buffers_are_free_after_complete_frames() -> None:
    async def scenario() -> None:
        async with serving() as (server, port):
            clients = [await Client.connect(port) for _ in range(10)]
            for client in clients:
                await client.ask(b"x" * 2_000_000)
                await client.ask(b"x" * 100)
            assert server.memory.held == 0
            assert all(connection._frames.buffer is None for connection in server.connections)
            for client in clients:
                client.close()

    run(scenario)


# Waiting


def test_requests_after_a_waiting_one_are_served_after_it() -> None:
    served: list[bytes] = []
    waiting: list[asyncio.Future[Response]] = []

    def serve(payload: memoryview, host: str) -> Response | Awaitable[Response]:
        served.append(bytes(payload))
        if bytes(payload[:4]) == b"wait":
            waiting.append(asyncio.get_running_loop().create_future())
            return waiting[-1]
        return [frame(bytes(payload))]

    async def scenario() -> None:
        async with serving(serve) as (server, port):
            client = await Client.connect(port)
            await client.send(b"".join(map(frame, (b"before 1", b"wait for", b"after it", b"wait on."))) + b"\0\0")
            assert await client.receive() == b"before 1"  # requests after it do not delay it
            await settle(server)
            assert served == [b"before 1", b"wait for"]
            waiting[0].set_result([frame(b"waited 1")])
            assert [await client.receive(), await client.receive()] == [b"waited 1", b"after it"]
            await until(lambda: len(waiting) == 2)
            waiting[1].set_result([frame(b"waited 2")])
            assert await client.receive() == b"waited 2"
            await client.send(b"\0\x08" + b"the rest")
            assert await client.receive() == b"the rest"
            client.close()

    run(scenario)


def test_bytes_after_a_waiting_request_stay_in_the_socket_and_are_served_later() -> None:
    gate: asyncio.Future[Response]

    def serve(payload: memoryview, host: str) -> Response | Awaitable[Response]:
        return gate if bytes(payload[:4]) == b"wait" else [frame(bytes(payload))]

    async def scenario() -> None:
        nonlocal gate
        gate = asyncio.get_running_loop().create_future()
        async with serving(serve) as (server, port):
            client = await Client.connect(port)
            large = b"l" * 3_000_000
            sending = asyncio.create_task(client.send(frame(b"wait for") + frame(b"small one") * 1000 + frame(large)))
            await settle(server)
            assert server.received <= NORMAL
            gate.set_result([frame(b"waited!!")])
            assert await client.receive() == b"waited!!"
            for _ in range(1000):
                assert await client.receive() == b"small one"
            assert await client.receive() == large
            await sending
            client.close()

    run(scenario)


def test_waiting_request_of_a_client_that_hangs_up_is_cancelled() -> None:
    waiting: list[asyncio.Future[Response]] = []

    def serve(payload: memoryview, host: str) -> Awaitable[Response]:
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    async def scenario() -> None:
        async with serving(serve) as (server, port):
            gone, reset = await Client.connect(port), await Client.connect(port)
            await gone.send(frame(PAYLOAD))
            await reset.send(frame(PAYLOAD))
            await until(lambda: len(waiting) == 2)
            gone.close()
            reset.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            reset.close()
            await until(lambda: all(each.cancelled() for each in waiting))
            await until(lambda: not server.connections)

    run(scenario)


@pytest.mark.parametrize("sends_more", ["before", "after"])
def test_request_of_a_client_that_hangs_up_after_further_requests_is_cancelled(sends_more: str) -> None:
    """A broker that has paused reading gets no event for this, so it checks from time to time."""
    waiting: list[asyncio.Future[Response]] = []

    def serve(payload: memoryview, host: str) -> Awaitable[Response]:
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    async def scenario() -> None:
        async with serving(serve, limits(idle_seconds=0.4)) as (server, port):
            client = await Client.connect(port)
            await client.send(frame(PAYLOAD) * (2 if sends_more == "before" else 1))
            await until(lambda: len(waiting) == 1)
            if sends_more == "after":
                await client.send(frame(PAYLOAD))
                await settle(server)
            client.close()
            await until(lambda: not server.connections)
            assert [each.cancelled() for each in waiting] == [True]

    run(scenario)


def test_client_with_an_endless_pipeline_does_not_starve_others() -> None:
    served: list[bytes] = []

    def serve(payload: memoryview, host: str) -> Response:
        served.append(bytes(payload[:1]))
        time.sleep(0.002)
        return [frame(bytes(payload))]

    async def scenario() -> None:
        async with serving(serve) as (_, port):
            greedy, modest = await Client.connect(port), await Client.connect(port)
            await greedy.send(frame(b"greedy..") * 300)
            await until(lambda: len(served) > 0)
            assert await modest.ask(b"modest..") == b"modest.."
            assert served.index(b"m") < 100
            for _ in range(300):
                assert await greedy.receive() == b"greedy.."
            greedy.close()
            modest.close()

    run(scenario)


def is_heavy(payload: memoryview) -> bool:
    return bytes(payload[:5]) == b"heavy"


def test_heavy_requests_run_one_per_iteration_of_the_loop() -> None:
    """So all other connections are served between two of them."""
    iteration = 0
    heavy_at: list[int] = []
    heavy = b"heavy" + b"." * 100_000

    def serve(payload: memoryview, host: str) -> Response:
        if is_heavy(payload):
            heavy_at.append(iteration)
        return [frame(bytes(payload[:8]))]

    def count_iterations() -> None:
        nonlocal iteration
        iteration += 1
        asyncio.get_running_loop().call_soon(count_iterations)

    async def scenario() -> None:
        count_iterations()
        async with serving(serve, is_heavy=is_heavy) as (_, port):
            attackers = [await Client.connect(port) for _ in range(20)]
            modest = await Client.connect(port)
            requests = (frame(heavy) + frame(b"small one")) * 5
            sending = [asyncio.create_task(attacker.send(requests)) for attacker in attackers]
            await until(lambda: len(heavy_at) > 0)
            assert await modest.ask(b"modest..") == b"modest.."
            for attacker in attackers:
                assert [await attacker.receive() for _ in range(10)] == [heavy[:8], b"small on"] * 5
            await asyncio.gather(*sending)
            for client in (*attackers, modest):
                client.close()

    run(scenario)
    assert len(heavy_at) == 100
    assert len(set(heavy_at)) == 100


def test_client_that_hangs_up_before_its_turn_does_not_delay_others() -> None:
    heavy = b"heavy" + b"." * 100_000
    gate: asyncio.Future[Response]

    def serve(payload: memoryview, host: str) -> Response | Awaitable[Response]:
        return gate if bytes(payload[:4]) == b"wait" else [frame(bytes(payload[:8]))]

    async def scenario() -> None:
        nonlocal gate
        gate = asyncio.get_running_loop().create_future()
        async with serving(serve, is_heavy=is_heavy) as (server, port):
            clients = [await Client.connect(port) for _ in range(6)]
            for client in clients:
                await client.send(frame(heavy))
            for client in clients[::2]:
                client.close()
            for client in clients[1::2]:
                assert await client.receive() == heavy[:8]
            await clients[1].send(frame(b"wait for") + frame(heavy))
            await settle(server)
            gate.set_result([frame(b"waited!!")])
            assert [await clients[1].receive(), await clients[1].receive()] == [b"waited!!", heavy[:8]]
            for client in clients[1::2]:
                client.close()
            await until(lambda: not server.connections)
            assert server.memory.held == 0

    run(scenario)


# Answering


@pytest.fixture
def segment(tmp_path: Path) -> LogFile:
    path = tmp_path / "file"
    path.write_bytes(random.Random(5).randbytes(6_000_000))
    return LogFile(Disk(), path)


def test_bytes_and_file_ranges_reach_a_slow_reader_in_order(segment: LogFile, tmp_path: Path) -> None:
    content = (tmp_path / "file").read_bytes()
    ranges = [(0, 1), (5, 0), (17, 100_000), (1_000_000, 5_000_000), (3, 70), (0, 6_000_000), (9, 1)]

    def serve(payload: memoryview, host: str) -> Response:
        parts: list[Part] = [SIZE.pack(sum(length + 3 for _, length in ranges))]
        for position, length in ranges:
            parts += [b"<", FileSlice(segment, position, length), bytearray(b"|"), memoryview(b">")]
        return parts

    expected = b"".join(b"<" + content[position : position + length] + b"|>" for position, length in ranges)

    async def scenario() -> None:
        async with serving(serve, limits(send_buffer=20_000)) as (server, port):
            client = await Client.connect(port, receive_buffer=20_000)
            await client.send(frame(PAYLOAD) * 2)
            await settle(server)
            for _ in range(2):
                assert await client.receive() == expected
            client.close()
            await until(lambda: not server.connections)

    run(scenario)


def test_file_that_became_shorter_ends_the_connection(
    segment: LogFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def serve(payload: memoryview, host: str) -> Response:
        return [SIZE.pack(100), FileSlice(segment, 6_000_000 - 10, 100)]

    async def scenario() -> None:
        async with serving(serve) as (_, port):
            client = await Client.connect(port)
            await client.send(frame(PAYLOAD))
            with pytest.raises(EOFError):
                await client.receive()
            client.close()

    run(scenario)
    assert "has become shorter" in caplog.text


def test_pipelined_responses_with_a_few_bytes_after_their_slice_arrive_complete(segment: LogFile) -> None:
    """The last few bytes of a response may be sent with the next one, if there is one."""
    length = 200_000

    def serve(payload: memoryview, host: str) -> Response | Awaitable[Response]:
        answer: list[Part] = [SIZE.pack(1 + length + 3), bytes(payload[:1]), FileSlice(segment, 0, length), b"end"]
        return answer if payload[0] != ord("w") else _later(answer)

    async def scenario() -> None:
        async with serving(serve) as (_, port):
            client = await Client.connect(port)
            for requests in (b"a", b"ab", b"abcdefgh", b"abw", b"wab", b"wwa"):
                await client.send(b"".join(frame(bytes([request]) * 50) for request in requests))
                for request in requests:
                    answer = await client.receive()
                    assert (answer[:1], len(answer), answer[-3:]) == (bytes([request]), length + 4, b"end")
            client.close()

    run(scenario)


async def _later(answer: list[Part]) -> Response:
    await asyncio.sleep(0.001)
    return answer


def test_client_that_never_reads_holds_one_response_and_is_not_read_from() -> None:
    served = 0

    def serve(payload: memoryview, host: str) -> Response:
        nonlocal served
        served += 1
        return [frame(b"x" * 1_000_000)]

    async def scenario() -> None:
        async with serving(serve, limits(send_buffer=50_000)) as (server, port):
            client = await Client.connect(port, receive_buffer=5_000)
            sent = client.send_some(frame(b"x" * 1000) * 20_000)
            await settle(server)
            assert sent < 20_000_000
            assert served < 5
            assert server.received <= NORMAL
            assert server.memory.held < 3_000_000
            connection = next(iter(server.connections))
            assert connection.is_busy
            for _ in range(served):
                assert len(await client.receive()) == 1_000_000
            client.close()

    run(scenario)


# What ends a connection


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", "uses HTTP"),
        (b"POST /produce HTTP/1.1\r\n", "uses HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "uses TLS"),
        (b"\x16\x03\x03\x00\x7f\x01\x00\x00\x7b\x03\x03", "uses TLS"),
        (SIZE.pack(0), "frame of 0 bytes"),
        (SIZE.pack(7), "frame of 7 bytes"),
        (SIZE.pack(-1), "frame of -1 bytes"),
        (SIZE.pack(-(2**31)), "frame of -2147483648 bytes"),
        (SIZE.pack(2**31 - 1), "frame of 2147483647 bytes"),
        (SIZE.pack(LARGEST + 1), "outside the allowed range"),
        (SIZE.pack(5_000_000) + b"small", "outside the allowed range"),
    ],
)
def test_bytes_that_are_no_frame_end_the_connection_with_a_reason(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        largest = lambda start: 4_000_000 if len(start) >= 5 and bytes(start[:5]) == b"small" else LARGEST  # noqa: E731
        async with serving(largest_frame=largest, small_frame=4_000_000) as (server, port):
            client, other = await Client.connect(port), await Client.connect(port)
            await client.send(sent)
            assert await client.is_closed()
            assert await other.ask(PAYLOAD) == PAYLOAD
            assert len(server.connections) == 1
            client.close()
            other.close()

    run(scenario)
    assert reason in caplog.text
    assert all(record.levelno < logging.WARNING for record in caplog.records)


def test_refused_request_ends_the_connection_after_earlier_responses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    def serve(payload: memoryview, host: str) -> Response:
        if bytes(payload[:3]) == b"bad":
            raise RefusedConnectionError("it is bad")
        return [frame(bytes(payload))]

    async def scenario() -> None:
        async with serving(serve) as (server, port):
            client = await Client.connect(port)
            await client.send(frame(b"good one") + frame(b"bad one.") + frame(b"good too"))
            assert await client.receive() == b"good one"
            assert await client.is_closed()
            assert not server.connections
            client.close()

    run(scenario)
    assert "it is bad" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("waits", [False, True])
def test_failing_handler_ends_only_its_connection(waits: bool, caplog: pytest.LogCaptureFixture) -> None:
    def serve(payload: memoryview, host: str) -> Response | Awaitable[Response]:
        if bytes(payload[:3]) != b"bad":
            return [frame(bytes(payload))]
        if not waits:
            raise ValueError("a bug")

        async def fail() -> Response:
            await asyncio.sleep(0)
            raise ValueError("a bug")

        return fail()

    async def scenario() -> None:
        async with serving(serve) as (_, port):
            client, other = await Client.connect(port), await Client.connect(port)
            await client.send(frame(b"bad one."))
            assert await client.is_closed()
            assert await other.ask(PAYLOAD) == PAYLOAD
            client.close()
            other.close()

    run(scenario)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a bug"]


def test_client_gets_no_response_to_requests_without_one(caplog: pytest.LogCaptureFixture) -> None:
    def serve(payload: memoryview, host: str) -> Response:
        return None if bytes(payload[:5]) == b"quiet" else [frame(bytes(payload))]

    async def scenario() -> None:
        async with serving(serve) as (_, port):
            client = await Client.connect(port)
            await client.send(frame(b"quiet...") * 3)
            assert await client.ask(b"loud....") == b"loud...."
            client.close()

    run(scenario)


def test_complete_requests_are_served_after_their_client_hung_up() -> None:
    """A producer that expects no responses sends its last requests and closes the connection."""
    served: list[bytes] = []

    async def scenario() -> None:
        may_end, all_served = asyncio.Event(), asyncio.Event()

        async def slowly() -> Response:
            await may_end.wait()
            return None

        def serve(payload: memoryview, host: str) -> Response | Awaitable[Response]:
            served.append(bytes(payload[:8]))
            if len(served) == 3:
                all_served.set()
            return slowly() if len(served) == 1 else None

        async with serving(serve, outlives_its_client=lambda _: True) as (server, port):
            client = await Client.connect(port)
            await client.send(b"".join(frame(b"request%d" % number) for number in range(3)))
            client.close()
            await until(lambda: len(served) == 1)
            await settle(server)  # the end of the stream is seen
            may_end.set()
            await asyncio.wait_for(all_served.wait(), 20)

    run(scenario)
    assert served == [b"request0", b"request1", b"request2"]
