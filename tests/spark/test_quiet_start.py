"""Greetings of a process that starts are kept back, unless it does not start; what it says later is shown."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A child in a pipe of its own, as the JVM is: says something while it starts, and more when it is told to.
PROGRAM = """
import subprocess, sys, threading
from stratalog.spark.quiet_start import quiet_start

CHILD = 'import sys; print("WARNING: modules", file=sys.stderr); print("12:00 ERROR bad", file=sys.stderr); '
CHILD += 'sys.stderr.flush(); print("up", flush=True); input(); print("later", file=sys.stderr)'

def start():
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    if len(sys.argv) > 1:
        child.kill()
        child.wait()
        raise SystemExit("it did not start")
    return child

with quiet_start():
    child = start()
print("mine", file=sys.stderr)
child.communicate(b"go on")
[thread.join() for thread in threading.enumerate() if thread.name == "stratalog-stderr"]
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"12:00 ERROR bad", "mine", "later"}),
        (["fail"], {"WARNING: modules", "12:00 ERROR bad", "it did not start"}),
    ],
)
def test_what_is_said_while_it_starts_is_for_those_whose_start_failed(arguments: list[str], expected: set[str]) -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert set(ran.stderr.splitlines()) == expected
