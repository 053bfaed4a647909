from __future__ import annotations

import logging
import threading

import pytest

from stratalog.cli import client_log
from stratalog.client import connections, producer
from tests.cli.running import invoke, one_line_error, run

logger = logging.getLogger("stratalog.client")
AWAY = {"event": connections.BROKER_AWAY, "address": "127.0.0.1:1", "reason": "Connection refused"}


def test_unreachable_broker_is_waited_for_and_given_up_with_advice() -> None:
    done = run("consume", "orders", "-b", "127.0.0.1:1", "--set", "default.api.timeout.ms=2500")
    waiting, end = done.stderr.splitlines()
    assert waiting == "stratalog: waiting for 127.0.0.1:1: connection refused"
    assert end.startswith("stratalog: gave up after ")
    assert end.endswith("; is a broker running there? start one: stratalog serve, or give --bootstrap-server")
    assert done.returncode == 2


@pytest.mark.parametrize("command", [("group", "list"), ("transaction", "list")])
def test_commands_that_ask_every_broker_give_up_too(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.cli.options.TIMEOUT_MS", 300)
    assert "stratalog: gave up after 0.3 s: 127.0.0.1:1 " in one_line_error(invoke(*command, "-b", "127.0.0.1:1"))


def test_names_of_events_are_those_of_the_client() -> None:
    """They are repeated because importing a client takes long."""
    assert (client_log.BROKER_AWAY, client_log.RECORDS_GIVEN_UP) == (connections.BROKER_AWAY, producer.RECORDS_GIVEN_UP)


def test_broker_that_is_back_within_a_moment_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with client_log.show_client_log():
        logger.warning("away", extra=AWAY)
    assert capsys.readouterr().err == ""


def test_warning_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with client_log.show_client_log():
        logger.warning("connection to %s lost: reset\x1b; trying again", "127.0.0.1:1")
        logger.getChild("groups").info("joined")
    assert capsys.readouterr().err == "stratalog: connection to 127.0.0.1:1 lost: reset\\x1b; trying again\n"


def test_records_given_up_are_not_reported_because_produce_counts_them(capsys: pytest.CaptureFixture[str]) -> None:
    with client_log.show_client_log():
        logger.getChild("producer").error("given up", extra={"event": producer.RECORDS_GIVEN_UP, "records": 3})
    assert capsys.readouterr().err == ""


def test_same_broker_is_waited_for_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_log, "_MOMENT", 0.0)
    with client_log.show_client_log():
        for _ in range(3):
            logger.warning("away", extra=AWAY)
        for timer in list(_timers()):
            timer.join()
    assert capsys.readouterr().err == "stratalog: waiting for 127.0.0.1:1: connection refused\n"


def _timers() -> list[threading.Timer]:
    handlers = [handler for handler in logger.handlers if isinstance(handler, client_log.ClientLogHandler)]
    return [timer for handler in handlers for timer in handler._timers]
