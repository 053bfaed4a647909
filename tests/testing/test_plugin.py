"""The plugin as users have it: each test runs pytest in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.waiting import wait_until
from tests.testing.test_broker_process import is_alive

WIRE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.testing.wire import Wire

def answers(broker):
    with Wire(broker.port, 5) as wire:
        return wire.ask() == 1
"""


def run(directory: Path, test: str, *arguments: str, ini: str = "") -> subprocess.CompletedProcess[str]:
    write(directory, test, ini)
    return subprocess.run(
        command(*arguments), cwd=directory, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )


def write(directory: Path, test: str, ini: str = "") -> None:
    (directory / "pytest.ini").write_text(f"[pytest]\n{ini}")
    (directory / "test_it.py").write_text(WIRE + test)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments]


def test_run_without_a_broker_imports_no_module_of_ours(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
def test_modules():
    ours = {name for name in sys.modules if name.startswith("stratalog")}
    assert ours == {"stratalog", "stratalog.testing", "stratalog.testing.plugin"}
    assert "asyncio" not in sys.modules
""",
    )
    assert done.returncode == 0, done.stdout


def test_broker_process_works_without_pytest(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["pytest"] = None
from stratalog.testing import BrokerProcess
with BrokerProcess() as broker:
    assert broker.is_running
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_shared_broker_is_the_same_for_all_and_fresh_ones_are_not(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
seen = set()
fresh = set()

def test_one(stratalog_broker, stratalog_fresh_broker):
    seen.add(stratalog_broker.pid)
    fresh.add(stratalog_fresh_broker.pid)
    assert answers(stratalog_broker) and answers(stratalog_fresh_broker)

def test_two(stratalog_broker, stratalog_fresh_broker, stratalog_new_broker):
    seen.add(stratalog_broker.pid)
    fresh.add(stratalog_fresh_broker.pid)
    fresh.add(stratalog_new_broker({"num.partitions": 2}).pid)
    assert (len(seen), len(fresh)) == (1, 3)
""",
    )
    assert done.returncode == 0, done.stdout


def test_what_a_test_does_to_the_shared_broker_is_undone(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import pytest, time

def is_right(broker):
    return answers(broker) and abs(broker.clock.now_ms / 1000 - time.time()) < 60

@pytest.mark.parametrize("harm", ["kill", "stop", "pause", "drop", "delay", "advance"])
def test_harm(stratalog_broker, stratalog_topic, harm):
    assert is_right(stratalog_broker)
    if harm == "delay":
        stratalog_broker.delay(60)
    elif harm == "advance":
        stratalog_broker.clock.advance(days=9)
    else:
        getattr(stratalog_broker, harm)()

def test_next(stratalog_broker):
    assert is_right(stratalog_broker)
""",
    )
    assert done.returncode == 0, done.stdout


def test_broker_that_ends_by_itself_fails_the_test_and_not_the_next(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import os, signal

def test_crash(stratalog_broker):
    os.kill(stratalog_broker.pid, signal.SIGKILL)

def test_next(stratalog_broker):
    assert answers(stratalog_broker)
""",
    )
    assert "the broker ended by itself" in done.stdout
    assert "2 passed, 1 error" in done.stdout


def test_each_test_has_its_own_topic_which_is_deleted_afterwards(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import pytest
names = []

@pytest.mark.parametrize("number", range(3))
@pytest.mark.stratalog_topic(2, {"retention.ms": 1000})
def test_topic(stratalog_broker, stratalog_topic, number):
    names.append(stratalog_topic)
    directories = [path.name for path in stratalog_broker.data_dir.iterdir() if path.is_dir()]
    present = {name for name in directories if not name.endswith("-delete")}
    assert present == {f"{stratalog_topic}-0", f"{stratalog_topic}-1"}
    assert len(set(names)) == number + 1
    if number == 1:
        stratalog_broker.delete_topic(stratalog_topic)
""",
        "--strict-markers",
    )
    assert done.returncode == 0, done.stdout


def test_logs_of_brokers_are_shown_only_with_failed_tests(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
def nonsense(broker, number):
    with Wire(broker.port) as wire:
        wire.send(number)
        assert wire.receive() is None

def test_passes(stratalog_broker):
    nonsense(stratalog_broker, 901)

def test_fails(stratalog_broker, stratalog_fresh_broker):
    nonsense(stratalog_broker, 902)
    nonsense(stratalog_fresh_broker, 903)
    assert False
""",
    )
    assert "1 failed, 1 passed" in done.stdout
    assert "API key 901" not in done.stdout
    assert "API key 902" in done.stdout
    assert "API key 903" in done.stdout


def test_setting_line_without_a_value_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_it(stratalog_broker): pass", ini="stratalog_settings = num.partitions")
    assert "'num.partitions'; a line must be like num.partitions=3" in done.stdout
    done = run(tmp_path, "def test_it(stratalog_broker): pass", ini="stratalog_settings = num.partitionz = 3")
    assert "did you mean num.partitions?" in done.stdout


def test_each_xdist_worker_has_its_own_broker(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(stratalog_broker, stratalog_topic, tmp_path_factory, worker_id, number):
    assert answers(stratalog_broker)
    note = tmp_path_factory.getbasetemp().parent / f"{worker_id}.{stratalog_broker.pid}"
    note.touch()
    assert len(list(note.parent.glob(f"{worker_id}.*"))) == 1
""",
        "-n",
        "2",
        f"--basetemp={tmp_path / 'base'}",
    )
    assert done.returncode == 0, done.stdout
    assert len({path.suffix for path in (tmp_path / "base").glob("gw?.*")}) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_broker_ends_with_an_interrupted_run(tmp_path: Path, number: signal.Signals) -> None:
    note = tmp_path / "pid"
    write(
        tmp_path,
        f"""
import pathlib, time

def test_it(stratalog_broker):
    pathlib.Path({str(note)!r}).write_text(f"{{stratalog_broker.pid}}\\n")
    time.sleep(100)
""",
    )
    with subprocess.Popen(command(), cwd=tmp_path, stdout=subprocess.DEVNULL) as running:
        wait_until(lambda: note.exists() and note.read_text().endswith("\n"), "the test")
        pid = int(note.read_text())
        assert is_alive(pid)
        os.kill(running.pid, number)
        running.wait(60)
        wait_until(lambda: not is_alive(pid), "the broker's end")


def test_marker_with_a_wrong_argument_is_an_error_with_the_right_ones(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import pytest

@pytest.mark.stratalog_topic(partition=3)
def test_it(stratalog_topic):
    pass
""",
    )
    assert (
        "TypeError: the marker is stratalog_topic(partition=3); it must be like stratalog_topic(partitions=1"
        in done.stdout
    )


def test_empty_log_is_shown_as_nothing(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
def test_first(stratalog_broker):
    pass

def test_it(stratalog_broker):
    assert False
""",
    )
    assert "log of the broker on" in done.stdout
    assert "(nothing)" in done.stdout
