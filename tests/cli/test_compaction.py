from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog import Admin, Producer
from stratalog.testing import BrokerProcess
from tests.cli.running import invoke, json_of, one_line_error

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "10000", "min.cleanable.dirty.ratio": "0.01"}


@pytest.fixture
def server(stratalog_new_broker: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch) -> str:
    """A broker with a topic `accounts`, whose three keys were written many times. The cleaner does not run."""
    broker = stratalog_new_broker(settings={"log.cleaner.backoff.ms": "86400000"})
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("accounts", 1, 1, COMPACTED)
        admin.create_topic("orders", 2)
    with Producer(broker.bootstrap_servers, batch_size=200) as producer:
        for number in range(300):
            producer.send("accounts", b"balance %d" % number, key=b"customer-%d" % (number % 3))
    monkeypatch.setenv("STRATALOG_BOOTSTRAP_SERVER", broker.bootstrap_servers)
    return broker.bootstrap_servers


def test_status_shows_the_dirty_ratio_and_what_a_run_waits_for(server: str) -> None:
    (row,) = json_of("compaction", "status")
    assert (row["topic"], row["partition"], row["state"]) == ("accounts", 0, "due")
    assert row["dirty_ratio"] == 1.0
    assert row["cleanable_bytes"] > 0
    assert "more than min.cleanable.dirty.ratio, 0.01" in row["reason"]
    text = invoke("compaction", "status", "accounts").stdout
    assert "accounts-0  due  1.00 of the log is dirty" in text
    assert "the active segment is never cleaned" in text


def test_status_reports_a_topic_that_is_not_compacted(server: str) -> None:
    text = invoke("compaction", "status", "orders").stdout
    assert text.count("cleanup.policy is delete: the log is not compacted") == 2


def test_dry_run_shows_savings_and_changes_nothing(server: str) -> None:
    before = json_of("compaction", "status", "accounts")
    (row,) = json_of("compaction", "status", "accounts", "--dry-run")
    assert row["keys"] == 3
    assert row["bytes_after"] < row["bytes_before"] / 5
    assert "would become" in invoke("compaction", "status", "--dry-run").stdout
    assert json_of("compaction", "status", "accounts") == before


def test_explain_shows_the_records_of_a_key(server: str) -> None:
    (partition,) = json_of("compaction", "explain", "accounts", "customer-2")
    assert partition["count"] == 100
    last = partition["records"][-1]
    assert (last["stays"], last["why"]) == (True, "the last record of the key")
    assert not partition["records"][0]["stays"]
    text = invoke("compaction", "explain", "accounts", "customer-2").stdout
    assert "accounts-0  100 records" in text
    assert "the last record of the key" in text


def test_explain_reports_a_key_without_records(server: str) -> None:
    assert invoke("compaction", "explain", "accounts", "unknown").stdout == (
        "no record of accounts has the key 'unknown'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("status", "nothing"), "nothing does not exist"),
        (("explain", "nothing", "key"), "nothing does not exist"),
        (("explain", "accounts", "key", "--partition", "7"), "accounts-7 does not exist"),
        (("explain", "accounts", r"\q"), r"KEY is '\\q'"),
    ],
)
def test_missing_topic_partition_or_key_is_one_line(server: str, arguments: tuple[str, ...], message: str) -> None:
    assert message in one_line_error(invoke("compaction", *arguments))
