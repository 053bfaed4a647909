"""The output of a starting process is hidden unless the start fails; later output is shown."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A child with a pipe as stderr, like the JVM. It prints while it starts, and again on request.
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
def test_output_during_the_start_is_shown_only_if_it_fails(arguments: list[str], expected: set[str]) -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert set(ran.stderr.splitlines()) == expected
