"""A client's connection to a broker: each request has an outcome, whatever the broker does."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stratalog.errors import (
    BrokerUnreachableError,
    ClientError,
    MalformedResponseError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from stratalog.net.broker_connection import BrokerConnection
from stratalog.net.buffers import ResponseMemory
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import encode_reply
from tests.net.fake_broker import CLOSE, SILENCE, FakeBroker, Request, versions
from tests.net.harness import SECONDS, run, until

HEARTBEAT = ApiKey.HEARTBEAT
_REFUSAL = {"error_code": ErrorCode.unsupported_version, "api_keys": []}


@asynccontextmanager
async def connected(broker: FakeBroker, **changed: Any) -> AsyncIterator[BrokerConnection]:
    options: dict[str, Any] = {"client_id": "tester", "timeout": SECONDS} | changed
    connection = await BrokerConnection.open("127.0.0.1", broker.port, **options)
    try:
        yield connection
    finally:
        connection.close()


async def ask(connection: BrokerConnection, body: bytes = b"", timeout: float = SECONDS) -> memoryview:
    return await asyncio.wait_for(connection.exchange(HEARTBEAT, 4, [body], timeout=timeout), 2 * SECONDS)


def echo(request: Request) -> bytes:
    return request.framed(bytes(request.body))


def error_of_request(broker: FakeBroker, **changed: Any) -> ClientError:
    """Send a request on a new connection, and return its error."""

    async def scenario() -> ClientError:
        async with connected(broker, **changed) as connection:
            with pytest.raises(ClientError) as caught:
                await ask(connection)
            assert connection.is_closed
            assert connection.in_flight == 0
            return caught.value

    return run(scenario)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        fake.say(HEARTBEAT, echo)
        yield fake


def test_pipelined_requests_get_their_own_responses(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with connected(broker) as connection:
            bodies = [bytes([number]) * number * 37 for number in range(1, 200)]
            futures = [connection.exchange(HEARTBEAT, 4, [body], timeout=SECONDS) for body in bodies]
            assert [bytes(answer) for answer in await asyncio.gather(*futures)] == bodies

    run(scenario)


@pytest.mark.parametrize("size", [1, 65_000, 65_536, 66_000, 1_000_000, 20_000_000])
def test_responses_of_any_size_arrive_complete(broker: FakeBroker, size: int) -> None:
    async def scenario() -> None:
        async with connected(broker) as connection:
            pattern = os.urandom(1009)
            body = (pattern * (size // 1009 + 1))[:size]
            answers = await asyncio.gather(ask(connection, body), ask(connection, b"small"))
            assert bytes(answers[0]) == body
            assert bytes(answers[1]) == b"small"

    run(scenario)


def test_kept_response_is_not_overwritten(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with connected(broker) as connection:
            kept = [await ask(connection, bytes([number]) * 300_000) for number in range(10)]
            assert [bytes(view) for view in kept] == [bytes([number]) * 300_000 for number in range(10)]

    run(scenario)


def test_memory_is_reused_only_without_views() -> None:
    memory = ResponseMemory()
    first = memory.take(1_000_000)
    first[:3] = b"abc"
    part = first[1:2]
    del first
    second = memory.take(1_000_000)
    assert bytes(second[:3]) == bytes(3)
    del part
    third = memory.take(900_000)
    assert bytes(third[:3]) == b"abc"
    assert len(third) == 900_000


def test_kept_memory_is_limited() -> None:
    memory = ResponseMemory()
    for _ in range(50):
        views = [memory.take(5_000_000) for _ in range(10)]
        del views
    assert sum(map(len, memory._kept)) <= 32 * 1024 * 1024
    for _ in range(5):
        views = [memory.take(50_000_000) for _ in range(4)]
        del views
    assert sum(map(len, memory._kept)) <= 120 * 1024 * 1024
    assert len(memory.take(200_000_000)) == 200_000_000


def test_prefetched_responses_reuse_memory() -> None:
    memory = ResponseMemory()
    for used in (0, 1, 1):
        views = [memory.take(16 * 1024 * 1024) for _ in range(4)]
        assert [view[0] for view in views] == [used] * 4
        for view in views:
            view[0] = 1
        del view, views


def test_a_body_in_many_pieces_arrives_as_one(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with connected(broker) as connection:
            pieces = [os.urandom(number) for number in range(300)]
            answer = await connection.exchange(HEARTBEAT, 4, pieces, timeout=SECONDS)
            assert bytes(answer) == b"".join(pieces)

    run(scenario)


def test_request_larger_than_the_socket_buffers_arrives_complete(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with connected(broker, send_buffer=8192) as connection:
            body = os.urandom(5_000_000)
            futures = [connection.exchange(HEARTBEAT, 4, [memoryview(body)], timeout=SECONDS) for _ in range(3)]
            for answer in await asyncio.gather(*futures):
                assert answer == body

    run(scenario)


def test_missing_response_is_a_timeout_that_names_the_request() -> None:
    with FakeBroker() as broker:

        async def scenario() -> None:
            async with connected(broker) as connection:
                late = connection.exchange(HEARTBEAT, 4, [b""], timeout=0.05)
                other = connection.exchange(HEARTBEAT, 4, [b""], timeout=SECONDS)
                with pytest.raises(RequestTimeoutError, match=r"did not respond to HEARTBEAT v4 .* 2 requests"):
                    await late
                with pytest.raises(RequestTimeoutError):
                    await other
                assert connection.is_closed

        run(scenario)


def test_later_request_with_a_shorter_timeout_times_out_first() -> None:
    with FakeBroker() as broker:

        async def scenario() -> None:
            async with connected(broker) as connection:
                connection.exchange(HEARTBEAT, 4, [b""], timeout=SECONDS).cancel()
                with pytest.raises(RequestTimeoutError):
                    await ask(connection, timeout=0.05)

        run(scenario)


def test_completed_request_does_not_time_out_later(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with connected(broker) as connection:
            await ask(connection)
            timer = connection._timer
            assert timer is not None
            timer.cancel()
            connection._on_timer()  # as at the deadline of that request
            assert not connection.is_closed
            await ask(connection)

    run(scenario)


def test_response_to_a_cancelled_request_is_discarded(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with connected(broker) as connection:
            connection.exchange(HEARTBEAT, 4, [b"gone"], timeout=SECONDS).cancel()
            assert bytes(await ask(connection, b"kept")) == b"kept"

    run(scenario)


def test_broker_that_hangs_up_fails_all_requests_in_flight() -> None:
    with FakeBroker() as broker:
        broker.say(HEARTBEAT, CLOSE)
        error = error_of_request(broker)
        assert isinstance(error, BrokerUnreachableError)
        assert f"127.0.0.1:{broker.port} was lost with 1 requests in flight" in str(error)


@pytest.mark.parametrize("size", [-1, 0, 3, 1001, 2**31 - 1, -(2**31)])
def test_size_that_is_not_valid_ends_the_connection(size: int) -> None:
    with FakeBroker() as broker:
        broker.say(HEARTBEAT, size.to_bytes(4, "big", signed=True) + bytes(100))
        error = error_of_request(broker, most_response_bytes=1000)
        assert isinstance(error, MalformedResponseError)
        assert f"announces {size} bytes" in str(error)


@pytest.mark.parametrize(
    ("sent", "name"), [(b"HTTP/1.1 400 Bad Request\r\n", "HTTP"), (b"\x15\x03\x01\x00\x02", "TLS")]
)
def test_another_protocol_is_recognized(sent: bytes, name: str) -> None:
    with FakeBroker() as broker:
        broker.say(ApiKey.API_VERSIONS, sent)

        async def scenario() -> None:
            with pytest.raises(MalformedResponseError, match=f"uses {name}"):
                await BrokerConnection.open("127.0.0.1", broker.port, client_id="", timeout=SECONDS)

        run(scenario)


def test_response_with_another_correlation_id_ends_the_connection() -> None:
    with FakeBroker() as broker:
        broker.say(HEARTBEAT, lambda request: request.framed(b"", correlation_id=request.correlation_id + 1))
        error = error_of_request(broker)
        assert isinstance(error, MalformedResponseError)
        assert "HEARTBEAT v4" in str(error)


@pytest.mark.parametrize("extra", [b"\0\0\0\4\0\0\0\1", b"\0\1\0\0" + bytes(65532)])
def test_response_without_a_request_ends_the_connection(extra: bytes) -> None:
    with FakeBroker() as broker:
        broker.say(HEARTBEAT, lambda request: request.framed(b"ok") + extra)

        async def scenario() -> None:
            async with connected(broker) as connection:
                closed: asyncio.Future[ClientError] = asyncio.get_running_loop().create_future()
                connection.on_close(closed.set_result)
                assert bytes(await ask(connection)) == b"ok"
                assert isinstance(await asyncio.wait_for(closed, SECONDS), MalformedResponseError)

        run(scenario)


def test_announced_response_takes_no_memory_before_it_arrives() -> None:
    announced, sent = 2_000_000_000, 70_000
    with FakeBroker() as broker:
        broker.say(HEARTBEAT, announced.to_bytes(4, "big") + bytes(sent))

        async def scenario() -> None:
            async with connected(broker, most_response_bytes=2**31 - 1) as connection:
                connection.exchange(HEARTBEAT, 4, [b""], timeout=SECONDS).cancel()
                await until(lambda: connection._large_filled == sent)
                assert resident_bytes_of_mapping(announced) < 10_000_000

        run(scenario)


def resident_bytes_of_mapping(size: int) -> int:
    """Return how much memory this process's mapping of at least `size` bytes takes up."""
    with open("/proc/self/smaps") as file:
        lines = iter(file)
        for line in lines:
            name, _, value = line.partition(":")
            if name == "Size" and int(value.split()[0]) * 1024 >= size:
                resident = next(each for each in lines if each.startswith("Rss:"))
                return int(resident.split()[1]) * 1024
    raise AssertionError(f"no mapping has {size} bytes")


def test_tagged_fields_in_a_response_header_are_skipped() -> None:
    with FakeBroker() as broker:
        broker.say(HEARTBEAT, lambda request: _framed(request, b"\x02\x05\x03abc\x09\x00" + b"body"))

        async def scenario() -> None:
            async with connected(broker) as connection:
                assert bytes(await ask(connection)) == b"body"

        run(scenario)


@pytest.mark.parametrize(
    "tags", [b"", b"\x01", b"\x01\x05\x7fabc", b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x0f"]
)
def test_malformed_tagged_fields_end_the_connection(tags: bytes) -> None:
    with FakeBroker() as broker:
        broker.say(HEARTBEAT, lambda request: _framed(request, tags))
        assert isinstance(error_of_request(broker), MalformedResponseError)


def _framed(request: Request, rest: bytes) -> bytes:
    return (4 + len(rest)).to_bytes(4, "big") + request.correlation_id.to_bytes(4, "big") + rest


def test_highest_version_that_both_sides_know_is_used() -> None:
    with FakeBroker() as broker:
        broker.say(ApiKey.API_VERSIONS, versions(METADATA=(0, 9), PRODUCE=(0, 99), FETCH=(90, 99)))

        async def scenario() -> None:
            async with connected(broker) as connection:
                assert connection.version_of(ApiKey.METADATA) == 9
                assert connection.version_of(ApiKey.METADATA, 4, 7) == 7
                assert connection.version_of(ApiKey.PRODUCE) == 13
                with pytest.raises(
                    UnsupportedVersionError, match="versions 90 to 99 of FETCH, but this call needs 4 to 18"
                ):
                    connection.version_of(ApiKey.FETCH)
                with pytest.raises(
                    UnsupportedVersionError, match="versions 0 to 9 of METADATA, but this call needs 10 to 13"
                ):
                    connection.version_of(ApiKey.METADATA, 10)
                del connection.versions[int(ApiKey.METADATA)]
                with pytest.raises(UnsupportedVersionError, match="does not serve METADATA"):
                    connection.version_of(ApiKey.METADATA)

        run(scenario)


def test_older_version_of_api_versions_is_used_if_the_broker_needs_it() -> None:
    def old(request: Request) -> bytes | dict[str, Any]:
        if request.version > 2:
            keys = [{"api_key": 18, "min_version": 0, "max_version": 2}]
            refusal = {"error_code": ErrorCode.unsupported_version, "api_keys": keys}
            return request.framed(encode_reply(ApiKey.API_VERSIONS, 0, refusal))
        return versions(METADATA=(0, 8))

    with FakeBroker() as broker:
        broker.say(ApiKey.API_VERSIONS, old)

        async def scenario() -> None:
            async with connected(broker) as connection:
                assert connection.version_of(ApiKey.METADATA) == 8

        run(scenario)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda request: request.framed(encode_reply(request.key, 0, _REFUSAL)), UnsupportedVersionError),
        ({"error_code": 42, "api_keys": []}, UnsupportedVersionError),
        (lambda request: request.framed(b""), MalformedResponseError),
        (lambda request: request.framed(b"\0\0\xff\xff\xff\xff\x0f"), MalformedResponseError),
        ((2**30).to_bytes(4, "big") + bytes(100), MalformedResponseError),
        (CLOSE, BrokerUnreachableError),
    ],
)
def test_broker_without_valid_versions_is_refused(answer: Any, error: type[ClientError]) -> None:
    with FakeBroker() as broker:
        broker.say(ApiKey.API_VERSIONS, answer)

        async def scenario() -> None:
            with pytest.raises(error):
                await BrokerConnection.open("127.0.0.1", broker.port, client_id="", timeout=SECONDS)

        run(scenario)


def test_silent_listener_is_a_timeout() -> None:
    with FakeBroker() as broker:
        broker.say(ApiKey.API_VERSIONS, SILENCE)

        async def scenario() -> None:
            with pytest.raises(RequestTimeoutError, match=r"ApiVersions|API_VERSIONS"):
                await BrokerConnection.open("127.0.0.1", broker.port, client_id="", timeout=0.1)

        run(scenario)


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 1), ("no.such.host.invalid", 9092), ("127.0.0.1", 70_000), ("a" * 300, 1), ("", 1)]
)
def test_unreachable_address_is_named(host: str, port: int) -> None:
    async def scenario() -> None:
        with pytest.raises(BrokerUnreachableError, match=f"{host}:{port}"):
            await BrokerConnection.open(host, port, client_id="", timeout=SECONDS)

    run(scenario)


def test_all_addresses_of_a_name_are_tried(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", broker.port, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", broker.port)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)

    async def scenario() -> None:
        connection = await BrokerConnection.open("some.name", broker.port, client_id="", timeout=SECONDS)
        assert (connection.host, connection.port) == ("some.name", broker.port)
        connection.close()

    run(scenario)


def test_unusual_lookup_error_is_an_unreachable_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise UnicodeError("label too long")

    monkeypatch.setattr(socket, "getaddrinfo", broken)

    async def scenario() -> None:
        with pytest.raises(BrokerUnreachableError, match="label too long"):
            await BrokerConnection.open("some.name", 1, client_id="", timeout=SECONDS)

    run(scenario)


def test_a_request_on_a_closed_connection_fails_at_once(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with connected(broker) as connection:
            waiting = connection.exchange(HEARTBEAT, 4, [b""], timeout=SECONDS)
            connection.close()
            with pytest.raises(BrokerUnreachableError, match="closed by this client"):
                await waiting
            with pytest.raises(BrokerUnreachableError, match="is closed; send the request again"):
                await ask(connection)
            connection.close()

    run(scenario)


def test_request_without_a_response_completes_at_once(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with connected(broker) as connection:
            broker.say(ApiKey.PRODUCE, None)
            await connection.exchange(ApiKey.PRODUCE, 9, [b"abc"], timeout=0.01, expects_answer=False)
            assert connection.in_flight == 0
            assert bytes(await ask(connection, b"next")) == b"next"
            assert broker.requests[-2:] == [ApiKey.PRODUCE, HEARTBEAT]

    run(scenario)


def test_failing_callback_does_not_affect_other_requests(broker: FakeBroker) -> None:
    async def scenario() -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

        def broken(answer: memoryview | None, error: ClientError | None) -> None:
            raise ZeroDivisionError

        async with connected(broker) as connection:
            connection.post(HEARTBEAT, 4, [b""], timeout=SECONDS, answered=broken)
            assert bytes(await ask(connection, b"fine")) == b"fine"
        assert [type(fault["exception"]) for fault in faults] == [ZeroDivisionError]

    run(scenario)


def test_connection_can_be_closed_from_a_callback(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with connected(broker) as connection:
            connection.post(HEARTBEAT, 4, [b""], timeout=SECONDS, answered=lambda *_: connection.close())
            with pytest.raises(BrokerUnreachableError):
                await ask(connection)

    run(scenario)


_FORK = """
import asyncio, os, sys
from stratalog.net.broker_connection import BrokerConnection
from stratalog.protocol.api_keys import ApiKey

async def main():
    connection = await BrokerConnection.open("127.0.0.1", int(sys.argv[1]), client_id="", timeout=20)
    fd = connection._sock.fileno()
    child = os.fork()
    if child == 0:
        try:
            os.fstat(fd)
        except OSError:
            os._exit(0 if connection.is_closed else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    answer = await connection.exchange(ApiKey.HEARTBEAT, 4, [b"still here"], timeout=20)
    assert bytes(answer) == b"still here"

asyncio.run(main())
"""


def test_forked_child_closes_the_socket_and_the_parent_keeps_it(broker: FakeBroker) -> None:
    done = subprocess.run([sys.executable, "-c", _FORK, str(broker.port)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_connection_leaves_no_descriptor(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with connected(broker) as connection:
            await ask(connection)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            async with connected(broker) as connection:
                await ask(connection)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before + 5  # the fake broker closes its side a little later

    run(scenario)
