from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from stratalog.client.admin import Admin
from stratalog.client.administration import two_phase
from stratalog.client.prepared_transaction import PreparedTransaction
from stratalog.records.builder import build_batch
from stratalog.storage.log_directory import LogDirectory
from stratalog.testing import BrokerProcess
from tests.cli.running import invoke, json_of, one_line_error

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

HANGING = 4000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a transaction in orders-1 that no coordinator knows, as an older broker may have left it."""
    with BrokerProcess(tmp_path_factory.mktemp("hanging"), {"num.partitions": 2}) as broker:
        created = invoke("topic", "create", "orders", "--partitions", 2, "-b", broker.bootstrap_servers)
        assert created.exit_code == 0
        broker.stop()
        with LogDirectory.open(broker.data_dir, background=False) as directory:
            fields = {"producer_id": HANGING, "producer_epoch": 3, "base_sequence": 0}
            directory.log("orders", 1).append(build_batch([(b"k", b"v")], is_transactional=True, **fields))  # type: ignore[arg-type]
        broker.start()
        yield broker


@pytest.fixture(autouse=True)
def server(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STRATALOG_BOOTSTRAP_SERVER", broker.bootstrap_servers)
    return broker.bootstrap_servers


@pytest.fixture
def payments(server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A transactional id with an open transaction in orders-0. A test may choose another id than `payments`."""
    name = getattr(request, "param", "payments")
    producer = confluent_kafka.Producer({"bootstrap.servers": server, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders", b"v", partition=0)
    producer.flush(30)
    yield name
    with contextlib.suppress(confluent_kafka.KafkaException):  # a test may have ended it
        producer.abort_transaction(30)


def done(*arguments: object) -> str:
    result = invoke("transaction", *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_open_transaction_is_listed_and_described(payments: str) -> None:
    assert "Ongoing" in done("list")
    (listed,) = json_of("transaction", "list", "--state", "Ongoing")
    assert (listed["transactional_id"], listed["state"]) == (payments, "Ongoing")
    assert "no transactions" in done("list", "--longer-than", 3_600_000, "--state", "Ongoing")
    (described,) = json_of("transaction", "describe", payments)
    assert described["partitions"] == [["orders", 0]]
    assert described["producer_id"] == listed["producer_id"]
    shown = done("describe", payments)
    assert "Ongoing" in shown
    assert "orders" in shown


def test_unknown_id_and_state_are_named() -> None:
    result = invoke("transaction", "describe", "unknown")
    assert result.exit_code == 2
    assert "unknown" in result.stderr
    assert "Odd" in invoke("transaction", "list", "--state", "Odd").stderr


def test_transaction_without_a_coordinator_hangs_and_can_be_aborted(payments: str) -> None:
    (hanging,) = json_of("transaction", "list", "--hanging")
    assert (hanging["topic"], hanging["partition"], hanging["producer_id"]) == ("orders", 1, HANGING)
    assert (hanging["producer_epoch"], hanging["start_offset"]) == (3, 0)
    assert str(HANGING) in done("list", "--hanging", "--topic", "orders")
    assert "would abort" in done("abort", "orders:1", "--producer-id", HANGING, "--dry-run")
    assert json_of("transaction", "list", "--hanging") == [hanging]
    assert "aborted" in done("abort", "orders:1", "--producer-id", HANGING)
    assert "no transaction hangs" in done("list", "--hanging")


def test_transaction_of_a_coordinator_is_not_aborted(payments: str) -> None:
    (described,) = json_of("transaction", "describe", payments)
    result = invoke("transaction", "abort", "orders:0", "--producer-id", described["producer_id"])
    assert "hangs" in one_line_error(result)


def test_invalid_partition_is_refused_with_an_example() -> None:
    assert "like orders:0" in one_line_error(invoke("transaction", "abort", "orders", "--producer-id", 1))


def prepare(server: str, described: dict[str, Any]) -> None:
    prepared = PreparedTransaction(described["transactional_id"], described["producer_id"], described["producer_epoch"])
    with Admin(server) as admin:
        admin._run(two_phase.prepare(admin._cluster, prepared, None, 30))


@pytest.mark.parametrize("payments", ["pay\x1b[2Jments"], indirect=True)
def test_control_characters_of_a_transactional_id_do_not_reach_the_terminal(payments: str, server: str) -> None:
    (described,) = json_of("transaction", "describe", payments)
    prepare(server, described)
    shown = done("list") + done("describe", payments) + done("abort", "--id", payments)
    assert "\x1b" not in shown
    assert shown.count("pay\\x1b[2Jments") == 3


def test_prepared_transaction_is_shown_and_can_be_aborted(payments: str, server: str) -> None:
    (described,) = json_of("transaction", "describe", payments)
    assert described["prepared"] is False
    assert "no transaction that is prepared" in one_line_error(invoke("transaction", "abort", "--id", payments))
    prepare(server, described)
    assert "Ongoing, prepared" in done("list")
    assert "Ongoing, prepared" in done("describe", payments)
    assert "no timeout" in done("describe", payments)
    assert "would abort" in done("abort", "--id", payments, "--dry-run")
    assert json_of("transaction", "list", "--state", "Ongoing")[0]["prepared"] is True
    assert "aborted the prepared transaction of payments" in done("abort", "--id", payments)
    (described,) = json_of("transaction", "describe", payments)
    assert (described["state"], described["prepared"]) == ("CompleteAbort", False)


def test_abort_without_arguments_names_them() -> None:
    assert "name what to abort" in one_line_error(invoke("transaction", "abort"))
    assert "name what to abort" in one_line_error(invoke("transaction", "abort", "orders:0", "--id", "payments"))


def test_unknown_transactional_id_is_reported_with_advice() -> None:
    assert "; check the id: `stratalog transaction list` shows all" in one_line_error(
        invoke("transaction", "describe", "unknown")
    )
