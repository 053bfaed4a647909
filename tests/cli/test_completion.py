"""Completion in a shell."""

from __future__ import annotations

import pytest

from tests.cli.running import invoke, run

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def offered(line: str, **environment: str) -> list[str]:
    """Return the completions of the last word of the line, which may be empty."""
    count = line.count(" ")
    done = run(_STRATALOG_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(count), **environment)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def topics(empty_server: str) -> str:
    assert invoke("topic", "create", "orders", "orders-eu", "payments").exit_code == 0
    assert invoke("group", "reset", "billing", "--topic", "orders", "--to-end", "--create").exit_code == 0
    return empty_server


def test_completion_can_be_installed_and_shown() -> None:
    shown = invoke("--help").stdout
    assert "--install-completion" in shown
    assert "--show-completion" in shown


def test_commands_are_offered() -> None:
    assert offered("stratalog gr") == ["group"]
    assert "describe" in offered("stratalog group ")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("stratalog topic describe o", ["orders", "orders-eu"]),
        ("stratalog topic describe orders pay", ["payments"]),
        ("stratalog consume p", ["payments"]),
        ("stratalog produce p", ["payments"]),
        ("stratalog group describe b", ["billing"]),
        ("stratalog topic create o", []),
        ("stratalog config get topic pay", ["payments"]),
        ("stratalog config get group b", ["billing"]),
        ("stratalog consume orders --group b", ["billing"]),
    ],
)
def test_names_come_from_the_broker(topics: str, line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_names_come_from_the_broker_of_the_option(topics: str) -> None:
    line = f"stratalog topic describe --bootstrap-server {topics} pay"
    assert offered(line, STRATALOG_BOOTSTRAP_SERVER="127.0.0.1:1") == ["payments"]


def test_unreachable_broker_offers_nothing_and_reports_nothing() -> None:
    assert offered("stratalog topic describe o", STRATALOG_BOOTSTRAP_SERVER="127.0.0.1:1") == []
