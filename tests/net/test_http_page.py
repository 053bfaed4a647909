"""The page for scrapers: its responses, and the limits on its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from stratalog.net import http_page
from stratalog.net.http_page import HttpPage
from tests.net.harness import Client, run, until


def rendered() -> tuple[str, bytes]:
    return "text/plain; charset=utf-8", b"a metric 1\n"


@asynccontextmanager
async def listening(render: Callable[[], tuple[str, bytes]] = rendered) -> AsyncIterator[tuple[HttpPage, int]]:
    page = HttpPage("/metrics", render)
    port = await page.listen("127.0.0.1", 0)
    try:
        yield page, port
    finally:
        page.close()


async def answer_to(port: int, request: bytes) -> bytes:
    client = await Client.connect(port)
    await client.send(request)
    answer = bytearray()
    try:
        while True:
            answer += await client.exactly(1)
    except (EOFError, ConnectionResetError):
        client.close()
        return bytes(answer)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1", b"200 OK"),
        (b"GET /metrics?name[]=x HTTP/1.1", b"200 OK"),
        (b"HEAD /metrics HTTP/1.0", b"200 OK"),
        (b"GET / HTTP/1.1", b"404 Not Found"),
        (b"GET /metrics/../etc/passwd HTTP/1.1", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1", b"405 Method Not Allowed"),
        (b"GET /metrics SPDY/3", b"400 Bad Request"),
        (b"GET /metrics", b"400 Bad Request"),
        (b"\0\0\0\x10\0\x12", b"400 Bad Request"),
    ],
)
def test_request_line_decides_the_status(request_line: bytes, status: bytes) -> None:
    async def scenario() -> None:
        async with listening() as (_, port):
            answer = await answer_to(port, request_line + b"\r\nHost: x\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
            assert answer.endswith(b"a metric 1\n") == (status == b"200 OK" and request_line.startswith(b"GET"))

    run(scenario)


def test_too_long_or_incomplete_request_gets_no_response() -> None:
    async def scenario() -> None:
        async with listening() as (_, port):
            assert await answer_to(port, b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n") == b""
            client = await Client.connect(port)
            await client.send(b"GET /metrics HTTP/1.1\r\n")
            client.close()
            assert b"200 OK" in await answer_to(port, b"GET /metrics HTTP/1.1\r\n\r\n")

    run(scenario)


def test_slow_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_page, "_SECONDS", 0.1)

    async def scenario() -> None:
        async with listening() as (_, port):
            client = await Client.connect(port)
            await client.send(b"GET /met")
            assert await client.is_closed()
            client.close()

    run(scenario)


def test_client_that_never_reads_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_page, "_SECONDS", 0.1)
    writers: list[asyncio.StreamWriter] = []
    serve = HttpPage._serve

    async def keep_writer(page: HttpPage, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(page, reader, writer)

    monkeypatch.setattr(HttpPage, "_serve", keep_writer)

    async def scenario() -> None:
        async with listening(lambda: ("text/plain", b"x" * 20_000_000)) as (page, port):
            client = await Client.connect(port, receive_buffer=5000)
            await client.send(b"GET /metrics HTTP/1.1\r\n\r\n")
            # The page gives up after a while, and then closes its socket although the client has not read.
            await until(lambda: bool(writers) and writers[0].get_extra_info("socket").fileno() == -1)
            with pytest.raises((EOFError, ConnectionResetError)):
                await client.exactly(20_000_000)
            client.close()
            assert page._open == 0

    run(scenario)


def test_clients_over_the_limit_are_disconnected() -> None:
    async def scenario() -> None:
        async with listening() as (page, port):
            waiting = [await Client.connect(port) for _ in range(http_page._MOST_OPEN)]
            await until(lambda: page._open == http_page._MOST_OPEN)
            late = await Client.connect(port)
            assert await late.is_closed()
            late.close()
            for client in waiting:
                client.close()

    run(scenario)


def test_failing_page_is_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> tuple[str, bytes]:
        raise ValueError("a bug")

    async def scenario() -> None:
        async with listening(fail) as (_, port):
            assert await answer_to(port, b"GET /metrics HTTP/1.1\r\n\r\n") == b""

    run(scenario)
    assert "can't render the page /metrics" in caplog.text
