"""The API of prepared transactions: JSON in, JSON out, and errors that name the problem."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.broker.apis.own import OwnApi
from stratalog.broker.apis.two_phase import TwoPhaseApi
from stratalog.broker.transactions.closed_prefixes import LONGEST_PREFIX, MOST_PREFIXES, ClosedPrefixes
from stratalog.broker.transactions.two_phase import TwoPhase
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from tests.broker.apis.admin_lab import AdminLab
from tests.broker.apis.test_transactions import SETTINGS, add, begin


class Lab(AdminLab):
    def __init__(self, data: Path) -> None:
        super().__init__(data, **SETTINGS)
        two_phase = TwoPhase(self.transactions.coordinator, self.transactions.ids, self.clock)
        self.own = OwnApi({}, TwoPhaseApi(two_phase).methods())

    def own_answer(self, method: str, **arguments: Any) -> dict[str, Any]:
        request = json.dumps({"method": f"transactions.{method}", **arguments}).encode()
        answer: dict[str, Any] = json.loads(asyncio.run(self.own.answer(request)))
        return answer

    def __exit__(self, *_: object) -> None:
        self.own.close()
        super().__exit__()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path / "data") as lab:
        lab.topics.create("orders", 2, {})
        yield lab


@pytest.fixture
def opened(lab: Lab) -> dict[str, Any]:
    """Open a transaction of transactional id "t"."""
    who = begin(lab)
    add(lab, who, 0, version=3)
    return {"transactional_id": "t", "producer_id": who.producer_id, "producer_epoch": who.epoch}


def test_prepared_transaction_is_listed_ended_and_forgotten(lab: Lab, opened: dict[str, Any]) -> None:
    assert lab.own_answer("prepared") == {"result": []}
    assert lab.own_answer("prepare", **opened) == {"result": []}
    times = {"started_ms": lab.clock.now_ms(), "prepared_ms": lab.clock.now_ms(), "until_ms": None}
    assert lab.own_answer("prepared", prefix="t") == {"result": [{**opened, **times}]}
    assert lab.own_answer("prepared", prefix="u") == {"result": []}
    ended = {"result": [{**opened, "producer_epoch": opened["producer_epoch"] + 1}]}
    assert lab.own_answer("finish", transactions=[opened], commit=True) == ended
    assert lab.own_answer("finish", transactions=[opened], commit=True) == ended
    assert lab.own_answer("forget", transactional_ids=["t"]) == {"result": []}
    error = lab.own_answer("finish", transactions=[opened], commit=True)["error"]
    assert error["code"] == 49  # INVALID_PRODUCER_ID_MAPPING
    assert "was forgotten" in error["message"]


@pytest.mark.parametrize("is_prepared", [True, False])
def test_open_transactions_are_aborted_by_the_prefix_of_their_ids(
    lab: Lab, opened: dict[str, Any], is_prepared: bool
) -> None:
    if is_prepared:
        lab.own_answer("prepare", **opened)
    assert lab.own_answer("abort", prefix="other") == {"result": []}
    assert lab.own_answer("abort", prefix="t") == {"result": [{"transactional_id": "t"}]}
    assert lab.own_answer("abort", prefix="t") == {"result": []}
    assert lab.own_answer("prepare", **opened)["error"]["code"] == 90  # PRODUCER_FENCED
    assert lab.own_answer("finish", transactions=[opened], commit=True)["error"]["code"] == 48  # INVALID_TXN_STATE


def test_no_transaction_begins_under_a_closed_prefix(lab: Lab) -> None:
    idle = begin(lab)
    assert lab.own_answer("abort", prefix="t", close=True) == {"result": [{"transactional_id": "t"}]}
    fenced = ErrorCode.producer_fenced
    assert add(lab, idle, 0, version=4) == [fenced], "a producer that has its id begins a transaction"
    late = lab.answer(ApiKey.INIT_PRODUCER_ID, transactional_id="t-2", transaction_timeout=60_000)
    assert late.error_code is fenced, "a producer that comes late gets an id"
    begin(lab, "other")
    assert lab.own_answer("prepared") == {"result": []}


def test_only_the_newest_prefixes_stay_closed() -> None:
    closed = ClosedPrefixes()
    for number in range(MOST_PREFIXES + 1):
        closed.close(f"job-{number}-")
    closed.close("job-1-")
    assert [closed.covers(f"job-{number}-x") for number in (0, 1, MOST_PREFIXES)] == [False, True, True]


def test_prefix_that_is_too_long_is_not_closed(lab: Lab) -> None:
    error = lab.own_answer("abort", prefix="t" * (LONGEST_PREFIX + 1), close=True)["error"]
    assert f"prefix has {LONGEST_PREFIX + 1} characters" in error["message"]
    assert lab.own_answer("abort", prefix="t" * (LONGEST_PREFIX + 1)) == {"result": []}
    begin(lab)


def test_refusal_by_a_closed_prefix_is_logged_a_few_times(caplog: pytest.LogCaptureFixture) -> None:
    closed = ClosedPrefixes()
    closed.close("job-")
    for _ in range(100):
        assert closed.covers("job-1")
    refusals = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert refusals == ["transactional id 'job-1' is refused: the prefix 'job-' was closed"] * 10


@pytest.mark.parametrize("method", ["prepared", "abort"])
def test_broker_that_still_loads_transactions_returns_an_error(
    lab: Lab, opened: dict[str, Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.own_answer("prepare", **opened)
    with monkeypatch.context() as patched:
        patched.setattr(lab.transactions.coordinator.loading, "_ended", False)
        error = lab.own_answer(method, prefix="t")["error"]
    assert error["code"] == 14  # COORDINATOR_LOAD_IN_PROGRESS, after which clients retry
    assert len(lab.own_answer("prepared")["result"]) == 1


def test_prepared_transaction_is_listed_with_its_deadline(lab: Lab, opened: dict[str, Any]) -> None:
    lab.clock.advance(10)
    lab.own_answer("prepare", **opened, within_ms=5_000)
    (listed,) = lab.own_answer("prepared")["result"]
    assert listed["until_ms"] == lab.clock.now_ms() + 5_000


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("prepare", {}, "transactional_id is None"),
        ("prepare", {"transactional_id": "t", "producer_id": "7"}, "producer_id is '7'; it must be a number"),
        ("prepare", {"transactional_id": "t", "producer_id": 7, "producer_epoch": True}, "producer_epoch is True"),
        ("prepare", {"transactional_id": "t", "within_ms": 0}, "within_ms is 0; it must be 1 to 2147483647"),
        ("prepare", {"within_ms": 2**31}, "within_ms is 2147483648"),
        ("prepare", {"odd": 1}, "'odd' is not an argument"),
        ("prepared", {"prefix": 5}, "prefix is 5"),
        ("abort", {}, "prefix is None"),
        ("abort", {"prefix": ""}, "prefix is ''"),
        ("abort", {"prefix": "t", "close": 1}, "close is 1; it must be true or false"),
        ("finish", {"commit": True}, "transactions is None; it must be a list with at least one"),
        ("finish", {"transactions": [], "commit": True}, "a list with at least one"),
        ("finish", {"transactions": [{}], "commit": "yes"}, "commit is 'yes'; it must be true or false"),
        ("finish", {"transactions": ["t"], "commit": True}, "transactions has 't'"),
        ("finish", {"transactions": [{"a": 1}], "commit": True}, "'a' is not an argument"),
        ("finish", {"transactions": [{}] * 10_001, "commit": True}, "has 10001 entries; it must have at most 10000"),
        ("forget", {"transactional_ids": [""]}, "transactional_id is ''"),
        ("forget", {"transactional_ids": "t"}, "transactional_ids is 't'; it must be a list"),
    ],
)
def test_invalid_argument_is_named_in_the_error(lab: Lab, method: str, arguments: dict[str, Any], message: str) -> None:
    error = lab.own_answer(method, **arguments)["error"]
    assert error["code"] == 42
    assert message in error["message"]


def test_refusal_names_the_transaction_and_its_state(lab: Lab, opened: dict[str, Any]) -> None:
    error = lab.own_answer("finish", transactions=[opened], commit=True)["error"]
    assert error["code"] == 48  # INVALID_TXN_STATE
    assert "'t' is Ongoing with producer id" in error["message"]
    error = lab.own_answer("forget", transactional_ids=["t"])["error"]
    assert "has a transaction that is Ongoing; end it first" in error["message"]


def test_request_with_many_transactions_is_parsed(lab: Lab, opened: dict[str, Any]) -> None:
    lab.own_answer("prepare", **opened)
    others = [{**opened, "transactional_id": f"other-{number}"} for number in range(2_000)]
    assert lab.own_answer("finish", transactions=[opened, *others], commit=True)["error"]["code"] in (42, 49)
    assert len(lab.own_answer("prepared")["result"]) == 1
