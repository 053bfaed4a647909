"""Stratalog's own API: JSON in, JSON out, and an error for everything else."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from stratalog.broker.apis import own
from stratalog.broker.apis.own import OwnApi
from stratalog.errors import UnknownTopicError


def answer(api: OwnApi, request: bytes) -> dict[str, Any]:
    try:
        reply: dict[str, Any] = json.loads(asyncio.run(api.answer(request)))
    finally:
        api.close()
    return reply


def echo(arguments: Mapping[str, Any]) -> Any:
    return dict(arguments)


def test_a_method_gets_its_arguments_and_returns_the_result() -> None:
    assert answer(OwnApi({"echo": echo}), b'{"method": "echo", "a": 1}') == {"result": {"a": 1}}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (b"", "the request is not JSON"),
        (b"\xff\xfe", "the request is not JSON"),
        (b"[" * 100_000, "the request is not JSON"),
        (b"[1]", "the request is a list"),
        (b"{}", "method is None; the methods are echo"),
        (b'{"method": "nothing"}', "method is 'nothing'; the methods are echo"),
        (b'{"method": ["echo"]}', "method is ['echo']"),
    ],
)
def test_invalid_request_gets_an_error_with_the_reason(request_: bytes, message: str) -> None:
    error = answer(OwnApi({"echo": echo}), request_)["error"]
    assert error["code"] == 42
    assert message in error["message"]


def test_an_expected_error_has_its_code() -> None:
    def missing(arguments: Mapping[str, Any]) -> Any:
        raise UnknownTopicError("orders does not exist")

    assert answer(OwnApi({"missing": missing}), b'{"method": "missing"}') == {
        "error": {"code": 3, "message": "orders does not exist"}
    }


def test_unexpected_exception_is_in_the_response_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def broken(arguments: Mapping[str, Any]) -> Any:
        raise ZeroDivisionError("never shown to strangers")

    error = answer(OwnApi({"broken": broken}), b'{"method": "broken"}')["error"]
    assert error == {"code": -1, "message": "ZeroDivisionError; see the broker's log"}
    assert "never shown to strangers" in caplog.text


def test_error_message_does_not_repeat_a_large_request() -> None:
    error = answer(OwnApi({}), json.dumps({"method": "x" * 1_000_000}).encode())["error"]
    assert error["code"] == 42
    assert error["message"].startswith("method is 'xxx")
    assert len(error["message"]) < 3_000


def test_only_a_few_requests_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "_MOST_WAITING", 2)
    go_on = threading.Event()
    api = OwnApi({"wait": lambda arguments: go_on.wait(30)})

    async def scenario() -> list[dict[str, Any]]:
        waiting = [asyncio.create_task(api.answer(b'{"method": "wait"}')) for _ in range(2)]
        await asyncio.sleep(0)
        refused = await api.answer(b'{"method": "wait"}')
        go_on.set()
        return [json.loads(one) for one in (refused, *await asyncio.gather(*waiting))]

    refused, *served = asyncio.run(scenario())
    api.close()
    assert refused["error"]["message"] == "2 requests wait already, the most that may; retry later"
    assert served == [{"result": True}] * 2
