"""Interrupts in the middle of a call: an exception from a signal handler, a fork, a failing close."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from stratalog.errors import DirectoryLockedError, LogClosedError, StorageError
from stratalog.records import build_batch
from stratalog.storage import Log, LogDirectory
from tests.campaigns import slow
from tests.storage.faults.damaged_files import UnsyncedDisk
from tests.storage.log_builder import LogBuilder

IDEMPOTENT: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}


class Interrupt(BaseException):
    """Like KeyboardInterrupt, not an Exception."""


def interrupted_at(line: int, call: Callable[[], object]) -> bool:
    """Run `call` with an exception raised at the Nth line that it executes in the storage engine."""
    seen = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal seen
        caller = frame.f_back.f_code.co_name if frame.f_back is not None else ""
        if "stratalog/storage" not in frame.f_code.co_filename or "__del__" in (frame.f_code.co_name, caller):
            return None  # Python ignores exceptions from a __del__
        if event == "line":
            seen += 1
            if seen == line:
                raise Interrupt
        return trace

    earlier = sys.gettrace()  # the trace function of a coverage tool, if it runs
    sys.settrace(trace)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(earlier)
    return False


@pytest.mark.parametrize("doing", [slow("roll"), "append", slow("append of a producer")])
def test_interrupt_at_any_line_loses_no_acknowledged_record(tmp_path: Path, doing: str) -> None:
    line = 1
    struck = True
    while struck:
        with LogBuilder(tmp_path / str(line), disk=UnsyncedDisk()) as built:
            built.append(2).append(1)
            sent = build_batch(
                [(b"key", b"interrupted")], **({"base_sequence": 0, **IDEMPOTENT} if "of" in doing else {})
            )
            work = built.log.roll if doing == "roll" else lambda data=sent, log=built.log: log.append(data)
            struck = interrupted_at(line, work)
            records = [record.value for record in built.log.records()]
            acknowledged = built.log.append(build_batch([(b"key", b"afterwards")])).base_offset
            for state in (built.left_by_kill(tmp_path / f"{line}-killed"), None):
                if state is None:
                    built.reopen()
                    values = [record.value for record in built.log.records()]
                else:
                    with LogDirectory.open(state, background=False) as directory:
                        values = [record.value for record in directory.log("orders", 0).records()]
                assert values[acknowledged:] == [b"afterwards"], f"line {line}: {values}"
                assert values[:3] == records[:3], f"line {line}: {values}"
                assert set(values[3:acknowledged]) <= {b"interrupted"}, f"line {line}: {values}"
        line += 3
    assert line > 30, "nothing was interrupted"


FORK = """
import os, sys
from stratalog.records import build_batch
from stratalog.storage import Log
batch = build_batch([(b"k", b"v")])
with Log.open(sys.argv[1] + "/orders-0", {"index.interval.bytes": 0}) as log:
    log.append(batch)
    if (pid := os.fork()) == 0:
        sys.exit(0)  # leaves the with block, and so closes the log
    assert os.waitpid(pid, 0)[1] == 0
    assert not os.path.exists(sys.argv[1] + "/.kafka_cleanshutdown")
    for _ in range(5):
        log.append(batch)
    if (pid := os.fork()) == 0:
        try:
            log.append(batch)
        except Exception as error:
            os._exit(0 if type(error).__name__ == "LogClosedError" else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0, "the child wrote to its parent's log"
    assert len(list(log.records())) == 6
"""


def test_child_of_a_fork_does_not_touch_its_parents_log(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_failed_close_releases_the_directory(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "orders-0")
    log.append(build_batch([(b"k", b"v")]))
    (tmp_path / "orders-0").rename(tmp_path / "hidden-0")
    with pytest.raises(StorageError):
        log.close()
    log.close()
    (tmp_path / "hidden-0").rename(tmp_path / "orders-0")
    with Log.open(tmp_path / "orders-0") as again:
        assert len(list(again.records())) == 1


def test_directory_whose_housekeeper_fails_to_start_is_not_left_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", lambda self: (_ for _ in ()).throw(RuntimeError("no more threads")))
        with pytest.raises(RuntimeError):
            LogDirectory.open(tmp_path)
    LogDirectory.open(tmp_path).close()


def test_flush_of_a_log_whose_file_was_shortened_is_an_error(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "data") as built:
        killed = built.append(10).left_by_kill(tmp_path / "killed")
    directory = LogDirectory.open(killed, background=False)
    log = directory.log("orders", 0)
    os.truncate(killed / "orders-0" / f"{0:020d}.log", 100)
    with pytest.raises(StorageError, match="file ends at 100"):
        log.flush()
    with pytest.raises(StorageError):
        directory.close()


def test_every_operation_on_a_closed_log_raises_log_closed(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "orders-0")
    log.close()
    assert "closed" in repr(log)
    with pytest.raises(LogClosedError), log:
        pass
    with pytest.raises(LogClosedError):
        log.find_timestamp(0)
    with LogDirectory.open(tmp_path), pytest.raises(DirectoryLockedError):
        Log.open(tmp_path / "orders-0")
