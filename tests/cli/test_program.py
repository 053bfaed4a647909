from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

import stratalog
from tests.cli.running import COMMAND, invoke, one_line_error, run
from tests.inspect.written_logs import write_log

COMMANDS = (
    "dump-log",
    "lookup",
    "page-cache",
    "verify",
    "demo",
    "produce",
    "consume",
    "topic",
    "group",
    "delete-records",
    "config",
    "broker",
    "cluster",
)
SUBCOMMANDS = {
    "topic": ("list", "describe", "create", "delete", "alter", "add-partitions", "reassign"),
    "cluster": ("status", "elect"),
    "group": ("list", "describe", "reset", "delete"),
    "config": ("get", "set", "delete"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples:\n    (echo .*)?stratalog {command}", result.stdout)


@pytest.mark.parametrize("group", SUBCOMMANDS)
def test_help_of_subcommands_has_examples(group: str) -> None:
    overview = invoke(group).stdout
    assert overview == invoke(group, "--help").stdout
    for command in SUBCOMMANDS[group]:
        assert f"\n  {command} " in overview
        assert f"Examples:\n    stratalog {group} {command}" in invoke(group, command, "--help").stdout


def test_help_lists_the_commands() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert all(command in result.stdout for command in COMMANDS)


def test_help_is_fast_because_nothing_heavy_is_imported() -> None:
    program = "import sys; from stratalog.cli import commands; print(*sorted(sys.modules))"
    done = subprocess.run([COMMAND[0], "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    ours = ("stratalog.storage", "stratalog.records", "stratalog.inspect", "stratalog.client")
    heavy = ("pyarrow", "rich.console", "cramjam", *ours)
    assert [name for name in heavy if name in loaded] == []


def test_version_is_the_packages() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"stratalog {stratalog.__version__}\n")


def test_unknown_attribute_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        stratalog.nonsense  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["--nonsense"], ["verify"], ["verify", "--nonsense", "x"], ["lookup", "x", "seven"], ["dump-log"]],
)
def test_bad_usage_is_one_line_that_mentions_the_help(arguments: list[str]) -> None:
    assert "--help" in one_line_error(invoke(*arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["consume", "orders", "--count", "abc"], "--count is 'abc'; it must be a number; see stratalog consume"),
        (["consume", "orders", "-n", "0"], "--count is '0'; it must be 1 or more"),
        (["consume", "orders", "-p", "1", "-p", "-1"], "--partition is '-1'; it must be 0 or more"),
        (["page-cache", "--watch", "x", "data"], "--watch is 'x'; it must be a number"),
        (["lookup", "data/orders-0", "seven"], "OFFSET is 'seven'; it must be a number"),
        (["page-cache", "--sort", "age", "data"], "'age' is not one of"),
    ],
)
def test_value_that_is_not_valid_is_named_with_its_option(arguments: list[str], message: str) -> None:
    assert message in one_line_error(invoke(*arguments))


def test_mistyped_command_gets_a_suggestion_in_whole_sentences() -> None:
    message = one_line_error(invoke("consme"))
    assert message.endswith("'consume'? See stratalog --help\n")


def test_bad_usage_in_its_own_process_is_exit_code_2() -> None:
    done = run("lookup")
    assert (done.returncode, done.stdout) == (2, "")
    assert "stratalog lookup --help" in done.stderr


@pytest.mark.parametrize("command", ["dump-log", "verify", "page-cache"])
def test_missing_path_is_one_line(tmp_path: Path, command: str) -> None:
    assert "missing" in one_line_error(invoke(command, tmp_path / "missing"))


def test_control_characters_of_a_file_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    assert "\x1b" not in one_line_error(invoke("verify", tmp_path / "a\x1b[2Jb\nc"))


def test_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 3000, segment_bytes=2**20)
    command = f"'{COMMAND[0]}' -m stratalog dump-log --records {path}/*.log"
    shell = f"{command} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "141"


def _heed_interrupts() -> None:
    """Handle interrupts: a process that a shell started in the background ignores them, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupt_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 10)
    command = [*COMMAND, "page-cache", "--watch", "30", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_interrupts
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        while not child.stdout.readline().startswith("total"):
            pass
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        assert child.stderr.read() == "stratalog: interrupted\n"
        assert child.wait() == 130


def test_closed_stdout_is_no_traceback(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 10)
    done = subprocess.run(
        ["bash", "-c", f"'{COMMAND[0]}' -m stratalog verify {path} >/dev/full"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr == "stratalog: stdout: no space left on device\n"


def test_interrupt_while_modules_are_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*COMMAND, "--version"], capture_output=True, text=True, env=environment, preexec_fn=_heed_interrupts
    )
    assert (done.returncode, done.stderr) == (130, "stratalog: interrupted\n")


def test_pipe_gets_no_colours_and_a_terminal_does(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 10)
    plain = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    command = [*COMMAND, "verify", str(path)]
    piped = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert "\x1b" not in piped.stdout + piped.stderr
    forced = subprocess.run(command, capture_output=True, text=True, env=plain | {"FORCE_COLOR": "1", "TERM": "xterm"})
    assert "\x1b[" in forced.stdout


@pytest.mark.parametrize("command", [[], ["consume"], ["topic"], ["topic", "create"], ["spark", "query"]])
def test_help_is_shown_for_the_short_option_as_well(command: list[str]) -> None:
    shown = invoke(*command, "-h")
    assert shown.exit_code == 0
    assert shown.stdout == invoke(*command, "--help").stdout
    assert "-h, --help" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("consume orders --from-beginning", "; consume reads from the beginning by default"),
        ("consume orders -o beginning", "--from-offset"),
        ("consume orders -c 5", "--count"),
        ("consume orders -e", "consume ends after the last record"),
        ("consume --topic orders", "without an option"),
        ("serve --port 9093", "--listen 127.0.0.1:9092"),
        ("topic --list", "stratalog topic list"),
        ("topic --describe --topic orders", "stratalog topic describe"),
        ("topic describe --topic orders", "without an option"),
        ("group --list", "stratalog group list"),
        ("group --describe --group billing", "stratalog group describe"),
        ("group reset billing --to-earliest", "--to-beginning"),
        ("produce orders --broker-list x:1", "--bootstrap-server"),
        ("topic list --broker-list x:1", "--bootstrap-server"),
        ("consume a,b", "TOPIC is 'a,b'; separate topics with blanks: a b"),
        ("consume orders --nonsense", "No such option: --nonsense"),
    ],
)
def test_options_of_kafkas_tools_get_their_replacements(arguments: str, message: str) -> None:
    assert message in one_line_error(invoke(*arguments.split()))


def test_help_has_single_backslashes_and_names_arguments_as_the_usage_does() -> None:
    assert "\\\\" not in invoke("compaction", "explain", "--help").stdout
    assert "SETTING... those" in " ".join(invoke("config", "get", "--help").stdout.split())
