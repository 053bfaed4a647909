"""The SQL prompt: statements, completion, and errors of queries, which do not end it."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stratalog.cli.sql_completion import Completion
from stratalog.cli.sql_prompt import Prompt
from stratalog.cli.sql_text import Statements


@pytest.mark.parametrize(
    ("lines", "expected", "rest"),
    [
        (["SELECT 1;"], ["SELECT 1"], ""),
        (["SELECT 1", "FROM t;"], ["SELECT 1\nFROM t"], ""),
        (["SELECT 1; SELECT 2; SELECT"], ["SELECT 1", "SELECT 2"], "SELECT"),
        (["SELECT ';' , \"a;b\", `c;d`;"], ["SELECT ';' , \"a;b\", `c;d`"], ""),
        (["SELECT 'it''s; \\'; so';"], ["SELECT 'it''s; \\'; so'"], ""),
        (["SELECT 'a", "; b';"], ["SELECT 'a\n; b'"], ""),
        (["-- no; statement", "SELECT 2 - 1 / 1; -- done;"], ["-- no; statement\nSELECT 2 - 1 / 1"], ""),
        (["/* a;", "b; */ SELECT 1;"], ["/* a;\nb; */ SELECT 1"], ""),
        ([";;", "  ;"], [], ""),
    ],
)
def test_statement_ends_with_a_semicolon_outside_text_and_comments(
    lines: list[str], expected: list[str], rest: str
) -> None:
    statements = Statements()
    assert [statement for line in lines for statement in statements.add(line)] == expected
    assert statements.is_within_statement == bool(rest)
    assert statements.take_rest() == rest


def test_tab_completes_quoted_topics_columns_and_keywords() -> None:
    calls: list[int] = []

    def topics() -> list[str]:
        calls.append(1)
        return ["orders", "order-lines", "web.clicks"]

    completion = Completion(topics)
    assert completion.candidates("ord") == ["`order-lines`", "orders", "ORDER"]
    assert completion.candidates("`web") == ["`web.clicks`"]
    assert completion.candidates("timestampT") == ["timestampType"]
    assert completion.candidates("sel") == ["SELECT"]
    assert completion.candidates("parti") == ["partition"]  # PARTITION is not offered as well
    assert completion.candidates("\\") == ["\\d", "\\q", "\\?"]
    assert [completion.complete("`", state) for state in range(4)] == [
        "`order-lines`",
        "`orders`",
        "`web.clicks`",
        None,
    ]
    assert len(calls) == 1
    completion.forget_topics()
    completion.candidates("o")
    assert len(calls) == 2


def test_unreachable_broker_does_not_break_the_tab_key() -> None:
    def topics() -> list[str]:
        raise OSError

    assert Completion(topics).candidates("sel") == ["SELECT"]


class FakeEngine:
    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, statement: str) -> None:
        self.ran.append(statement)
        if "bad" in statement:
            raise ValueError("no such column")
        print(f"ran {statement}")

    def cancel(self) -> None:
        pass

    def describe(self, topic: str) -> None:
        print(f"described {topic or 'all'}")

    def explain(self, error: Exception) -> str:
        return str(error)


def script(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, FakeEngine]:
    engine = FakeEngine()
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return Prompt(engine, Completion(list), is_interactive=False).run(), engine


def test_script_runs_every_statement_and_needs_no_last_semicolon(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done, engine = script("SELECT 1;\n\\d\nSELECT\n 2;SELECT 3", monkeypatch)
    assert done
    assert engine.ran == ["SELECT 1", "SELECT\n 2", "SELECT 3"]
    shown = capsys.readouterr()
    assert shown.out.splitlines()[:2] == ["ran SELECT 1", "described all"]
    assert shown.err.count(" s\n") == 3  # the time that each took


def test_script_ends_at_the_first_statement_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done, engine = script("SELECT 1; bad; SELECT 2;", monkeypatch)
    assert not done
    assert engine.ran == ["SELECT 1", "bad"]
    assert "stratalog: no such column\n" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "message"), [("help", "\\d "), ("exit;", "\\q ends"), ("QUIT", "\\q ends")])
def test_words_of_other_prompts_get_the_commands_of_this_one(
    word: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, engine = script(f"{word}\n", monkeypatch)
    assert engine.ran == []
    shown = capsys.readouterr()
    assert message in shown.out + shown.err


def test_script_continues_after_help_and_ends_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert script("help\nSELECT 1;\nexit\nSELECT 2;", monkeypatch)[1].ran == ["SELECT 1"]


def test_help_within_a_statement_is_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    _, engine = script("SELECT\nhelp\nFROM t", monkeypatch)
    assert engine.ran == ["SELECT\nhelp\nFROM t"]


# A prompt at a terminal, with an engine whose query "slow" runs until it is cancelled.
PROGRAM = """
import signal, sys, threading
from stratalog.cli.sql_completion import Completion
from stratalog.cli.sql_prompt import Prompt
signal.signal(signal.SIGINT, signal.default_int_handler)

class Engine:
    cancelled = threading.Event()
    def run(self, statement):
        if statement == "slow":
            print("it runs", flush=True)
            self.cancelled.wait()
            print("it ends", flush=True)
            raise ValueError("cancelled")
        if statement == "bad":
            raise ValueError("no such column")
        print("<" + statement.upper() + ">", flush=True)
    def cancel(self):
        threading.Timer(0.2, self.cancelled.set).start()  # as Spark does, with a delay
    def describe(self, topic):
        print("<TOPICS>", flush=True)
    def explain(self, error):
        return str(error)

print("done" if Prompt(Engine(), Completion(lambda: ["order-lines"]), is_interactive=True).run() else "failed")
"""


class PromptTerminal:
    def __init__(self, environment: dict[str, str]) -> None:
        self.leader, follower = pty.openpty()
        command = [sys.executable, "-c", PROGRAM]
        self.process = subprocess.Popen(
            command, stdin=follower, stdout=follower, stderr=follower, env=os.environ | environment, close_fds=True
        )
        os.close(follower)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        while text not in self.seen:
            self.seen += os.read(self.leader, 4096).decode()
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.leader, text.encode())


def test_interrupt_stops_the_query_and_not_the_prompt(tmp_path: Path) -> None:
    terminal = PromptTerminal({"XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"})
    watchdog = threading.Timer(60, terminal.process.kill)
    watchdog.start()
    try:
        terminal.wait_for("sql> ")
        terminal.type("one\n")
        terminal.wait_for("...> ")
        terminal.type("two;\n")
        terminal.wait_for("<ONE")
        terminal.wait_for("TWO>")
        terminal.wait_for("sql> ")
        terminal.type("bad;\n")
        terminal.wait_for("stratalog: no such column")
        terminal.wait_for("sql> ")
        terminal.type("slow;\n")
        terminal.wait_for("it runs")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("it ends")
        terminal.wait_for("the query is stopped")
        terminal.wait_for("sql> ")
        terminal.type("\\d\n")
        terminal.wait_for("<TOPICS>")
        terminal.wait_for("sql> ")
        terminal.type("\\q\n")
        terminal.wait_for("done")
        assert terminal.process.wait() == 0
    finally:
        watchdog.cancel()
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.leader)
    assert (tmp_path / "stratalog" / "sql_history").read_text().splitlines()[-3:] == ["slow;", "\\d", "\\q"]
