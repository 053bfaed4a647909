from __future__ import annotations

from typing import Any

import pytest

from tests.cli.running import invoke, json_of, one_line_error

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def orders(empty_server: str) -> None:
    assert invoke("topic", "create", "orders", "--partitions", 1).exit_code == 0


def done(*arguments: object) -> str:
    result = invoke("config", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def settings(*arguments: object) -> dict[str, dict[str, Any]]:
    return {row["setting"]: row for row in json_of("config", "get", *arguments)}


def test_only_settings_that_differ_from_the_default_are_shown() -> None:
    assert "topic orders has no settings of its own; --all shows" in done("get", "topic", "orders")
    assert len(settings("topic", "orders", "--all")) > 20
    assert done("set", "topic", "orders", "retention.ms=3600000") == "set retention.ms=3600000 of topic orders\n"
    assert [line.split() for line in done("get", "topic", "orders").splitlines()] == [
        ["setting", "value", "from", "default"],
        ["retention.ms", "3600000", "topic", "604800000"],
    ]
    assert done("delete", "topic", "orders", "retention.ms") == "reset retention.ms of topic orders\n"
    assert settings("topic", "orders") == {}


def test_named_settings_are_shown_even_if_they_are_defaults() -> None:
    shown = settings("topic", "orders", "cleanup.policy", "segment.bytes")
    assert list(shown) == ["cleanup.policy", "segment.bytes"]
    assert shown["cleanup.policy"] == {
        "type": "setting",
        "of": "topic",
        "name": "orders",
        "setting": "cleanup.policy",
        "value": "delete",
        "source": "DEFAULT",
        "default": "delete",
        "read_only": False,
        "sensitive": False,
    }


def test_dry_run_changes_nothing() -> None:
    assert done("set", "topic", "orders", "retention.ms=1", "--dry-run") == "would set retention.ms=1 of topic orders\n"
    assert "would reset" in done("delete", "topic", "orders", "retention.ms", "--dry-run")
    assert settings("topic", "orders") == {}


def test_brokers_and_groups_have_settings_too() -> None:
    assert "log.dirs" in settings("broker", 1)
    done("set", "broker", "default", "log.retention.ms=86400000")
    assert settings("broker", "default")["log.retention.ms"]["value"] == "86400000"
    assert settings("topic", "orders")["retention.ms"]["source"] == "DYNAMIC_DEFAULT_BROKER"
    done("delete", "broker", "default", "log.retention.ms")
    done("set", "group", "billing", "consumer.session.timeout.ms=50000")
    assert settings("group", "billing")["consumer.session.timeout.ms"]["default"] == "45000"
    done("delete", "group", "billing", "consumer.session.timeout.ms")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get", "topic", "ordrs"], "did you mean 'orders'?"),
        (["get", "topic", "orders", "retention.m"], "did you mean 'retention.ms'?"),
        (["get", "broker", "7"], "no broker has the number '7'; the brokers are 1, and"),
        (["get", "broker", "first"], "no broker has the number 'first'"),
        (["get", "shop", "orders"], "'shop' is not one of 'topic', 'broker', 'group'"),
        (["set", "topic", "orders", "retention.ms"], "it must be like retention.ms=86400000"),
        (["set", "topic", "orders", "retention.m=1"], "did you mean retention.ms?"),
        (["set", "topic", "orders"], "--help"),
        (["delete", "topic", "orders", "retention.m"], "retention.ms"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line_with_advice(arguments: list[str], message: str) -> None:
    assert message in one_line_error(invoke("config", *arguments))
