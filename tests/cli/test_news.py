from __future__ import annotations

import logging
import threading

import pytest

from stratalog.cli import news, progress_line
from stratalog.cli.progress_line import ProgressLine
from tests.cli.running import invoke, one_line_error, run

logger = logging.getLogger("stratalog.client")
AWAY = "127.0.0.1:1 can't be reached: Connection refused; is a broker listening there?; trying again"


def test_broker_that_is_not_there_is_waited_for_and_given_up_with_what_to_do() -> None:
    done = run("consume", "orders", "-b", "127.0.0.1:1", "--set", "default.api.timeout.ms=2500")
    waiting, end = done.stderr.splitlines()
    assert waiting == "stratalog: waiting for 127.0.0.1:1: connection refused"
    assert end.startswith("stratalog: gave up after ")
    assert end.endswith("; is a broker running there? start one: stratalog serve, or give --bootstrap-server")
    assert done.returncode == 2


@pytest.mark.parametrize("command", [("group", "list"), ("transaction", "list")])
def test_commands_that_ask_every_broker_give_up_too(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.cli.cluster_options.PATIENCE_MS", 300)
    assert "stratalog: gave up after 0.3 s: 127.0.0.1:1 " in one_line_error(invoke(*command, "-b", "127.0.0.1:1"))


def test_broker_that_is_there_after_a_moment_is_not_worth_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    with news.shown():
        logger.warning(AWAY)
    assert capsys.readouterr().err == ""


def test_what_clients_warn_of_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with news.shown():
        logger.warning("connection to %s lost: reset\x1b; trying again", "127.0.0.1:1")
        logger.getChild("groups").info("joined")
    assert capsys.readouterr().err == "stratalog: connection to 127.0.0.1:1 lost: reset\\x1b; trying again\n"


def test_same_broker_is_waited_for_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "_MOMENT", 0.0)
    with news.shown():
        for _ in range(3):
            logger.warning(AWAY)
        for timer in list(_timers()):
            timer.join()
    assert capsys.readouterr().err == "stratalog: waiting for 127.0.0.1:1: connection refused\n"


def test_line_clears_the_progress_that_stands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_line, "_standing", [ProgressLine()])
    news.say("it is back")
    assert capsys.readouterr().err == "\r\x1b[2Kstratalog: it is back\n"


def _timers() -> list[threading.Timer]:
    handlers = [one for one in logger.handlers if isinstance(one, news.News)]
    return [timer for one in handlers for timer in one._timers]
